"""Whether durable subscriptions stand where they can.

1. What a subscriber waits for is in the log: its floor is neither above the topic's end nor below what is held.
2. What it has acknowledged above the floor is in order, apart, and there.
3. The broker tells its place on each topic that its filter matches, and on no other.
4. The archive has acknowledged only what is archived.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from stafeta.names import matcher
from stafeta.pipeline.jobs.auditing.findings import Finding, Ranges
from stafeta.ranges import without

if TYPE_CHECKING:
    from stafeta.clients.flight.connection import CursorInfo, SubscriptionInfo

CHECK: Final = "cursors"
Archived = Mapping[str, Sequence[tuple[int, int]]]


def standing(
    subscriptions: "Iterable[SubscriptionInfo]",
    archived: Archived,
    archive: str,
    wanted: Callable[[str], bool],
) -> list[Finding]:
    """Rules 1, 2 and 4, on topics that are wanted. `archived`, with what is known to be absent, is at least as new as
    the subscriptions; `archive` is the client that holds what is not archived."""
    found = []
    for subscription in subscriptions:
        for cursor in subscription.cursors:
            if wanted(cursor.topic):
                found += _cursor(subscription, cursor)
                if subscription.client == archive:
                    found += _ahead(subscription, cursor, archived.get(cursor.topic, ()))
    return found


def covering(
    before: Collection[str],
    subscriptions: "Iterable[SubscriptionInfo]",
    after: Collection[str],
    wanted: Callable[[str], bool],
) -> list[Finding]:
    """Rule 3, with the topics that were there before and after the subscriptions were listed. What is found may have
    come or gone just then: it is a fault if it is found again."""
    found = []
    lasting = {topic for topic in before if topic in after and wanted(topic)}
    for subscription in subscriptions:
        matches = matcher(subscription.filter)
        there = {cursor.topic for cursor in subscription.cursors if wanted(cursor.topic)}
        uncovered = sorted(topic for topic in lasting - there if matches(topic))
        found += [_finding(subscription, topic, "has no cursor", ()) for topic in uncovered]
        for topic in sorted(there):
            if topic not in before and topic not in after:
                found.append(_finding(subscription, topic, "has a cursor on a topic that there is not", ()))
            elif not matches(topic):
                found.append(
                    _finding(subscription, topic, "has a cursor on what its filter does not match", ())
                )
    return found


def _cursor(subscription: "SubscriptionInfo", cursor: "CursorInfo") -> list[Finding]:
    topic, floor, above, first, end = cursor
    found = []
    if floor > end:
        found.append(_finding(subscription, topic, "stands beyond the log's end", ((end, floor),)))
    elif floor < first:
        found.append(_finding(subscription, topic, "waits for what the log has no more", ((floor, first),)))
    low = floor
    for start, stop in above:
        # The first may not begin at the floor, nor any at the end of the one before: they would have been joined.
        if not low < start < stop <= end:
            found.append(_finding(subscription, topic, "has acknowledged what cannot be", ((start, stop),)))
        low = max(low, stop)
    return found


def _ahead(
    subscription: "SubscriptionInfo", cursor: "CursorInfo", archived: Sequence[tuple[int, int]]
) -> list[Finding]:
    if not 1 < cursor.floor <= cursor.next:
        return []
    ahead = tuple(without([(1, cursor.floor)], archived))
    return [_finding(subscription, cursor.topic, "is done with what is not archived", ahead)] if ahead else []


def _finding(subscription: "SubscriptionInfo", topic: str, what: str, ranges: Ranges) -> Finding:
    who = f"{subscription.client} on {subscription.filter}"
    return Finding(CHECK, topic, f"{who} {what}", ranges, sum(abs(stop - start) for start, stop in ranges))
