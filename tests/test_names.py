import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stafeta.broker.trie import FilterTrie, NameTrie
from stafeta.errors import InvalidClient, InvalidName
from stafeta.names import check_client, check_filter, check_name, matcher
from tests.broker.model import matches

LEVELS = st.lists(st.sampled_from(["a", "b", "", "$s", "x"]), min_size=1, max_size=5)
PATTERNS = st.lists(st.sampled_from(["a", "b", "", "$s", "+", "#", "*"]), min_size=1, max_size=5).filter(
    lambda levels: sum(level in "#*" and level != "" for level in levels) <= 4 and levels != [""]
)


@pytest.mark.parametrize("name", ["a", "a/b/c", "/leading", "ș/ț", "a" * 255, "$sys/x", "a//b"])
def test_names_that_are_allowed(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("a b", "white space"),
        ("a\tb", "white space"),
        ("a\u2028b", "white space"),
        ("a\x00", "control character"),
        ("a\x7f", "control character"),
        ("a\ud800", "control character"),
        ("a" * 256, "256 bytes"),
        ("ș" * 128, "256 bytes"),
        ("a/+/b", "'+'"),
        ("#", "'#'"),
        ("a/*", "'*'"),
        ("/".join("a" * 65), "65 levels"),
    ],
)
def test_names_that_are_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(InvalidName, match=why.replace("+", r"\+").replace("*", r"\*")):
        check_name(name)


@pytest.mark.parametrize("filter_", ["a+", "#a", "a/b*", "+/a#"])
def test_a_wildcard_stands_alone_in_its_level(filter_: str) -> None:
    with pytest.raises(InvalidName, match="must stand alone"):
        check_filter(filter_)


def test_a_filter_has_few_levels_that_are_open() -> None:
    check_filter("#/a/#/b/*/c/*")
    with pytest.raises(InvalidName, match="more than 4"):
        check_filter("#/a/#/b/*/c/*/d/#")


def test_a_client_id_that_is_refused() -> None:
    with pytest.raises(InvalidClient, match="client id"):
        check_client("a b")


@pytest.mark.parametrize(
    ("filter_", "name", "expected"),
    [
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/*/z", "a/z", True),
        ("a/*/z", "a/b/c/z", True),
        ("a/*/z", "a/b/c", False),
        ("#", "a/b", True),
        ("#", "$sys/a", False),
        ("+/a", "$sys/a", False),
        ("$sys/#", "$sys/a", True),
    ],
)
def test_what_a_filter_matches(filter_: str, name: str, expected: bool) -> None:
    assert matcher(filter_)(name) is expected


@given(st.lists(PATTERNS, max_size=8), LEVELS)
def test_who_matches_a_name(patterns: list[list[str]], levels: list[str]) -> None:
    filters = {"/".join(pattern) for pattern in patterns}
    name = "/".join(levels)
    trie: FilterTrie[str] = FilterTrie()
    for filter_ in filters:
        trie.add(filter_, filter_)
    expected = {filter_ for filter_ in filters if matches(filter_, name)}
    assert set(trie.matching(name)) == expected
    assert {filter_ for filter_ in filters if matcher(filter_)(name)} == expected
    for filter_ in filters:
        trie.discard(filter_, filter_)
    assert trie.matching(name) == []
    assert not trie._root.children


@example([["$s"]], ["#", "$s"])
@given(st.lists(LEVELS, max_size=12), PATTERNS)
def test_which_names_a_filter_matches(names: list[list[str]], pattern: list[str]) -> None:
    filter_ = "/".join(pattern)
    trie: NameTrie[str] = NameTrie()
    known = {"/".join(levels) for levels in names}
    for name in known:
        trie.add(name, name)
    found = trie.matching(filter_)
    assert sorted(found) == sorted(name for name in known if matches(filter_, name))
