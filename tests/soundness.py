"""Whether a data folder is whole: what every test asks that has killed, filled or shuffled one."""

from pathlib import Path

from stafeta.errors import StoreLocked
from stafeta.examination import examine
from stafeta.store.sqlite.folder import DATABASE


def assert_sound(folder: Path) -> None:
    """`stafeta check` finds nothing in it. A folder that was never used, or is in use, is not looked at."""
    if not (folder / DATABASE).exists():
        return
    try:
        report, _ = examine(folder)
    except StoreLocked:
        return
    assert report.sound, "\n".join(finding.sentence for finding in report.findings)
