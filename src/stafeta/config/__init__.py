"""The configuration of a broker and of the pipeline, from a TOML file, the environment and flags."""

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
    Security,
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
    "Security",
    "Setting",
    "Store",
    "TopicRule",
    "ZeroMQ",
    "load",
]
