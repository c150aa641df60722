"""Where a text of SQL is parted into statements, by the rules of Spark's lexer.

1. A semicolon parts two statements, unless it is in quotes, in a comment, or in a BEGIN … END block.
2. Quotes are '…' and "…", where a backslash or a second quote escapes; r'…' and r"…", where nothing does; `…`, where a
   second quote does; and $tag$…$tag$.
3. Comments are -- up to the line's end, and /* … */, which nest.
4. A block is what begins with BEGIN. In it CASE … END counts too; IF, WHILE, FOR, LOOP and REPEAT end with END and
   their own word.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""
    (?P<quoted> r'[^']*' | r"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`
              | (?P<tag>\$\w*\$) .*? (?P=tag) )
    | (?P<line> --(?:\\\n|[^\n])* )
    | (?P<comment> /\* )
    | (?P<open> ['"`] )
    | (?P<end> ; )
    | (?P<word> \w+ )
    | (?P<other> \S )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_BRACKET: Final = re.compile(r"/\*|\*/")
_LOOSE: Final = ("IF", "WHILE", "FOR", "LOOP", "REPEAT")  # which are not counted when they begin


class Parted(NamedTuple):
    """Statements that have their semicolon, without it, and what is left after the last one."""

    statements: list[str]
    rest: str

    @property
    def all(self) -> list[str]:
        """The statements of a whole text, the last of which needs no semicolon."""
        return [*self.statements, self.rest] if self.rest else self.statements


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def parted(text: str) -> Parted:
    """Empty statements, and those of nothing but comments, are left out."""
    found: list[str] = []
    start = 0
    depth = _Depth()
    empty = True
    for token in _tokens(text):
        if token.kind == "end" and not depth.value:
            if not empty:
                found.append(text[start : token.start].strip())
            start, empty, depth = token.end, True, _Depth()
            continue
        depth.take(token.text.upper() if token.kind == "word" else "", first=empty)
        empty = False
    return Parted(found, "" if empty else text[start:].strip())


class _Depth:
    """How many blocks are open in a statement."""

    def __init__(self) -> None:
        self.value = 0
        self._ended = False  # whether the word before was END

    def take(self, word: str, *, first: bool) -> None:
        """Takes the next word of the statement, or something else as an empty one."""
        if self._ended and word in _LOOSE:
            self.value += 1  # the END before was not that of something counted
        elif word == "BEGIN":
            self.value += first or self.value > 0
        elif word == "CASE" and not self._ended:
            self.value += self.value > 0
        self._ended = word == "END" and self.value > 0
        if self._ended:
            self.value -= 1


def _tokens(text: str) -> Iterator[_Token]:
    """What a text consists of beside comments; whatever does not end is a token up to the end of the text."""
    place = 0
    while match := _TOKEN.search(text, place):
        start, place = match.span()
        kind = match.lastgroup or ""
        if kind == "comment":
            end = _after_comment(text, place)
            if end is not None:
                place = end
                continue
            kind = "open"
        if kind == "open":
            place = len(text)
        if kind != "line":
            yield _Token(kind, match[0], start, place)


def _after_comment(text: str, place: int) -> int | None:
    """Where a comment ends that has begun before this place, if it does."""
    depth = 1
    while depth:
        match = _BRACKET.search(text, place)
        if match is None:
            return None
        depth += 1 if match[0] == "/*" else -1
        place = match.end()
    return place
