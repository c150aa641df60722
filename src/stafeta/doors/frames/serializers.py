"""The three ways to write a frame's body, a flat dictionary. (docs/protocols/frames.md)

What a serializer reads for the broker is the same dictionary, but a message in it is a kind and a payload already.
"""

from typing import Any, ClassVar, Final, Protocol

from stafeta.doors.frames.json_bodies import JsonBodies
from stafeta.doors.frames.pickle_bodies import PickleBodies
from stafeta.doors.frames.xml_bodies import XmlBodies


class Serializer(Protocol):
    name: ClassVar[str]
    code: ClassVar[int]  # the first byte of a frame

    def check(self, value: object) -> None:
        """Raises `InvalidMessage` where a message would not arrive as it is."""

    def dump(self, fields: dict[str, object]) -> bytes:
        """A body. Raises `InvalidMessage` where it cannot be written at all."""

    def load(self, body: bytes) -> dict[str, Any]:
        """The dictionary. Raises `InvalidFrame`."""

    def read(self, body: bytes) -> dict[str, Any]:
        """The dictionary with the message as `tuple[Kind, bytes]`. Raises `InvalidFrame` or `InvalidMessage`."""


JSON: Final[Serializer] = JsonBodies()
XML: Final[Serializer] = XmlBodies()
PICKLE: Final[Serializer] = PickleBodies()
SERIALIZERS: Final = (JSON, XML, PICKLE)  # by code
