"""What jobs keep beside Spark's own checkpoint, in a folder or at a URL: small files of JSON, each seen whole or not at
all."""

import json
import uuid
from contextlib import suppress
from typing import Any, Final

from pyarrow import fs

from stafeta.pipeline.lake.files import place

_IDENTITY: Final = "identity.json"


def identity(folder: str) -> str:
    """A name for whoever goes on from this checkpoint; a new one has a new name."""
    known = read(folder, _IDENTITY)
    if known is None:
        known = {"name": uuid.uuid4().hex}
        write(folder, _IDENTITY, known)
    return str(known["name"])


def read(folder: str, name: str) -> dict[str, Any] | None:
    """What was written under a name; None if nothing was."""
    system, path = place(folder)
    try:
        with system.open_input_stream(f"{path}/{name}") as stream:
            found: dict[str, Any] = json.loads(stream.read())
    except FileNotFoundError:
        return None
    return found


def write(folder: str, name: str, what: dict[str, Any]) -> None:
    """Writes something under a name, in place of what was there."""
    system, path = place(folder)
    system.create_dir(path, recursive=True)
    draft = f"{path}/.{name}.{uuid.uuid4().hex}"
    with system.open_output_stream(draft) as stream:
        stream.write(json.dumps(what).encode())
    system.move(draft, f"{path}/{name}")


def fresh(folder: str, keep: str) -> str:
    """A new folder in this one, for a checkpoint that begins anew. All others in it go, but for one."""
    system, path = place(folder)
    for one in system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        if one.base_name != keep:
            with suppress(OSError):  # a query that is being stopped still writes to it
                (system.delete_file if one.is_file else system.delete_dir)(one.path)
    return f"{folder}/{uuid.uuid4().hex}"


def remove(folder: str) -> None:
    """Removes a folder and all that is in it, if it is there."""
    system, path = place(folder)
    if system.get_file_info(path).type != fs.FileType.NotFound:
        system.delete_dir(path)
