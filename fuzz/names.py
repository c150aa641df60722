"""Names, filters and payloads: what they are, only the broker says, and it says it the same everywhere.

1. A name or filter is allowed, or an `InvalidName` whose sentence can be printed.
2. Whether a filter matches a name, the matcher, both tries and the plainest program that there can be agree on.
3. A payload is of the kind that it claims, or an `InvalidMessage`.
"""

import json
from decimal import Decimal

from fuzz.target import Target
from stafeta.broker.trie import FilterTrie, NameTrie
from stafeta.errors import InvalidMessage, InvalidName
from stafeta.message import Kind, check_payload
from stafeta.names import check_client, check_filter, check_name, matcher
from tests.broker.model import matches

_LEVELS = 8  # what the plain program can do in a moment, trying out everything


def filters(data: bytes) -> None:
    filter_, _, name = data.decode(errors="surrogateescape").partition("\n")
    if not (_allowed(check_filter, filter_) and _allowed(check_name, name)):
        return
    check_client(name)
    found = matcher(filter_)(name)
    by_filter: FilterTrie[int] = FilterTrie()
    by_filter.add(filter_, 1)
    assert by_filter.matching(name) == [1] * found
    by_filter.discard(filter_, 1)
    assert by_filter.matching(name) == []
    by_name: NameTrie[int] = NameTrie()
    by_name.add(name, 1)
    assert by_name.matching(filter_) == [1] * found
    if filter_.count("/") < _LEVELS and name.count("/") < _LEVELS:
        assert matches(filter_, name) == found


def payloads(data: bytes) -> None:
    kind, payload = Kind(sum(data[:1]) % len(Kind)), data[1:]
    try:
        check_payload(kind, payload)
    except InvalidMessage as error:
        str(error).encode()
        return
    if kind in (Kind.INT, Kind.SHORT_REAL, Kind.FLOAT):
        assert Decimal(payload.decode()).is_finite()
    elif kind is Kind.STRING:
        payload.decode()
    elif kind is Kind.JSON:
        json.loads(payload)


def _allowed(check: object, name: str) -> bool:
    assert callable(check)
    try:
        check(name)
    except InvalidName as error:
        str(error).encode()
        return False
    return True


TARGETS = [
    Target(
        "names.filters",
        filters,
        [
            "a/+/ș\na/b/ș".encode(),
            b"a/#\na",
            b"#/b/*/c\na/b/c/d/c",
            b"+/x\n$sys/x",
            b"$sys/#\n$sys/a",
            b"//+\n//",
            b"#/a/#/a/#/a/#\n" + b"a/" * 63 + b"b",
        ],
    ),
    Target(
        "names.payloads",
        payloads,
        [b"\0-12", b"\x01-1.50", b"\x020.125", "\x03ș".encode(), b'\x04{"a":[1,2.5e3,null]}', b"\x05\xff"],
    ),
]
