"""The configuration: a file or an assignment is read, or a `ConfigError` says what is wrong with it.

What was read, written out again, is read as the same.
"""

import atexit
from pathlib import Path
from tempfile import NamedTemporaryFile

from fuzz.target import Target
from stafeta.config import Config, load
from stafeta.config.sources import build, from_assignment
from stafeta.errors import ConfigError


def files(data: bytes) -> None:
    config = _loaded(data)
    if config is not None:
        assert _loaded(config.to_toml().encode(errors="surrogateescape")) == config


def assignments(data: bytes) -> None:
    try:
        build([from_assignment(data.decode(errors="surrogateescape"), "--set")])
    except ConfigError as error:
        str(error).encode(errors="surrogateescape")


def _loaded(text: bytes) -> Config | None:
    path = _file()
    path.write_bytes(text)
    try:
        return load(path, environment={})
    except ConfigError as error:
        str(error).encode(errors="surrogateescape")
        return None


def _file() -> Path:
    if not _made:
        with NamedTemporaryFile(prefix="stafeta-fuzz-", suffix=".toml", delete=False) as file:
            _made.append(Path(file.name))
        atexit.register(_made[0].unlink, missing_ok=True)
    return _made[0]


_made: list[Path] = []

TARGETS = [
    Target(
        "config.files",
        files,
        [
            b'[zeromq]\nlisten = ["127.0.0.2:9001", 9002, "[::1]:0"]\n[topics."a/#"]\nkeep = ["7d", "10GB"]',
            b'host = "::1"\n[store]\nsweep = "500ms"\n[topics.news]\nkeep = "10 messages"',
            b'data = "~nobody-has-this-name/x"',
            b"data = " + b"[" * 2000,  # far longer than the inputs that follow from it
            b'allow_anyone = true\nlog_format = "json"\n[devices]\nlisten = "off"',
        ],
        300,
    ),
    Target(
        "config.assignments",
        assignments,
        [
            b"durability=os",
            b"zeromq.max_frame = 32MiB",
            b'topics."a.b/#".keep=7d,1GB',
            b"frames.listen=0,off",
            b"topics..keep=1",
            b"frames.listen=y:\x1f1",
        ],
    ),
]
