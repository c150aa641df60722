"""What went wrong with a job, in a sentence, and whether it can get better by itself.

1. A broker that is away comes back, a disk gets room: the job is started again, later and later.
2. What is written wrong stays wrong: options, rules, SQL, the columns of a sink; messages that are gone stay gone, and
   a checkpoint that is older than what came of it stays so.
3. Spark wraps an error in others, each with its condition before and its SQLSTATE behind: the innermost is reported.
"""

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from stafeta import errors
from stafeta.errors import StafetaError
from stafeta.pipeline.disk import folder_of

LASTING: Final = (
    errors.AlreadyWritten,
    errors.ConfigError,
    errors.DataLoss,
    errors.InvalidName,
    errors.InvalidMessage,
    errors.InvalidSchema,
    errors.JavaMissing,
    errors.NoSuchOffset,
    errors.Unsound,
    errors.Untrusted,
)
_MISTAKES: Final = (AttributeError, ImportError, NameError, SyntaxError, TypeError)
_OURS: Final = re.compile(
    r"stafeta\.errors\.(\w+): (.+?)(?= SQLSTATE: |\n\s*at |\s*=== Streaming Query ===|\Z)", re.DOTALL
)
_CAUSED: Final = re.compile(r"^Caused by: ([\w.$]+): (.+)$", re.MULTILINE)
_RAISED: Final = re.compile(r"^([\w.]+(?:Error|Exception|Interrupt|Exit)): (.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_.]{5,})\] ")
_SENTENCE: Final = re.compile(r".+?(?= ?SQLSTATE: |\n|\Z)", re.DOTALL)
_WRAPPERS: Final = (
    "STREAM_FAILED",
    "FOREACH_BATCH_USER_FUNCTION_ERROR",
    "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
)
_STATE: Final = re.compile(r"SQLSTATE: (\w{5})")
_WHERE: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_FULL: Final = re.compile(r"No space left on device|database or disk is full|Disk quota exceeded")
_MOST: Final = 500  # characters of a sentence


class Failure(NamedTuple):
    sentence: str
    lasting: bool
    error: StafetaError | None = None
    """What it was, where it was one of ours."""


def failure_of(error: BaseException) -> Failure:
    """What a job that ended with this error failed of."""
    if isinstance(error, StafetaError):
        return Failure(str(error), isinstance(error, LASTING), error)
    text = str(error)
    if found := _ours(text):
        return found
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        return _of_spark(error, text)
    return Failure(_cut(f"{type(error).__name__}: {text}"), isinstance(error, _MISTAKES))


def naming_the_disk(failure: Failure, places: Mapping[str, str]) -> Failure:
    """The same, where a disk is full, with the one of these that has the least room."""
    room = {}
    for name, place in places.items():
        with suppress(OSError):
            if (folder := folder_of(place)) is not None:
                room[name] = shutil.disk_usage(folder).free
    if not room or not _FULL.search(failure.sentence):
        return failure
    least = min(room, key=lambda name: room[name])
    return failure._replace(
        sentence=f"A disk is full. Of those that the job writes to, the one with the least room is that of {least}, "
        f"{places[least]}, with {room[least] >> 10:,} KiB: make some. ({failure.sentence})"
    )


def _ours(text: str) -> Failure | None:
    """An error of ours in what Spark says of it."""
    for found in reversed(list(_OURS.finditer(text))):
        kind: Callable[..., object] | None = getattr(errors, found[1], None)
        if isinstance(kind, type) and issubclass(kind, StafetaError):
            sentence = " ".join(found[2].split())
            made = kind(sentence, 0) if issubclass(kind, errors.OutOfSequence) else kind(sentence)
            return Failure(sentence, isinstance(made, LASTING), made)
    return None


def _of_spark(error: BaseException, text: str) -> Failure:
    states = _STATE.findall(text)
    # Class 42 is a mistake in the query, 0A is what Spark does not have.
    lasting = type(error).__name__ in ("AnalysisException", "ParseException") or any(
        state.startswith(("42", "0A")) for state in states
    )
    conditions = [found.end() for found in _CONDITION.finditer(text) if found[1] not in _WRAPPERS]
    raised = _RAISED.findall(text.partition("=== Streaming Query ===")[0])
    if conditions and (found := _SENTENCE.match(text, conditions[-1])):
        sentence = found[0]
        where = _WHERE.search(text)
        if where:
            sentence = f"Line {where[1]}, position {where[2]}: {sentence}"
    elif caused := _CAUSED.findall(text):
        sentence = caused[-1][1]
    elif raised:
        sentence = f"{raised[-1][0].rpartition('.')[2]}: {raised[-1][1]}"
    else:
        sentence = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return Failure(_cut(sentence), lasting)


def _cut(sentence: str) -> str:
    sentence = " ".join(sentence.split())
    return sentence if len(sentence) <= _MOST else f"{sentence[: _MOST - 1]}…"
