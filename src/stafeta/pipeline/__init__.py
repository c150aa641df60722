"""Stafeta as a part of data pipelines: Spark reads topics and writes to them, jobs run on it, a lake keeps them."""

from typing import TYPE_CHECKING, Any

from stafeta.pipeline.job import Context, Job, job

if TYPE_CHECKING:
    from stafeta.pipeline.lake import Lake
    from stafeta.pipeline.view import messages, readings, register

__all__ = ["Context", "Job", "Lake", "job", "messages", "readings", "register"]

_PLACES = {"Lake": "lake", "messages": "view", "readings": "view", "register": "view"}


def __getattr__(name: str) -> Any:
    """What is asked for is imported then: PySpark and pyiceberg take their time."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
