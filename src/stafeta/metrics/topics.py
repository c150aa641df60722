"""Metrics of single topics, for whoever asks for them by a filter."""

import asyncio
from typing import NamedTuple

from stafeta.broker import Broker


class TopicLine(NamedTuple):
    name: str
    published: int  # messages, ever
    stored: int
    subscriptions: int


class TopicFigures(NamedTuple):
    lines: list[TopicLine]
    left_out: int


async def of(broker: Broker, filter_: str, limit: int) -> TopicFigures:
    """Those that match, in the order of their names. Raises `InvalidName` for what is no filter."""
    found = await broker.listed(filter_)
    lines: list[TopicLine] = []
    for topic in found[:limit]:
        subscriptions = broker.subscribed_to(topic)
        stored = topic.messages(topic.first, topic.visible)
        lines.append(TopicLine(topic.name, topic.published, stored, subscriptions))
        await asyncio.sleep(0)  # there may be many of them
    return TopicFigures(lines, len(found) - len(lines))
