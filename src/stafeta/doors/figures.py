"""What a door tells of its connections."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class DoorFigures(NamedTuple):
    door: str
    connections: int  # that there are now; at the Flight door streams
    accepted: int  # since the start
    rejected: Mapping[str, int]  # by reason: connections that were refused, or ended by the broker
    dropped: Mapping[str, int]  # by reason: messages or requests that did not go their way


class MeasuredDoor(Protocol):
    def figures(self) -> DoorFigures: ...
