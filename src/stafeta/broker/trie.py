"""Filters and names in tries over their levels: what matches costs what the answer costs, not what is stored."""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from stafeta.names import levels_of

V = TypeVar("V")


class _Node(Generic[V]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] = {}
        self.values: dict[V, None] = {}  # in the order they came, so that answers are repeatable


class FilterTrie(Generic[V]):
    def __init__(self) -> None:
        self._root: _Node[V] = _Node()

    def add(self, path: str, value: V) -> None:
        node = self._root
        for level in levels_of(path):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.values[value] = None

    def discard(self, path: str, value: V) -> None:
        node = self._root
        way: list[tuple[_Node[V], str]] = []
        for level in levels_of(path):
            child = node.children.get(level)
            if child is None:
                return
            way.append((node, level))
            node = child
        node.values.pop(value, None)
        for parent, level in reversed(way):
            child = parent.children[level]
            if child.values or child.children:
                break
            del parent.children[level]

    def matching(self, name: str) -> list[V]:
        """The values of every stored filter that matches the name."""
        levels = name.split("/")
        found: dict[V, None] = {}
        # Filters with several `#` reach the same node by many ways; each is walked once.
        seen: set[tuple[int, int]] = set()
        stack = [(self._root, 0)]
        while stack:
            node, at = stack.pop()
            if (id(node), at) in seen:
                continue
            seen.add((id(node), at))
            wild = not (at == 0 and name.startswith("$"))
            many = node.children.get("#") if wild else None
            if many is not None:
                stack += [(many, next_) for next_ in range(at, len(levels) + 1)]
            if at == len(levels):
                found.update(node.values)
                continue
            exact = node.children.get(levels[at])
            if exact is not None:
                stack.append((exact, at + 1))
            one = node.children.get("+") if wild else None
            if one is not None:
                stack.append((one, at + 1))
        return list(found)


class NameTrie(Generic[V]):
    """Names in a trie: which of them does this filter match.

    A level is a dictionary of the levels below it; where nothing is below, the value itself, since there are many.
    """

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}

    def add(self, name: str, value: V) -> None:
        *way, last = name.split("/")
        node = self._root
        for level in way:
            child = node.get(level)
            if not isinstance(child, dict):
                child = node[level] = {} if child is None else {_HERE: child}
            node = child
        if isinstance(node.get(last), dict):
            node[last][_HERE] = value
        else:
            node[last] = value

    def discard(self, name: str) -> None:
        node = self._root
        way: list[tuple[dict[str, Any], str]] = []
        for level in name.split("/"):
            way.append((node, level))
            node = node[level] if isinstance(node.get(level), dict) else {}
        parent, last = way.pop()
        if isinstance(parent.get(last), dict):
            parent[last].pop(_HERE, None)
            if parent[last]:
                return
        parent.pop(last, None)
        for above, level in reversed(way):
            if above.get(level):
                break
            above.pop(level, None)

    def matching(self, filter_: str) -> list[V]:
        return [value for value in self.each(filter_) if value is not None]

    def each(self, filter_: str) -> Iterator[V | None]:
        """What a filter matches, each once, and None for each step between. Names may come and go meanwhile: of those
        it is not said which are found."""
        levels = levels_of(filter_)
        # So many have to be there; those behind them match nothing as well.
        needed = max([number for number, level in enumerate(levels, 1) if level != "#"], default=0)
        found: set[V | None] = {None}
        # What was seen is kept, or something else might get its id.
        seen: dict[tuple[int, int], Any] = {}
        stack: list[tuple[Any, int, Iterator[str] | None]] = [(self._root, 0, None)]
        while stack:
            node, at, rest = stack.pop()
            if not isinstance(node, dict) or at == len(levels):
                value = node.get(_HERE) if isinstance(node, dict) else node
                if at < needed or value in found:
                    value = None
                yield value
                found.add(value)
                continue
            wild = levels[at] in ("#", "+")
            if rest is None:
                if (id(node), at) in seen:
                    yield None
                    continue
                seen[id(node), at] = node
                if not wild:
                    hidden = node is self._root and at > 0 and levels[at].startswith("$")
                    if levels[at] in node and not hidden:
                        stack.append((node[levels[at]], at + 1, None))
                    else:
                        yield None
                    continue
                if levels[at] == "#":
                    stack.append((node, at + 1, None))
                rest = iter(list(node))
            level = next(rest, _END)
            if level is _END:
                continue
            stack.append((node, at, rest))
            child = (
                None if level is _HERE or (node is self._root and level.startswith("$")) else node.get(level)
            )
            if child is None:
                yield None
            else:
                stack.append((child, at if levels[at] == "#" else at + 1, None))


_HERE: Any = None  # the key under which a level with others below it has its own value
_END: Any = object()  # after the last level
