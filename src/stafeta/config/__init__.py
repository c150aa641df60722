"""What a broker can be told, and how it is told: a TOML file, the environment, flags."""

from stafeta.config.forms import Address, Keep
from stafeta.config.options import Config, Limits, Store, TopicRule, ZeroMQ
from stafeta.config.sources import Setting, load

__all__ = ["Address", "Config", "Keep", "Limits", "Setting", "Store", "TopicRule", "ZeroMQ", "load"]
