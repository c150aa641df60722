"""What a PUT costs when messages are spread over 1 to 100,000 topics."""

from contextlib import ExitStack
from functools import partial

from benchmarks import growth
from benchmarks.brokers import Broker
from benchmarks.frames import Subs
from benchmarks.load import Load, pace
from benchmarks.results import Bar, Table
from benchmarks.setting import Setting

CLOSE = Bar("ratio", "≤", 1.25, " times")


def run(setting: Setting) -> list[Table]:
    total = growth.puts(setting)
    points = {}
    with ExitStack() as stack:
        load = stack.enter_context(Load())
        for topics in setting.sized((1, 10, 1_000, 100_000), (1, 10, 1_000)):
            setting.say(f"subscribing to {topics:,}")
            broker = stack.enter_context(Broker(setting.folder / f"data{topics}"))
            load.run(pace, broker.address, Subs(topics, "keeper", "bench/{}"), window=growth.WINDOW)
            points[f"{topics:,}"] = partial(growth.cost, load, broker, total, topics)
        return [
            growth.table(
                setting,
                "Cost of a PUT by number of topics",
                "topics",
                "Each message goes to the next topic; all are subscribed to.",
                points,
                {"10": CLOSE, "1,000": CLOSE},
            )
        ]
