"""The rules: topics, filters, subscriptions, producers, retention, the commit loop. No sockets, no SQL."""

from stafeta.broker.broker import Broker
from stafeta.broker.commits import DOOR_SHARE
from stafeta.broker.gate import Gate, Verbs
from stafeta.broker.topic import Retention, Subscription, Topic
from stafeta.config.options import Limits

__all__ = ["DOOR_SHARE", "Broker", "Gate", "Limits", "Retention", "Subscription", "Topic", "Verbs"]
