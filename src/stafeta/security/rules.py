"""Rules: which operations are allowed, or denied, on the topics that a filter matches.

1. A rule is `OPERATIONS FILTER`, such as `publish,list sensors/#`. What one rule denies no other one allows.
2. Two levels of a filter are special: `%u` is the user's name, `%c` the client's id. They are compared with a topic's
   level and never written into a pattern, so that a client id `#` or `a/b` reaches nothing.
3. As in subscriptions, a filter that begins with a wildcard does not match names that begin with `$`; nor does one that
   begins with `%u` or `%c`.
4. `subscribe` includes `read`, since a subscription may begin with the earliest. So whoever is denied `read` is denied
   `subscribe`.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from stafeta.errors import ConfigError, InvalidName
from stafeta.names import check_filter, levels_of

PUBLISH: Final = 1
SUBSCRIBE: Final = 2
READ: Final = 4
ACKNOWLEDGE: Final = 8
LIST: Final = 16
ADMINISTER: Final = 32
EVERYTHING: Final = 63
VISIBLE: Final = SUBSCRIBE | READ | ACKNOWLEDGE | LIST  # what shows something of a topic

OPERATIONS: Final = {
    "publish": PUBLISH,
    "subscribe": SUBSCRIBE,
    "read": READ,
    "acknowledge": ACKNOWLEDGE,
    "list": LIST,
    "administer": ADMINISTER,
    "consume": VISIBLE,
    "all": EVERYTHING,
}
WORDS: Final = {bit: word for word, bit in OPERATIONS.items()}
BUDGET: Final = 2000  # steps of a comparison of filters, which may otherwise look at every rule

# The levels of a rule that are no text. No level of a topic is equal to one of these.
_ONE, _MANY, _USER, _CLIENT = 1, 2, 3, 4
_SPECIAL: Final = {"+": _ONE, "#": _MANY, "%u": _USER, "%c": _CLIENT}


class Rule(NamedTuple):
    operations: int
    filter: str

    @classmethod
    def read(cls, text: str) -> "Rule":
        """The rule, or `ConfigError`."""
        words, _, filter_ = text.partition(" ")
        filter_ = filter_.strip()
        operations = 0
        for word in words.split(","):
            if word not in OPERATIONS:
                raise ConfigError(
                    f"The rule {text!r} is not OPERATIONS FILTER: {word!r} is none of {', '.join(OPERATIONS)}."
                )
            operations |= OPERATIONS[word]
        try:
            check_filter(filter_)
        except InvalidName as error:
            raise ConfigError(f"The rule {text!r} is not OPERATIONS FILTER: {error}") from None
        for level in filter_.split("/"):
            if level not in _SPECIAL and ("%u" in level or "%c" in level):
                raise ConfigError(
                    f"In the rule {text!r} the level {level!r} mixes %u or %c with text; it must stand alone."
                )
        return cls(operations, filter_)

    def __str__(self) -> str:
        if self.operations in (EVERYTHING, VISIBLE):
            return f"{WORDS[self.operations]} {self.filter}"
        words = [word for bit, word in WORDS.items() if bit.bit_count() == 1 and self.operations & bit]
        return f"{','.join(words)} {self.filter}"


class _Node:
    __slots__ = ("allowed", "children", "denied")

    def __init__(self) -> None:
        self.children: dict[str | int, _Node] = {}
        self.allowed = 0
        self.denied = 0


class RuleTrie:
    """Rules in a trie over their levels: a decision costs what matches, not what there is."""

    def __init__(self, allow: Iterable[Rule] = (), deny: Iterable[Rule] = ()) -> None:
        self._root = _Node()
        self.names_client = False  # some rule has `%c`
        for operations, filter_ in allow:
            self._node(filter_).allowed |= operations | (READ if operations & SUBSCRIBE else 0)
        for operations, filter_ in deny:
            self._node(filter_).denied |= operations | (SUBSCRIBE if operations & READ else 0)

    def _node(self, filter_: str) -> _Node:
        node = self._root
        for level in levels_of(filter_):
            key = _SPECIAL.get(level, level)
            self.names_client |= key == _CLIENT
            node = node.children.setdefault(key, _Node())
        return node

    def decide(self, name: str, user: str, client: str) -> tuple[int, int]:
        """The operations that rules allow on a topic, and those that they deny."""
        return _sum(self._covering(name.split("/"), user, client))

    def covers(self, filter_: str, user: str, client: str) -> int:
        """The operations that are allowed on every topic of a filter by one rule."""
        return _sum(self._covering(levels_of(filter_), user, client))[0]

    def _covering(self, levels: list[str], user: str, client: str) -> Iterator[_Node]:
        """The nodes of rules that match a name, or all names that a filter matches."""
        count, own = len(levels), levels[0].startswith("$")
        seen: set[tuple[int, int]] = set()
        stack = [(self._root, 0)]
        while stack:
            node, at = stack.pop()
            if (id(node), at) in seen:
                continue
            seen.add((id(node), at))
            if at == count:
                yield node
            if at == 0 and own:
                level = levels[0]
                if level in node.children:
                    stack.append((node.children[level], 1))
                continue
            for key, child in _ways(node, levels[at] if at < count else None, user, client):
                if key == _MANY:
                    stack += [(child, next_) for next_ in range(at, count + 1)]
                elif at < count:
                    stack.append((child, at + 1))

    def meets(self, filter_: str, operation: int, user: str, client: str, *, denied: bool = False) -> bool:
        """Whether a rule that allows the operation (or denies it) and the filter match a name in common. True also
        where that takes too long to find out."""
        levels = levels_of(filter_)
        # A state: the node, whether it stands behind a `#`, the place in the filter, whether a level is behind them.
        stack = [(self._root, False, 0, False)]
        seen: set[tuple[int, int, bool]] = set()
        while stack:
            node, loops, at, begun = stack.pop()
            if (id(node), at, begun) in seen:
                continue
            if len(seen) >= BUDGET:
                return True
            seen.add((id(node), at, begun))
            if at == len(levels) and begun and (node.denied if denied else node.allowed) & operation:
                return True
            many = node.children.get(_MANY)
            if many is not None:
                stack.append((many, True, at, begun))
            if at == len(levels):
                continue
            level = levels[at]
            if level == "#":
                stack.append((node, loops, at + 1, begun))
            after = at if level == "#" else at + 1
            wild = level in ("#", "+")
            if loops and (begun or wild or not level.startswith("$")):
                stack.append((node, True, after, True))
            if not wild:
                stack += [
                    (child, False, after, True)
                    for key, child in _ways(node, level, user, client)
                    if key != _MANY
                    and (begun or not level.startswith("$") or _plain(self._root, node, at, key))
                ]
                continue
            for key, child in node.children.items():
                value = {_USER: user, _CLIENT: client}.get(key) if isinstance(key, int) else key
                nobody = key in (_USER, _CLIENT) and (not value or "/" in value)
                own = not begun and value is not None and value.startswith("$")
                if key != _MANY and not nobody and not own:
                    stack.append((child, False, after, True))
        return False


def _plain(root: _Node, node: _Node, at: int, key: str | int) -> bool:
    """Whether a first level that begins with `$` is meant as it is by rule and filter."""
    return node is root and at == 0 and isinstance(key, str)


def _ways(node: _Node, level: str | None, user: str, client: str) -> Iterator[tuple[str | int, _Node]]:
    """The children that a level leads to; None: only those that need no level. A wildcard of a filter leads only to
    one that matches as much."""
    for key, child in ((key, node.children.get(key)) for key in _keys(level, user, client)):
        if child is not None:
            yield key, child


def _keys(level: str | None, user: str, client: str) -> Iterator[str | int]:
    yield _MANY
    if level is None or level == "#":
        return
    yield _ONE
    if level == "+":
        return
    yield level
    if level and level == user:
        yield _USER
    if level and level == client:
        yield _CLIENT


def _sum(nodes: Iterable[_Node]) -> tuple[int, int]:
    allowed = denied = 0
    for node in nodes:
        allowed |= node.allowed
        denied |= node.denied
    return allowed, denied
