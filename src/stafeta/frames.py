"""Queues at a broker's frames door, in three serializers.

from stafeta.frames import JSONQueue

with JSONQueue("/weather") as queue:
    topic, value = queue.pull()
"""

from stafeta.clients.frames import JSONQueue, PickleQueue, Queue, Role, XMLQueue

__all__ = ["JSONQueue", "PickleQueue", "Queue", "Role", "XMLQueue"]
