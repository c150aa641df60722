"""Rules of alerts in TOML: what they say, and what is said of mistakes in them."""

import re
from pathlib import Path

import pytest

from stafeta.errors import ConfigError
from stafeta.pipeline.jobs.alerting.rules import Rule, load, parse

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "alerts.md"
HOT = '[[rule]]\nname = "hot"\ntopics = "hall/#"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there is no rule; write one below [[rule]]."),
        ("[rule]\nname = 'hot'", "rule: a rule begins with [[rule]], in double brackets."),
        ("rule = [1]", "rule: a rule begins with [[rule]], in double brackets."),
        ("[[rules]]", "rules: no such key; rules are written below [[rule]]."),
        ("[[rule]]\ntopics = '#'\nabove = 1", "rule 1: name: it is missing."),
        (
            "[[rule]]\nname = 'a/b'",
            "rule 'a/b': name: 'a/b' is no name; it is one level of a topic, such as hot.",
        ),
        ("[[rule]]\nname = 7", "rule 7: name: 7 is no name; it is one level of a topic, such as hot."),
        ("[[rule]]\nname = '+'", "rule '+': name: The topic '+' has '+' in it"),
        (f"[[rule]]\nname = '{'x' * 65}'", "is too long; a name has at most 64 characters."),
        ("[[rule]]\nname = 'hot'\nabove = 1", "rule 'hot': topics: it is missing."),
        ("[[rule]]\nname = 'hot'\ntopics = 'a#'\nabove = 1", "rule 'hot': topics: In 'a#' the level"),
        (
            "[[rule]]\nname = 'hot'\ntopics = ['a']\nabove = 1",
            "topics: ['a'] is no filter; write one such as",
        ),
        (HOT, "rule 'hot': kind: what it judges by is missing; write one of above, below,"),
        (HOT + "above = 1\nbelow = 0", "rule 'hot': below: above and below are too many; write one of"),
        (HOT + "abov = 1", "rule 'hot': abov: a rule has no such key; did you mean above?"),
        (HOT + "xyz = 1", "rule 'hot': xyz: a rule has no such key; there are above, below,"),
        (HOT + "above = '80'", "rule 'hot': above: '80' is not a number; write one such as 80 or 21.5."),
        (HOT + "above = true", "rule 'hot': above: True is not a number"),
        (HOT + "above = nan", "rule 'hot': above: nan is not a number"),
        (HOT + "outside = [3]", "rule 'hot': outside: [3] is no range; write two numbers, such as [18, 26]."),
        (HOT + "outside = [3, 3]", "rule 'hot': outside: [3, 3] is no range; the lower number comes first."),
        (HOT + "outside = [0, 'x']", "rule 'hot': outside: 'x' is not a number"),
        (HOT + "changed_by_more_than = 0", "changed_by_more_than: 0 is too small; it must be more than 0."),
        (HOT + "z_score = 3", "rule 'hot': window: it is missing."),
        (
            HOT + "z_score = -1\nwindow = '1h'",
            "rule 'hot': z_score: -1 is too small; it must be more than 0.",
        ),
        (
            HOT + "z_score = 3\nwindow = 60",
            "rule 'hot': window: 60 is not a duration; write a number and one of",
        ),
        (HOT + "above = 3\nwindow = '1h'", "rule 'hot': window: it goes with z_score, and not with above."),
        (HOT + "silent_for = '10ms'", "rule 'hot': silent_for: '10ms' is too short; the least is 1s."),
        (
            HOT + "silent_for = '1h'\nfor = '1s'",
            "for: it goes with above, below, outside, z_score, and not with",
        ),
        (
            HOT + "above = 1\nhysteresis = -1",
            "rule 'hot': hysteresis: -1 is too small; it must be 0 or more.",
        ),
        (
            HOT + "outside = [0, 4]\nhysteresis = 2",
            "hysteresis: 2 leaves no reading that would clear it; it must",
        ),
        (HOT + "above = 1\nfor = 'x'", "rule 'hot': for: 'x' is not a duration"),
        (HOT + "above = 1\nseverity = 'bad'", "severity: 'bad' is not one of info, warning, critical."),
        (HOT + "above = 1\nmessage = 7", "rule 'hot': message: 7 is no text."),
        (
            HOT + "above = 1\nmessage = '{who}'",
            "message: '{who}' has {who} in it; in braces there may be rule,",
        ),
        (
            HOT + "above = 1\nmessage = '{value!r}'",
            "in braces there may be rule, topic, value, limit, severity",
        ),
        (HOT + "above = 1\nmessage = '{'", "rule 'hot': message: '{' is no message"),
        (HOT + "above = 1\n" + HOT + "above = 2", "rule 'hot': name: two rules have it; rename one of them."),
        ("[[rule", "The rules rules.toml are not TOML"),
    ],
)
def test_a_mistake_is_a_sentence_that_names_rule_and_key(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "rules.toml")
    assert sentence in str(caught.value)
    assert "rules.toml" in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file.*alerts\.rules"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="are not UTF-8"):
        load(tmp_path / "bad.toml")


def test_every_kind_and_key_is_read() -> None:
    rules = parse(
        HOT
        + "above = 80\nhysteresis = 5\nfor = '30s'\nseverity = 'critical'\nmessage = '{topic}: {value}!'\n"
        "[[rule]]\nname = 'cold'\ntopics = '#'\nbelow = -4.5\n"
        "[[rule]]\nname = 'odd'\ntopics = '#'\noutside = [1, 2]\n"
        "[[rule]]\nname = 'jump'\ntopics = '#'\nchanged_by_more_than = 3\n"
        "[[rule]]\nname = 'unusual'\ntopics = '#'\nz_score = 3\nwindow = '10m'\n"
        "[[rule]]\nname = 'gone'\ntopics = '#'\nsilent_for = '1m'\n"
    )
    assert rules == (
        Rule("hot", "hall/#", "above", (80.0,), 5.0, 30.0, 0.0, "critical", "{topic}: {value}!"),
        Rule("cold", "#", "below", (-4.5,)),
        Rule("odd", "#", "outside", (1.0, 2.0)),
        Rule("jump", "#", "changed_by_more_than", (3.0,)),
        Rule("unusual", "#", "z_score", (3.0,), window=600.0),
        Rule("gone", "#", "silent_for", (60.0,)),
    )
    assert [rule.limit for rule in rules] == [80.0, -4.5, [1.0, 2.0], 3.0, 3.0, "1m"]
    assert rules[0].sentence("hall/a", 81.5) == "hall/a: 81.5!"
    assert rules[2].sentence("hall/a", 2.5) == "hall/a is 2.5, outside 1 to 2."
    assert rules[5].sentence("hall/a", None) == "hall/a has been silent for 1m."


def test_rules_that_judge_alike_have_the_same_mark() -> None:
    one, louder, other = (
        Rule("hot", "a", "above", (1.0,)),
        Rule("hot", "b", "above", (1.0,), severity="critical", message="{topic}"),
        Rule("hot", "a", "above", (2.0,)),
    )
    assert one.mark == louder.mark != other.mark


def test_the_example_has_every_kind() -> None:
    assert len({rule.kind for rule in load(EXAMPLES / "alerts.toml")}) == 6


def test_what_the_documentation_shows_is_right() -> None:
    shown = re.findall(r"```toml\n(\[\[rule\]\].*?)```", DOCUMENTATION.read_text(encoding="utf-8"), re.DOTALL)
    assert [rule.name for text in shown for rule in parse(text)] == ["hot", "gone"]
