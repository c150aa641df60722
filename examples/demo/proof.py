"""The end of the demo: what was sent is what is stored and what was counted, each reading once."""

import csv
import io
from collections.abc import Mapping
from typing import Final

from examples.demo.stage import Stage, Unexpected
from examples.demo.view import BOLD, CYAN, DIM, GREEN, say

_PATIENCE: Final = 120.0
QUERY: Final = """\
SELECT stored.topic, stored.count, coalesce(counted.count, 0) AS counted
FROM (SELECT topic, count(*) AS count FROM messages WHERE topic LIKE 'upb/%' GROUP BY topic) AS stored
LEFT JOIN (SELECT topic, sum(count) AS count FROM rollups GROUP BY topic) AS counted ON counted.topic = stored.topic
ORDER BY topic"""


def prove(
    stage: Stage, options: tuple[str, ...], sent: Mapping[str, int], numbers: Mapping[str, int]
) -> None:
    """Asks lake and log with SQL, and audits them; `numbers` is what of `sent` rollups count."""
    audit = stage.start("pipeline", "run", "audit", *options, log="audit.log")
    asked = stage.start("sql", "--csv", QUERY, *options, log="sql.log")
    say('\n  $ stafeta sql "SELECT … FROM messages … LEFT JOIN rollups …"', CYAN)
    rows = list(csv.reader(io.StringIO(asked.end(_PATIENCE))))[1:]
    found = {topic: (int(stored), int(counted)) for topic, stored, counted in rows}
    say(f"    {'topic':<24}{'sent':>8}{'in lake and log':>18}{'in rollups':>13}", DIM)
    for topic in sorted(sent):
        stored, counted = found.get(topic, (0, 0))
        say(f"    {topic:<24}{sent[topic]:>8,}{stored:>18,}{counted:>13,}")
    wanted = {topic: (count, numbers.get(topic, 0)) for topic, count in sent.items()}
    if found != wanted:
        raise Unexpected("lake, log and rollups do not hold what was sent.")
    say("\n  $ stafeta pipeline run audit", CYAN)
    for line in audit.end(_PATIENCE).splitlines():
        say(f"    {line}", DIM)
    total, counted = sum(sent.values()), sum(numbers.values())
    say(
        f"\n{total:,} readings sent, {total:,} in lake and log; {counted:,} numbers, {counted:,} in rollups.",
        BOLD,
        GREEN,
    )
