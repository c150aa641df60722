"""Filters in a trie over their levels: who subscribes to this name costs what the answer costs, not what is stored."""

from typing import Generic, TypeVar

from stafeta.broker.names import levels_of

V = TypeVar("V")


class _Node(Generic[V]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] = {}
        self.values: dict[V, None] = {}  # in the order they came, so that answers are repeatable


class Trie(Generic[V]):
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
