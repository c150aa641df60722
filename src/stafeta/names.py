"""Topic names, filters and client ids.

1. A name is 1 to 255 bytes of UTF-8 without white space or control characters; levels are separated by `/`.
2. A name that is published to has no `+`, `#` or `*` in it.
3. In a filter a level that is `+` stands for any one level, and `#` or `*` for any number of levels, none included.
4. A filter that begins with a wildcard does not match names that begin with `$`. Those that begin with `$sys/` are the
   broker's own, and only what is below `$sys/pipeline/` is written from outside, by the pipeline.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import takewhile

from stafeta.errors import InvalidClient, InvalidName

MAX_BYTES = 255
MAX_LEVELS = 64
MAX_OPEN = 4  # levels of a filter that stand for any number
RESERVED = "$sys/"  # what names of the broker's own topics begin with
PIPELINE = "$sys/pipeline/"  # and those of the pipeline's
# What a door puts before the names of its clients and producers, so that those of two doors never meet. A ZeroMQ client
# has none, and is refused a name that begins with one of these.
DEVICES_PREFIX = "devices/"
FRAMES_PREFIX = "frames/"  # its connections, which have numbers
FLIGHT_PREFIX = "flight/"
FLIGHT_STREAM_PREFIX = "flights/"  # its streams without a client, which have numbers
HTTP_PREFIX = "http/"
HTTP_STREAM_PREFIX = "http-stream/"  # its streams without a client, which have numbers
HTTP_KEY_PREFIX = "http-key/"  # producers: what is published with an idempotency key
WATCH_PREFIX = "watch/"  # ZeroMQ clients that watch
COUNTER_PREFIX = "counter/"  # ZeroMQ clients, as producers that draw their counters
# What stands before all of that where users are configured: `users/<user>/`. So a name is its user's, also after a
# restart, and nobody can say another's.
USERS_PREFIX = "users/"
PREFIXES = (
    USERS_PREFIX,
    DEVICES_PREFIX,
    FRAMES_PREFIX,
    FLIGHT_PREFIX,
    FLIGHT_STREAM_PREFIX,
    HTTP_PREFIX,
    HTTP_STREAM_PREFIX,
    HTTP_KEY_PREFIX,
    WATCH_PREFIX,
    COUNTER_PREFIX,
)

_FORBIDDEN = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_WILDCARD = re.compile(r"[+#*]")


def is_filter(name: str) -> bool:
    return _WILDCARD.search(name) is not None


def check_name(name: str) -> None:
    """Raise `InvalidName` where nothing can be published under this name."""
    check_filter(name)
    found = _WILDCARD.search(name)
    if found:
        raise InvalidName(
            f"The topic {name!r} has {found[0]!r} in it, which only a subscription's filter may have."
        )


def check_filter(name: str) -> None:
    """Raise `InvalidName` where nobody can subscribe to this."""
    _check(name, "topic")
    levels = name.split("/")
    if len(levels) > MAX_LEVELS:
        raise InvalidName(f"The topic {name!r} has {len(levels)} levels; at most {MAX_LEVELS} are allowed.")
    if levels.count("#") + levels.count("*") > MAX_OPEN:
        raise InvalidName(f"The filter {name!r} has more than {MAX_OPEN} levels that are '#' or '*'.")
    for level in levels:
        if len(level) > 1 and _WILDCARD.search(level):
            raise InvalidName(
                f"In {name!r} the level {level!r} mixes a wildcard with text; it must stand alone."
            )


def reserved(name: str) -> InvalidName:
    return InvalidName(f"The topic {name!r} is the broker's own; nobody else publishes to it.")


def check_producer(name: str) -> None:
    """Raise `InvalidClient` where the name of a producer, as the broker has it, is not allowed."""
    check_client(name.removeprefix(COUNTER_PREFIX).removeprefix(FLIGHT_PREFIX))


def owned(user: str, name: str) -> str:
    """What a client or producer of a user is called at the broker."""
    return f"{USERS_PREFIX}{user}/{name}"


def owner_of(name: str) -> tuple[str, str]:
    """The user to whom a client's name belongs, and the rest of it; no user where it has none."""
    if not name.startswith(USERS_PREFIX):
        return "", name
    user, _, rest = name.removeprefix(USERS_PREFIX).partition("/")
    return user, rest


def client_of(name: str) -> str:
    """The id by which a client calls itself, of the name that it has at the broker; none where its door counts."""
    rest = owner_of(name.removeprefix(COUNTER_PREFIX))[1]
    if rest.startswith((FRAMES_PREFIX, FLIGHT_STREAM_PREFIX, HTTP_STREAM_PREFIX, HTTP_KEY_PREFIX)):
        return ""
    return next((rest.removeprefix(prefix) for prefix in PREFIXES if rest.startswith(prefix)), rest)


def check_client(client: str) -> None:
    try:
        _check(client, "client id")
    except InvalidName as error:
        raise InvalidClient(str(error)) from None


def _check(name: str, what: str) -> None:
    if not name:
        raise InvalidName(f"The {what} is empty.")
    found = _FORBIDDEN.search(name)
    if found and len(name) <= MAX_BYTES:
        kind = "white space" if found[0].isspace() else "a control character"
        raise InvalidName(f"The {what} {name!r} has {kind} in it, at position {found.start() + 1}.")
    size = len(name.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise InvalidName(f"The {what} {name[:20]!r}… is {size} bytes long; at most {MAX_BYTES} are allowed.")


def filters_of(text: str) -> list[str]:
    """The filters of a text that has commas between them."""
    return [one.strip() for one in text.split(",")]


def levels_of(filter_: str) -> list[str]:
    """The levels of a name or filter, with one sign for each wildcard."""
    return ["#" if level == "*" else level for level in filter_.split("/")]


def prefix_of(filter_: str) -> str:
    """What every name begins with that matches the filter: its levels before the first wildcard."""
    return "/".join(takewhile(lambda level: level not in ("+", "#"), levels_of(filter_)))


def pattern_of(filter_: str) -> str:
    """The filter as a regular expression, of Python's and Java's, of names with a `/` put before them.

    What stands between two `#` is looked for once, from the left, and never again elsewhere (an atomic group): if it
    can be matched at all it can be there. So a name costs its length times the filter's.
    """
    any_levels = "(?:/[^/]*)*"
    first, *rest = _between_open(levels_of(filter_))
    pattern = "(?!/[$])" if filter_[0] in "+#*" else ""
    pattern += _fixed(first)
    for levels in rest[:-1]:
        pattern += f"(?>{any_levels}?{_fixed(levels)}(?![^/]))" if levels else ""
    return pattern + (any_levels + _fixed(rest[-1]) if rest else "")


def _between_open(levels: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for level in levels:
        if level == "#":
            parts.append([])
        else:
            parts[-1].append(level)
    return parts


def _fixed(levels: list[str]) -> str:
    return "".join("/[^/]*" if level == "+" else "/" + re.escape(level) for level in levels)


@lru_cache(1000)
def matcher(filter_: str) -> Callable[[str], bool]:
    """A test of whether a name matches the filter."""
    pattern = re.compile(pattern_of(filter_))

    def matches(name: str) -> bool:
        return pattern.fullmatch("/" + name) is not None

    return matches
