"""Whether the log is the one that was archived: another broker's data under the same address, or data that was put back
from a copy, would go on with other messages behind those of the lake, without a gap."""

from collections.abc import Iterable

from stafeta.errors import DataLoss


def check_same_log(address: str, marks: Iterable[str]) -> None:
    """Raises where the broker's log does not have all that these marks are of."""
    from stafeta import connect

    known = [mark for mark in marks if mark]
    if not known:
        return
    with connect(address) as broker:
        try:
            broker.check(known)
        except DataLoss as error:
            raise DataLoss(
                f"The broker's data is not what was archived in this lake. {error} Put back the data that was; or "
                "archive this into another lake, or another lake.namespace."
            ) from None
