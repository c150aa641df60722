"""A stream of topics as parts of windows: what the rollup reads. A task sums up what it reads."""

from collections.abc import Sequence
from typing import Final

from stafeta.pipeline.connector.options import ReadOptions
from stafeta.pipeline.jobs.batches.reading_source import ReadingSource, ReadingStream
from stafeta.pipeline.jobs.batches.readings import Readings
from stafeta.pipeline.jobs.rolling.windows import summed_up

NAME: Final = "stafeta-windows"
SIZES: Final = "sizes"  # options of its own: sizes of windows in microseconds, with commas between,
DELAY: Final = "delay"  # and how far a time may be ahead


class WindowSource(ReadingSource):
    own = (SIZES, DELAY)

    @classmethod
    def name(cls) -> str:
        return NAME

    def stream(self, options: ReadOptions) -> "WindowStream":
        sizes = tuple(map(int, str(self.options.get(SIZES)).split(",")))
        return WindowStream(options, sizes, int(str(self.options.get(DELAY))))


class WindowStream(ReadingStream):
    def __init__(self, options: ReadOptions, sizes: Sequence[int], delay: int) -> None:
        super().__init__(options)
        self._sizes = sizes
        self._delay = delay

    def packed(self, readings: Readings, now: int) -> bytes:
        return summed_up(readings, self._sizes, now + self._delay).pack()
