"""The broker that is measured: a process of its own, with everything as it is by default."""

from pathlib import Path

from stafeta import testing
from stafeta.testing import BrokerFailed
from stafeta.testing.broker import plain_environment

__all__ = ["Broker", "BrokerFailed", "environment"]


class Broker(testing.Broker):
    """Of its doors that of ZeroMQ is open, and those that are named."""

    patience = 600.0

    def __init__(self, data: Path, *doors: str, durability: str = "fsync") -> None:
        super().__init__(
            data, "--durability", durability, doors=("zeromq", *doors), environment=environment()
        )


def environment() -> dict[str, str]:
    """That of a command that is measured: nothing configured, and compiled modules kept as they usually are."""
    return {name: value for name, value in plain_environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
