"""What a broker says of its topics and subscriptions."""

from typing import Any, NamedTuple


class TopicInfo(NamedTuple):
    """A topic of the broker: the lowest offset that it holds, and the one that the next message gets."""

    topic: str
    first: int
    next: int
    rows: int
    subscribers: int


class CursorInfo(NamedTuple):
    """How far a subscriber has come on a topic: everything below `floor` is acknowledged, and the ranges `above` it,
    each from, up to but not including. `first` and `next` are the topic's, as of the same instant."""

    topic: str
    floor: int
    above: tuple[tuple[int, int], ...]
    first: int
    next: int


class SubscriptionInfo(NamedTuple):
    """A durable subscription. The client is named as the broker knows it: `flight/<name>`, `devices/<id>`, …"""

    client: str
    filter: str
    cursors: tuple[CursorInfo, ...]


def topic_infos(results: list[dict[str, Any]]) -> list[TopicInfo]:
    return [TopicInfo(*(result[field] for field in TopicInfo._fields)) for result in results]


def subscription_infos(results: list[dict[str, Any]]) -> list[SubscriptionInfo]:
    return [
        SubscriptionInfo(
            result["client"],
            result["filter"],
            tuple(
                CursorInfo(
                    one["topic"],
                    one["floor"],
                    tuple((start, stop) for start, stop in one["above"]),
                    one["first"],
                    one["next"],
                )
                for one in result["cursors"]
            ),
        )
        for result in results
    ]


def floors(results: list[dict[str, Any]]) -> dict[str, int]:
    return {result["topic"]: result["floor"] for result in results}
