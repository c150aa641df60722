"""Bodies in XML: one element whose attributes are the dictionary.

1. The element's name does not matter; comments do not either. What is no attribute of the one element is refused:
   document types and with them entities, processing instructions, elements within it, text.
2. It is UTF-8, whatever it calls itself.
3. Values are text. In what is written, line ends and tabs are character references, since an attribute would come to
   have spaces in their place.
"""

import json
import re
from typing import Any, ClassVar, Final, NoReturn
from xml.parsers import expat

from stafeta.errors import InvalidFrame, InvalidMessage
from stafeta.message import Kind

FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
REPLACEMENT: Final = "\ufffd"
_ESCAPES: Final = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "\t": "&#9;",
    "\n": "&#10;",
    "\r": "&#13;",
}
_ESCAPED: Final = re.compile(r'[&<>"\t\n\r]')


def attribute(text: str) -> str:
    """Text as it stands between quotes. Characters that XML does not have are replaced."""
    text = FORBIDDEN.sub(REPLACEMENT, text)
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], text)


def element(fields: dict[str, str]) -> bytes:
    attributes = " ".join(f'{key}="{attribute(value)}"' for key, value in fields.items())
    return f"<message {attributes} />".encode()


class XmlBodies:
    name: ClassVar[str] = "XML"
    code: ClassVar[int] = 1

    def check(self, value: object) -> None:
        found = FORBIDDEN.search(_text(value))
        if found:
            raise InvalidMessage(f"XML cannot carry the character {found[0]!r}.")

    def dump(self, fields: dict[str, object]) -> bytes:
        return element({key: _text(value) for key, value in fields.items()})

    def load(self, body: bytes) -> dict[str, Any]:
        reader = _Reader()
        try:
            reader.parse(body.decode())
        except UnicodeDecodeError as error:
            raise InvalidFrame(f"The body is not UTF-8: byte {error.start + 1} cannot be read.") from None
        except expat.ExpatError as error:
            raise InvalidFrame(f"The body is not XML: {error}.") from None
        return reader.attributes

    def read(self, body: bytes) -> dict[str, Any]:
        fields = self.load(body)
        if "message" in fields:
            fields["message"] = Kind.STRING, fields["message"].encode()
        return fields


def _text(value: object) -> str:
    """What is no text is written as JSON writes it."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"XML cannot carry this: it has no text, {error}.") from None


class _Reader:
    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self._elements = 0
        parser = self._parser = expat.ParserCreate("utf-8")
        parser.StartElementHandler = self._element
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._document_type
        parser.EntityDeclHandler = self._entity
        parser.ProcessingInstructionHandler = self._instruction

    def parse(self, body: str) -> None:
        self._parser.Parse(body, True)

    def _element(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > 1:
            raise InvalidFrame("The XML has an element within its element; only attributes are read.")
        self.attributes = attributes

    def _characters(self, text: str) -> None:
        if not text.isspace():
            raise InvalidFrame("The XML has text within its element; only attributes are read.")

    def _document_type(self, *_: object) -> NoReturn:
        raise InvalidFrame("The XML has a document type, which is not read.")

    def _entity(self, *_: object) -> NoReturn:
        raise InvalidFrame("The XML declares an entity, which is not read.")

    def _instruction(self, *_: object) -> NoReturn:
        raise InvalidFrame("The XML has a processing instruction, which is not read.")
