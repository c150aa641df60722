"""Rules decide as a plain reading of them does, whatever names, filters, users and clients are made of."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.errors import ConfigError
from stafeta.names import levels_of, matcher
from stafeta.security import rules
from stafeta.security.rules import PUBLISH, READ, SUBSCRIBE, Rule, RuleTrie

LEVELS = ["a", "b", "$sys", "%u", "%c", ""]
NAMES = [
    "/".join(levels) for count in (1, 2, 3) for levels in product(["a", "b", "$sys", "%u"], repeat=count)
]
level = st.sampled_from([*LEVELS, "+", "#"])
filters = (
    st.lists(level, min_size=1, max_size=4)
    .filter(lambda levels: levels != [""])
    .map("/".join)
    .filter(lambda text: text.split("/").count("#") <= 4)
)
plain_filters = filters.map(lambda text: text.replace("%", "p"))  # what a subscriber asks for has no %u
clients = st.sampled_from(["", "a", "b", "#", "+", "a/b", "%u", "%c", "$sys", "ann"])
rule_lists = st.lists(st.builds(Rule, st.sampled_from([PUBLISH, SUBSCRIBE, READ]), filters), max_size=4)
USER = "a"


def matches(filter_: str, name: str, client: str) -> bool:
    """What a rule says of a name, level by level and by trying all that `#` may stand for."""
    levels = levels_of(filter_)
    if levels[0] in ("+", "#", "%u", "%c") and name.startswith("$"):
        return False
    return _match(levels, name.split("/"), client)


def _match(pattern: list[str], levels: list[str], client: str) -> bool:
    if not pattern:
        return not levels
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(_match(rest, levels[taken:], client) for taken in range(len(levels) + 1))
    if not levels:
        return False
    if first == "%u":
        same = levels[0] == USER
    elif first == "%c":
        same = client != "" and levels[0] == client
    else:
        same = first in ("+", levels[0])
    return same and _match(rest, levels[1:], client)


def allowed(allow: list[Rule], deny: list[Rule], name: str, client: str) -> int:
    mask = 0
    for operations, filter_ in allow:
        if matches(filter_, name, client):
            mask |= operations | (READ if operations & SUBSCRIBE else 0)
    for operations, filter_ in deny:
        if matches(filter_, name, client):
            mask &= ~(operations | (SUBSCRIBE if operations & READ else 0))
    return mask


@given(rule_lists, rule_lists, clients)
def test_a_decision_is_that_of_all_rules_read_one_by_one(
    allow: list[Rule], deny: list[Rule], client: str
) -> None:
    trie = RuleTrie(allow, deny)
    for name in NAMES:
        more, less = trie.decide(name, USER, client)
        assert more & ~less == allowed(allow, deny, name, client), name


@given(rule_lists, plain_filters, clients)
def test_a_filter_is_covered_only_where_every_name_of_it_is_allowed(
    allow: list[Rule], filter_: str, client: str
) -> None:
    covered = RuleTrie(allow).covers(filter_, USER, client)
    matching = matcher(filter_)
    for name in filter(matching, NAMES):
        assert covered & ~allowed(allow, [], name, client) == 0, name


@given(rule_lists, plain_filters, clients)
def test_filters_meet_where_they_have_a_name_in_common(allow: list[Rule], filter_: str, client: str) -> None:
    trie = RuleTrie(allow)
    matching = matcher(filter_)
    common = any(matching(name) and allowed(allow, [], name, client) & READ for name in NAMES)
    if common:
        assert trie.meets(filter_, READ, USER, client)


@pytest.mark.parametrize(
    ("rule", "filter_", "meet"),
    [
        ("a/b", "a/#", True),
        ("a/b", "b/#", False),
        ("#/x", "y/#", True),
        ("+/x", "y/z", False),
        ("%u/x", "#", True),
        ("%u/x", "b/x", False),
        ("%c/x", "#", False),
        ("$sys/#", "#", False),
        ("$sys/#", "+/x", False),
        ("$sys/x", "$sys/+", True),
        ("#", "$sys/#", False),
    ],
)
def test_filters_that_have_nothing_in_common_do_not_meet(rule: str, filter_: str, meet: bool) -> None:
    assert RuleTrie([Rule(READ, rule)]).meets(filter_, READ, USER, "a/b") is meet


def test_a_comparison_that_takes_too_long_counts_as_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    trie = RuleTrie([Rule(READ, f"n{number}/x") for number in range(100)])
    assert not trie.meets("+/y", READ, USER, "")
    monkeypatch.setattr(rules, "BUDGET", 50)
    assert trie.meets("+/y", READ, USER, "")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "'' is none of"),
        ("write a", "'write' is none of"),
        ("publish", "empty"),
        ("publish a#", "mixes a wildcard"),
        ("publish a/x%u", "mixes %u or %c"),
        ("publish a/%c%c", "mixes %u or %c"),
        ("publish,, a", "'' is none of"),
    ],
)
def test_what_is_no_rule_is_refused(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        Rule.read(text)


@pytest.mark.parametrize(
    "text", ["publish a/#", "consume a/#", "publish,list $sys/%u/+", "all #", "list $sys/x"]
)
def test_a_rule_is_written_as_it_was_read(text: str) -> None:
    assert str(Rule.read(text)) == text
