"""A text of SQL is parted where Spark's own lexer would part it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.cli.sql_statements import parted


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("", [], ""),
        (" ;; \n ; ", [], ""),
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT 1; SELECT 2 ;\n", ["SELECT 1", "SELECT 2"], ""),
        ("SELECT ';' ; SELECT ';;'", ["SELECT ';'"], "SELECT ';;'"),
        (r"SELECT 'it\';s'; 1", [r"SELECT 'it\';s'"], "1"),
        ("SELECT 'it'';s'; 1", ["SELECT 'it'';s'"], "1"),
        (r"SELECT '\\'; 1", [r"SELECT '\\'"], "1"),
        (r"""SELECT "a;\";"";b"; 1""", [r'''SELECT "a;\";"";b"'''], "1"),
        (r"SELECT r'\'; SELECT R'C:\'", [r"SELECT r'\'"], r"SELECT R'C:\'"),
        ("SELECT `a;``;b`; 1", ["SELECT `a;``;b`"], "1"),
        ("SELECT $$a;b$$, $x$;$$;$x$; 1", ["SELECT $$a;b$$, $x$;$$;$x$"], "1"),
        ("SELECT tar'a;b'; 1", ["SELECT tar'a;b'"], "1"),
        ("-- it's; nothing\nSELECT 1; -- done;", ["-- it's; nothing\nSELECT 1"], ""),
        ("-- goes on \\\n; here\nSELECT 1", [], "-- goes on \\\n; here\nSELECT 1"),
        ("/* a; /* b; */ ; */ SELECT /*+ B(x) */ 1; 2", ["/* a; /* b; */ ; */ SELECT /*+ B(x) */ 1"], "2"),
        ("/* nothing */; -- nothing", [], ""),
        ("?; ??", ["?"], "??"),
    ],
)  # fmt: skip
def test_semicolons_part_statements_but_in_quotes_and_comments(
    text: str, statements: list[str], rest: str
) -> None:
    assert parted(text) == (statements, rest)


@pytest.mark.parametrize("open_", ["SELECT 'a;", 'SELECT "a;', "SELECT `a;", "/* a;", "SELECT 1 /* /* */ ;"])
def test_what_is_not_closed_goes_on(open_: str) -> None:
    assert parted(f"SELECT 1; {open_} SELECT 2;") == (["SELECT 1"], f"{open_} SELECT 2;")


def test_a_block_is_one_statement() -> None:
    block = """BEGIN
      DECLARE n INT DEFAULT 0;
      IF n = 0 THEN SET n = 1; END IF;
      WHILE n < 3 DO BEGIN SET n = n + 1; END; END WHILE;
      CASE n WHEN 3 THEN SELECT 3; ELSE SELECT CASE WHEN true THEN 4 END; END CASE;
      SELECT n AS done;
    END"""
    assert parted(f"{block}; SELECT 1;") == ([block, "SELECT 1"], "")
    assert parted(f"SELECT 1; {block}").all == ["SELECT 1", block]
    assert parted(block.removesuffix("END") + ";").statements == []


def test_words_of_blocks_are_nothing_special_elsewhere() -> None:
    text = "SELECT CASE WHEN begin THEN 1 END FROM x; SELECT end FROM begin; COMMIT"
    assert parted(text).all == ["SELECT CASE WHEN begin THEN 1 END FROM x", "SELECT end FROM begin", "COMMIT"]


_PIECES = st.sampled_from(
    ["SELECT", "x", "1", "(", ")", "'a;b'", "'it''s'", r"'\''", '"q;"', "`c;`", "/* ; */", "r'\\'", "*", ","]
)


@given(st.lists(st.lists(_PIECES, min_size=1).map(lambda pieces: " ".join(["SELECT", *pieces])), max_size=5))
def test_statements_that_are_joined_are_parted_again(statements: list[str]) -> None:
    assert parted(" ;\n".join(statements)).all == statements
    assert parted("".join(f"{one};" for one in statements)).all == statements


@given(st.text(alphabet=";'\"`-/*\\\n r$ab"))
def test_whatever_is_typed_nothing_is_lost(text: str) -> None:
    found = parted(text)
    place = 0
    for one in found.all:
        place = text.index(one, place) + len(one)
    assert all(one.strip() == one != "" for one in found.all)
