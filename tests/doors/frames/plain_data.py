"""Plain data for property-based tests."""

from typing import Any

from hypothesis import strategies as st

# Any text but two halves of a pair next to each other, which JSON cannot tell from the whole.
TEXT = st.text().map(lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"))
WHOLE = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers() | st.floats(allow_nan=False)

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda parts: (
        st.lists(parts) | st.dictionaries(TEXT | st.sampled_from(["$tuple", "$set", "$dict"]), parts)
    ),
    max_leaves=10,
)
_KEYS: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT | st.binary(),
    lambda parts: st.lists(parts, max_size=3).map(tuple),
    max_leaves=4,
)
_TAGS = st.sampled_from(["$tuple", "$set", "$dict", "$bytes", "$float"])
PLAIN_DATA: st.SearchStrategy[Any] = st.recursive(
    _KEYS | st.sampled_from(["nan", "AAAA", ""]),
    lambda parts: (
        st.lists(parts)
        | st.lists(parts, max_size=3).map(tuple)
        | st.sets(_KEYS, max_size=4)
        | st.dictionaries(_KEYS, parts, max_size=4)
        | st.dictionaries(_TAGS, parts, max_size=1)
        | st.dictionaries(_TAGS, st.lists(st.lists(parts, min_size=2, max_size=2), max_size=2), max_size=1)
    ),
    max_leaves=10,
)


def alike(one: object, other: object) -> bool:
    """Equal, and of the same types all the way down: True is not 1, nor 1 1.0, nor -0.0 0.0."""
    return _told(one) == _told(other)


def _told(value: object) -> object:
    match value:
        case list() | tuple():
            return type(value), [_told(part) for part in value]
        case set():
            return set, sorted((_told(part) for part in value), key=repr)
        case dict():
            return dict, sorted(((_told(key), _told(part)) for key, part in value.items()), key=repr)
    return type(value), repr(value)
