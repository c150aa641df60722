"""The shell of `stafeta sql`: statements that a person types.

1. A statement may take several lines, and ends with a semicolon.
2. Ctrl-C drops what was typed, or cancels the query that runs; Ctrl-D leaves.
"""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stafeta.cli import terminal
from stafeta.cli.interrupts import Interrupts
from stafeta.cli.sql_statements import parted
from stafeta.errors import StafetaError
from stafeta.pipeline.sql.results import VIEWS, Done, Output, Statements

PROMPT: Final = "sql> "
MORE: Final = "...> "
HELP: Final = r"""A statement ends with a semicolon, and may take several lines.
\d         list the views            (SHOW TABLES)
\d VIEW    list a view's columns     (DESCRIBE VIEW)
help       print this
exit       leave, as Ctrl-D does; Ctrl-C cancels
SELECT topic, avg(number) FROM readings WHERE timestamp > now() - INTERVAL 1 HOUR GROUP BY topic;"""
_WORDS: Final = re.findall(
    r"\w+",
    "SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT JOIN USING AND OR NOT NULL DESC INTERVAL HOUR DAY DISTINCT AS ON "
    "WITH CASE WHEN THEN ELSE END SHOW TABLES DESCRIBE EXPLAIN help exit",
)
_DELIMITERS: Final = " \t\n(),;=<>"


class Shell:
    def __init__(
        self, queries: Statements, output: Output, limit: int | None, interrupts: Interrupts
    ) -> None:
        self._queries = queries
        self._interrupts = interrupts
        self._output = output
        self._limit = limit
        self._pending = ""
        self._words: list[str] | None = None

    def run(self, history: Path, report: Callable[[Done, float], None]) -> None:
        """Carries out what is typed, until the end of input. `report` gets how much each statement has brought."""
        self._report = report
        for line in terminal.typed(self._ask, history, self._complete, _DELIMITERS):
            if line is None:
                self._pending = ""
            elif not self._pending and line.strip().rstrip(";").strip().lower() in ("exit", "quit"):
                break
            else:
                self._take(line)

    def _take(self, line: str) -> None:
        word = line.strip()
        if not self._pending and word.rstrip(";").lower() == "help":
            print(HELP)
            return
        if not self._pending and word.startswith("\\"):
            line = _command(word)
        self._pending = f"{self._pending}\n{line}" if self._pending else line
        statements, self._pending = parted(self._pending)
        for statement in statements:
            if not self._carry_out(statement):
                break

    def _carry_out(self, statement: str) -> bool:
        begin = time.monotonic()
        try:
            with self._interrupts.cancelling(self._queries.cancel):
                done = self._queries.run(statement, self._output, self._limit)
        except StafetaError as error:
            print(f"stafeta: {error}", file=sys.stderr, flush=True)
            return False
        except KeyboardInterrupt:
            print("Cancelled.", file=sys.stderr, flush=True)
            return False
        self._report(done, time.monotonic() - begin)
        return True

    def _ask(self) -> str:
        return self._interrupts.prompted(lambda: input(MORE if self._pending else PROMPT))

    def _complete(self, begun: str, index: int) -> str | None:
        """The completion with this index, as readline asks for them."""
        if self._words is None:
            from stafeta.pipeline.lake.tables import TABLES
            from stafeta.pipeline.view import COLUMNS, READINGS

            columns = (name for table in TABLES.values() for name in table.names)
            self._words = list(dict.fromkeys((*VIEWS, *COLUMNS, *READINGS, *columns, *_WORDS)))
        lower = begun.lower()
        found = [word for word in self._words if word.lower().startswith(lower)]
        return found[index] if index < len(found) else None


def _command(word: str) -> str:
    """The statement that a command with a backslash is short for."""
    verb, _, name = word.rstrip(";").partition(" ")
    if verb == "\\d":
        return f"DESCRIBE {name.strip()};" if name.strip() else "SHOW TABLES;"
    return f"{word};"  # which Spark has something to say about
