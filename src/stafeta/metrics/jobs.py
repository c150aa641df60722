"""What the jobs of a pipeline have last said of themselves, in the topics `$sys/pipeline/<job>`."""

from typing import TYPE_CHECKING, Final, NamedTuple

from stafeta.broker import Broker, Topic
from stafeta.errors import StafetaError
from stafeta.message import TIME

if TYPE_CHECKING:
    from stafeta.pipeline.runner.reports import Report

FILTER: Final = "$sys/pipeline/+"
MOST: Final = 100  # jobs that are told of


class JobFigures(NamedTuple):
    report: "Report"
    time: int  # when it was published, in microseconds


class Jobs:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[Topic, tuple[int, JobFigures | None]] = {}  # up to which offset it was looked

    async def figures(self) -> list[JobFigures]:
        """In the order of their names. A report that was looked at before is not read again."""
        known, self._known = self._known, {}
        for topic in await self._broker.listed(FILTER, limit=MOST + 1):
            end = topic.visible
            if end <= topic.first:
                continue
            found = known.get(topic)
            if found is None or found[0] != end:
                found = end, await self._last(topic, end)
            self._known[topic] = found
        return [one for _, one in self._known.values() if one is not None][:MOST]

    async def _last(self, topic: Topic, end: int) -> JobFigures | None:
        from stafeta.pipeline.runner.reports import Report  # only where there are jobs

        try:
            batches = await self._broker.read(topic, end - 1, 1, end)
        except StafetaError:  # it is damaged
            return None
        report = Report.from_json(batches[0].payloads[0]) if batches else None
        if report is None or report.topic != topic.name:  # somebody else has written there, or it is an order
            return None
        time = batches[0].column(TIME)[0]
        return JobFigures(report, time if isinstance(time, int) else 0)
