"""Keys of CURVE, with which ZeroMQ encrypts and knows its peers: the files that `stafeta keys` writes.

1. A key pair is two files, in the form that ZeroMQ's own tools have: NAME.key has both keys and is its owner's alone,
   NAME.pub has the public one and may go anywhere.
2. A secret key is read from a file only, which nobody else can read: what is in a flag or a variable shows in the list
   of processes.
"""

import os
import re
import stat
from pathlib import Path
from typing import Final, NamedTuple

from stafeta.errors import ConfigError

_KEY: Final = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_LINE: Final = re.compile(r'^\s*(public|secret)-key\s*=\s*"([^"]*)"\s*$', re.MULTILINE)
_LONGEST: Final = 64 << 10  # bytes of a file
_PUBLIC: Final = "#   A public key of CURVE, which may go anywhere. Written by stafeta keys.\n"
_OWN: Final = "#   A secret key of CURVE: keep it, and give it to nobody. Written by stafeta keys.\n"


class KeyPair(NamedTuple):
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def new_pair() -> KeyPair:
    import zmq

    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def write_pair(place: Path) -> KeyPair:
    """Draws keys, and writes PLACE.key and PLACE.pub. Raises `ConfigError` where one of them is there already."""
    pair = new_pair()
    public = f'metadata\ncurve\n    public-key = "{pair.public}"\n'
    _write(_beside(place, ".key"), 0o600, f'{_OWN}{public}    secret-key = "{pair.secret}"\n')
    _write(_beside(place, ".pub"), 0o644, _PUBLIC + public)
    return pair


def read_pair(path: str | Path) -> KeyPair:
    """The keys in a file NAME.key. Raises `ConfigError`, also where others may read it."""
    found = _read(Path(path), secret=True)
    if "secret" not in found or "public" not in found:
        raise ConfigError(f"{path} is no secret key of CURVE; stafeta keys NAME writes one, NAME.key.")
    return KeyPair(found["public"], found["secret"])


def public_key(text: str | Path) -> str:
    """A public key: as it is, or the one in a file NAME.pub. Raises `ConfigError`."""
    if isinstance(text, str) and _KEY.fullmatch(text):
        return text
    found = _read(Path(text), secret=False).get("public")
    if found is None:
        raise ConfigError(f"{str(text)!r:.200} is no public key of CURVE, and no file with one (NAME.pub).")
    return found


def _beside(place: Path, ending: str) -> Path:
    return place.with_name(place.name + ending)


def _write(path: Path, mode: int, text: str) -> None:
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} is there already; it is not written over.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None


def _read(path: Path, *, secret: bool) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            if secret and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ConfigError(f"The key {path} is open to others than its owner: chmod 600 {path}")
            text = file.read(_LONGEST).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(f"The key {path} cannot be read: {error.strerror}.") from None
    return {kind: key for kind, key in _LINE.findall(text) if _KEY.fullmatch(key)}
