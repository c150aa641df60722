"""The documentation says what the code does."""

import re
import tomllib
from pathlib import Path

from stafeta.cli import exits
from stafeta.config import Config
from stafeta.config.options import OPTIONS

DOCS = Path(__file__).parent.parent / "docs"


def test_every_option_is_documented_with_its_default() -> None:
    documented: dict[tuple[str, ...], object] = {}
    section: tuple[str, ...] = ()
    for line in (DOCS / "configuration.md").read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"### \[(\w+)\]", line):
            section = (heading[1],)
        elif line.startswith("#"):
            section = ("topics",) if "topics" in line else ()
        elif row := re.match(r"\| `(\w+)` \| `(.+?)` \|", line):
            documented[*section, row[1]] = tomllib.loads(f"value = {row[2]}")["value"]
    plain = Config().to_plain()
    defaults = {}
    for key in OPTIONS:
        value: object = plain
        for name in key:
            assert isinstance(value, dict)
            value = value[name]
        defaults[key] = value
    assert documented == defaults


def test_every_exit_code_is_documented() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert documented == {
        value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)
    }


def test_every_page_says_whom_it_is_for() -> None:
    for page in DOCS.rglob("*.md"):
        title, _, for_whom, empty, *_ = page.read_text(encoding="utf-8").splitlines()
        assert title.startswith("# "), page
        assert re.fullmatch(r"\*For .+\.\*", for_whom), page
        assert not empty, page


def test_every_page_is_in_the_navigation() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert set(re.findall(r"- (\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE)) == pages
