"""What a broker can be told, and how it is told: a TOML file, the environment, flags."""

from stafeta.addresses import Address
from stafeta.config.forms import Keep
from stafeta.config.options import (
    Alerts,
    Archive,
    Compact,
    Config,
    Deadletter,
    Lake,
    Limits,
    Pipeline,
    Rollup,
    Store,
    TopicRule,
    ZeroMQ,
)
from stafeta.config.sources import Setting, load

__all__ = [
    "Address",
    "Alerts",
    "Archive",
    "Compact",
    "Config",
    "Deadletter",
    "Keep",
    "Lake",
    "Limits",
    "Pipeline",
    "Rollup",
    "Setting",
    "Store",
    "TopicRule",
    "ZeroMQ",
    "load",
]
