"""Certificates for tests, made by the openssl command."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    """Signs certificates; its own is `roots`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.name = name
        self.roots, self._key = _made(folder, name, "-addext", "basicConstraints=critical,CA:TRUE")

    def pair(self, name: str, hosts: str = "", subject: str = "") -> Pair:
        """A certificate for hosts (`DNS:broker.example,IP:127.0.0.1`), or for a client, and its key. The subject is its
        name, unless another is given (`/O=somebody`)."""
        return _made(
            self._folder,
            name,
            *("-CA", str(self.roots), "-CAkey", str(self._key)),
            *(("-addext", f"subjectAltName={hosts}") if hosts else ()),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *(("-subj", subject) if subject else ()),
        )


def _made(folder: Path, name: str, *options: str) -> Pair:
    found = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *(
                "-days",
                "2",
                "-subj",
                f"/CN={name}",
                "-out",
                str(found.certificate),
                "-keyout",
                str(found.key),
            ),
            *options,
        ],
        check=True,
        capture_output=True,
    )
    return found
