"""Lets the Python processes that Spark forks begin with what each of them would import.

Spark forks a process for each task that runs at once, and for each plan, write and commit, from a daemon of their kind.
Each imports its module, and a task Arrow and ours too: half a second of a processor. Here the daemon does so, once.
Python imports a module of this name before anything else.
"""

import gc
import sys
from importlib import import_module

_OF_TASKS = (
    "stafeta.clients.flight.connection",
    "stafeta.pipeline.connector.batch_reader",
    "stafeta.pipeline.connector.reading",
    "stafeta.pipeline.connector.sink",
    "stafeta.pipeline.connector.staging",
    "stafeta.pipeline.connector.file_source",
)


def import_ahead(words: list[str]) -> None:
    """Imports what the children of a daemon need. `words` are its command line."""
    if words[1:3] != ["-m", "pyspark.daemon"]:
        return
    for name in words[3:]:
        import_module(name)
        for other in _OF_TASKS if name == "pyspark.worker" else ():
            import_module(other)
    gc.freeze()


import_ahead(sys.orig_argv)
