"""For tests of programs that use a broker. (docs/testing.md)

with Broker() as broker, stafeta.Client(broker.address) as client:
    client.put("sensors/kitchen", "21.5", create=True)
"""

from stafeta.testing.broker import DOORS, Broker, BrokerFailed
from stafeta.testing.memory import MemoryStore

__all__ = ["DOORS", "Broker", "BrokerFailed", "MemoryStore"]
