"""What a PUT costs with 1 to 100,000 durable subscriptions, on its own topic and on others."""

from contextlib import ExitStack
from functools import partial

from benchmarks import growth
from benchmarks.brokers import Broker
from benchmarks.frames import TOPIC, Subs
from benchmarks.load import Load, pace
from benchmarks.results import Table
from benchmarks.setting import Setting


def run(setting: Setting) -> list[Table]:
    total = growth.puts(setting)
    sizes = setting.sized((1, 100, 10_000, 100_000), (1, 100, 1_000))
    settled = {f"{size:,}": [Subs(size, "keeper{}", TOPIC)] for size in sizes}
    settled[f"1, and {sizes[-1]:,} on other topics"] = [Subs(1, "keeper", TOPIC), *_elsewhere(sizes[-1])]
    points = {}
    with ExitStack() as stack:
        load = stack.enter_context(Load())
        for number, (label, subs) in enumerate(settled.items()):
            setting.say(f"subscribing: {label}")
            broker = stack.enter_context(Broker(setting.folder / f"data{number}"))
            for each in subs:
                load.run(pace, broker.address, each, window=growth.WINDOW)
            points[label] = partial(growth.cost, load, broker, total)
        return [
            growth.table(
                setting,
                "Cost of a PUT by number of subscriptions",
                "durable subscriptions on the topic",
                "Each is of a client of its own, which does not read. Of those on other topics every fifth is a "
                "wildcard, half of them in the first level.",
                points,
            )
        ]


def _elsewhere(total: int) -> list[Subs]:
    """Subscriptions that do not match the topic, although some begin as if they might."""
    return [
        Subs(total * 8 // 10, "other{}", "other/{}"),
        Subs(total // 10, "branch{}", "other/{}/#"),
        Subs(total // 10, "any{}", "+/other/{}"),
    ]
