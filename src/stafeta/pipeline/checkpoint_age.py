"""Whether a job's checkpoint is as new as what the broker knows of the job. One that was put back from a copy is not;
and a broker that does not know the job at all is another one.

1. What a job has acknowledged, its checkpoint has planned, and done: that is on the disk before. Where the broker knows
   of more, a later state of the checkpoint did that, or a copy of it: going on from here would do it a second time, in
   other micro-batches. (The last one that is planned is done again as it was.)
2. The broker holds what a job reads from before its first micro-batch on. Offsets of another broker's log would lead to
   other messages, or past them.
"""

from collections.abc import Sequence

from stafeta.errors import DataLoss, Unsound
from stafeta.names import FLIGHT_PREFIX
from stafeta.pipeline import spark_log
from stafeta.ranges import without


def check_age(address: str, name: str, filters: Sequence[str], folder: str) -> None:
    """Raises where the checkpoint in a folder is not the newest of the job that reads under this durable name."""
    from stafeta import connect

    with connect(address) as broker:
        known = [one for one in broker.subscriptions() if one.client == FLIGHT_PREFIX + name]
        ends = spark_log.last_ends(folder)  # after what was acknowledged: the job may be running
        if ends is None:
            return
        if not known:
            raise DataLoss(
                f"The broker at {address} does not know {name}, under which the checkpoint {folder} was made: that is "
                "of another broker, or of data that it has no more, or the subscription was ended. Name the broker "
                "that it is of, or put back its data; or remove the checkpoint, and the job begins anew with all that "
                "this broker has."
            )
        cursors = sorted((one.topic, one.floor) for subscription in known for one in subscription.cursors)
        floors = dict(cursors)  # the highest, where several filters match a topic
        ahead = {topic: floor for topic, floor in floors.items() if floor > ends.get(topic, floor)}
        if not ahead:
            return
        topics = {topic.topic: topic.skipped for one in filters for topic in broker.topics(one)}
    for topic, floor in sorted(ahead.items()):
        if without([(ends[topic], floor)], topics.get(topic, ())):
            raise Unsound(
                f"The checkpoint {folder} is older than what its job has done: it ends with message "
                f"{ends[topic] - 1:,} of topic {topic!r}, and {name} has acknowledged {floor - 1:,}. It was put back "
                "from a copy, or a copy of it was gone on with. Put back the newest; or remove it, and the job begins "
                "anew with what comes."
            )
