"""What jobs keep beside Spark's own checkpoint, in a folder or at a URL: small files of JSON, each seen whole or not at
all, and on the disk before anybody goes on."""

import json
import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from stafeta.pipeline import disk

if TYPE_CHECKING:
    from pyarrow import fs

_IDENTITY: Final = "identity.json"
_DURABLE: Final = "durable.json"


def identity(folder: str) -> str:
    """A name for whoever goes on from this checkpoint; a new one has a new name."""
    known = read(folder, _IDENTITY)
    if known is None:
        known = {"name": uuid.uuid4().hex}
        write(folder, _IDENTITY, known)
    return str(known["name"])


def durable_name(folder: str, job: str) -> str:
    """The name under which the broker holds what a job has not read, of those whose checkpoints are in this folder:
    another folder's jobs have other names. A job that has a checkpoint here from before this was so keeps the name that
    it had."""
    if read(folder, _DURABLE) is None:
        write_once(folder, _DURABLE, {"name": uuid.uuid4().hex[:16], "former": _begun(folder)})
    return known_durable_name(folder, job) or ""


def known_durable_name(folder: str, job: str) -> str | None:
    """The same, where it has been given; None where it has not."""
    known = read(folder, _DURABLE)
    if known is None:
        return None
    return f"pipeline/{job}" if job in known.get("former", ()) else f"pipeline/{job}/{known['name']}"


def _begun(folder: str) -> list[str]:
    """The jobs of which Spark has a checkpoint in a folder: of the job, or of its parts."""
    from pyarrow import fs

    system, path = _place(folder)
    selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
    try:
        found = system.get_file_info(selector)
    except FileNotFoundError:  # somebody has made the folder between two looks of PyArrow's
        found = system.get_file_info(selector)
    inside = (one.path.removeprefix(path).strip("/").split("/") for one in found)
    return sorted({parts[0] for parts in inside if "offsets" in parts[1:3]})


def read(folder: str, name: str) -> dict[str, Any] | None:
    """What was written under a name; None if nothing was."""
    text = content(folder, name)
    if text is None:
        return None
    found: dict[str, Any] = json.loads(text)
    return found


def content(folder: str, name: str) -> bytes | None:
    """The bytes of a file; None if there is none."""
    local = disk.folder_of(folder)
    try:
        if local is not None:
            return (local / name).read_bytes()
        system, path = _place(folder)
        with system.open_input_stream(f"{path}/{name}") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def write(folder: str, name: str, what: dict[str, Any]) -> None:
    """Writes something under a name, in place of what was there."""
    write_content(folder, name, json.dumps(what).encode())


def write_content(folder: str, name: str, data: bytes) -> None:
    """The same for bytes."""
    draft = f".{name}.{uuid.uuid4().hex}"
    local = disk.folder_of(folder)
    if local is not None:
        disk.write(local / name, data, draft)
        return
    system, path = _place(folder)
    system.create_dir(path, recursive=True)
    with system.open_output_stream(f"{path}/{draft}") as stream:
        stream.write(data)
    system.move(f"{path}/{draft}", f"{path}/{name}")


def write_once(folder: str, name: str, what: dict[str, Any]) -> None:
    """Writes something under a name, unless there is something: who comes first is right. (Not so at a URL that is no
    folder, where two that come at once may both have written.)"""
    local = disk.folder_of(folder)
    if local is None:
        if read(folder, name) is None:
            write(folder, name, what)
        return
    draft = f".{name}.{uuid.uuid4().hex}"
    write(folder, draft, what)
    with suppress(FileExistsError):
        os.link(local / draft, local / name)
    os.unlink(local / draft)
    disk.sync(local)


def link_content(folder: str, name: str, other: str) -> bool:
    """Gives a file the same name in another folder, too, without writing it again; false where that cannot be."""
    local, target = disk.folder_of(folder), disk.folder_of(other)
    if local is None or target is None:
        return False
    try:
        disk.link(local / name, target / name)
    except OSError:  # a file system without links
        return False
    return True


def fresh(folder: str, keep: str) -> str:
    """A new folder in this one, for a checkpoint that begins anew. All others in it go, but for one."""
    from pyarrow import fs

    system, path = _place(folder)
    for one in system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        if one.base_name != keep:
            with suppress(OSError):  # a query that is being stopped still writes to it
                (system.delete_file if one.is_file else system.delete_dir)(one.path)
    return f"{folder}/{uuid.uuid4().hex}"


def numbers(folder: str) -> list[int]:
    """The numbers that are names of files in a folder, or of folders."""
    from pyarrow import fs

    system, path = _place(folder)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(int(one.base_name) for one in found if one.base_name.isdecimal())


def exists(folder: str) -> bool:
    """Whether there is a folder."""
    from pyarrow import fs

    system, path = _place(folder)
    return system.get_file_info(path).type == fs.FileType.Directory


def remove(folder: str) -> None:
    """Removes a folder and all that is in it, if it is there."""
    system, path = _place(folder)
    with suppress(FileNotFoundError):
        system.delete_dir(path)


def _place(folder: str) -> "tuple[fs.FileSystem, str]":
    from stafeta.pipeline.lake.files import place  # which takes long, and not everybody needs

    return place(folder)
