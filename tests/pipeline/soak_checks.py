"""What must be true of a copy, however often who made it was killed.

1. Every message published is there once, and none that was not published.
2. The messages of an input topic are in the order in which they were published.
3. Whoever looks sees a whole number of micro-batches.

Each check returns what is wrong, as sentences.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tests.pipeline.soak_producer import parsed

_SHOWN = 5


def wrong_messages(published: Mapping[str, int], output: Iterable[bytes]) -> list[str]:
    """`published` is how many messages each topic was given; they are numbered from 1."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    strange = []
    for message in output:
        try:
            topic, number = parsed(message)
        except ValueError:
            strange.append(message)
            continue
        if 1 <= number <= published.get(topic, 0):
            found[topic].append(number)
        else:
            strange.append(message)
    sentences = [f"{some(strange)} in the output were never published"] if strange else []
    for topic, count in published.items():
        sentences += _wrong_numbers(topic, count, found[topic])
    return sentences


def _wrong_numbers(topic: str, count: int, numbers: Sequence[int]) -> Iterator[str]:
    times = Counter(numbers)
    missing = [number for number in range(1, count + 1) if number not in times]
    repeated = [number for number, often in times.items() if often > 1]
    backward = [(before, after) for before, after in pairwise(numbers) if after < before]
    if missing:
        yield f"{some(missing)} of {topic} are missing"
    if repeated:
        yield f"{some(repeated)} of {topic} are there more than once"
    if backward:
        yield f"{some(backward)} of {topic} are in the wrong order"


def wrong_looks(looks: Iterable[int], ends: Iterable[int]) -> list[str]:
    """`looks` are how many messages somebody saw, `ends` how many there are after each micro-batch."""
    whole = {0, *ends}
    halves = sorted(set(looks) - whole)
    return [f"after {some(halves)} messages, half a micro-batch was to be seen"] if halves else []


def wrong_deliveries(offsets: Sequence[int], total: int) -> list[str]:
    """What one who follows the output got, who acknowledges and is never killed: all, once, in order."""
    if offsets == list(range(1, total + 1)):
        return []
    return [f"who followed the output got {len(offsets)} messages of {total}, or not in their order"]


def wrong_confirmations(counts: Sequence[Mapping[str, int]]) -> list[str]:
    """`counts` are how many messages of each topic the broker had confirmed, time after time: it takes none back."""
    sentences = []
    for topic in counts[-1]:
        known = [count[topic] for count in counts if topic in count]
        backward = [(before, after) for before, after in pairwise(known) if after < before]
        if backward:
            sentences.append(f"{some(backward)} times fewer messages of {topic} were stored than before")
    return sentences


def planned_ends(checkpoint: Path) -> dict[int, int]:
    """How many messages there are after each micro-batch that was planned, by its number: so says Spark's own log,
    which has, before a micro-batch begins, the next offset of each topic."""
    return {
        number: sum(after - 1 for after in _offsets(path).values())
        for number, path in _entries(checkpoint / "offsets")
    }


def taken(checkpoint: Path) -> dict[str, int]:
    """The next offset of each topic after the last micro-batch that is written down as done."""
    path = checkpoint / "offsets" / str(last_of(checkpoint, "commits"))
    return _offsets(path) if path.exists() else {}


def last_of(checkpoint: Path, log: str) -> int:
    """The last micro-batch that is written down as planned (`offsets`) or done (`commits`); -1 where none is."""
    return max((number for number, _ in _entries(checkpoint / log)), default=-1)


def _entries(folder: Path) -> Iterator[tuple[int, Path]]:
    """Spark writes a file beside its place first, so what has its name is whole."""
    if folder.exists():
        yield from ((int(path.name), path) for path in folder.iterdir() if path.name.isdecimal())


def _offsets(path: Path) -> dict[str, int]:
    offsets: dict[str, object] = json.loads(path.read_text().splitlines()[2])
    return {topic: after for topic, after in offsets.items() if isinstance(after, int)}


def some(found: Sequence[object]) -> str:
    shown = ", ".join(str(one) for one in found[:_SHOWN])
    return f"{len(found)} ({shown}{', …' if len(found) > _SHOWN else ''})"
