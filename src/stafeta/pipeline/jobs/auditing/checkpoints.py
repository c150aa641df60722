"""Whether the checkpoints of jobs that have a state are as new as what the broker knows of the jobs."""

from collections.abc import Sequence
from typing import Final

from stafeta.errors import DataLoss, Unsound
from stafeta.pipeline import checkpoint_files
from stafeta.pipeline.checkpoint_age import check_age
from stafeta.pipeline.jobs.auditing.findings import Finding

CHECK: Final = "checkpoints"
OLDER: Final = "is older than what the job has done"
OTHER_BROKER: Final = "is of another broker, or its subscription was ended"
_JOBS: Final = ("rollup", "alerts", "deadletter")


def older(address: str, filters: Sequence[str], folder: str) -> list[Finding]:
    """What is wrong with those in a folder. The archive goes by the lake, whatever its checkpoint says."""
    found = []
    for job in _JOBS:
        name = checkpoint_files.known_durable_name(folder, job)
        if name is None:
            continue
        try:
            check_age(address, name, filters, f"{folder}/{job}")
        except (DataLoss, Unsound) as error:
            what = OTHER_BROKER if isinstance(error, DataLoss) else OLDER
            found.append(Finding(CHECK, "", f"that of {job} {what}", (), 1))
    return found
