"""`stafeta init`: what a broker on a network needs, in a folder."""

import argparse
from pathlib import Path

_DAYS = {"authority": "3650", "certificate": "825"}  # the longest that clients commonly take
_USER = "admin"


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "init",
        help="write what a broker on a network needs: configuration, certificates, a user",
        description="Writes a folder with a configuration, a certificate authority of its own with a certificate for "
        "the broker, keys for the ZeroMQ door, a first user who may do everything, with a token and a certificate. A "
        "folder that is there already is not touched. Certificates are made by the program openssl, 3.0 or newer.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="DIR", help="the folder, which is made")
    parser.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name or address that clients use for the broker, beside this machine's own (repeatable)",
    )
    parser.add_argument(
        "--user", metavar="NAME", default=_USER, help=f"what the first user is called ({_USER})"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    import os
    import shutil
    import tempfile

    from stafeta.addresses import read_host
    from stafeta.cli import exits
    from stafeta.errors import ConfigError
    from stafeta.security.users import check_name

    check_name(options.user)
    if options.user in ("ca", "broker"):
        raise ConfigError(
            f"The first user cannot be called {options.user}: the files of that name are others'."
        )
    hosts = [*map(read_host, options.host), os.uname().nodename, "localhost", "127.0.0.1", "::1"]
    folder = Path(options.folder).absolute()
    if folder.exists():
        raise ConfigError(f"{folder} is there already; it is not written over.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}.") from None
    try:
        _certificates(made, hosts, options.user)
        _keys_and_users(made, options.user)
        (made / "stafeta.toml").write_text(_configuration(folder), encoding="utf-8")
        made.rename(folder)  # all of it, or nothing
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    print(_NEXT.format(folder=folder, user=options.user, host=hosts[0]))
    return exits.OK


def _certificates(folder: Path, hosts: list[str], user: str) -> None:
    from stafeta.addresses import Address

    names = ",".join(f"{'DNS' if Address(host, 0).is_name else 'IP'}:{host}" for host in dict.fromkeys(hosts))
    authority = ("-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key"))
    ending = ("-addext", "basicConstraints=critical,CA:FALSE")
    _openssl(folder, "ca", "authority", "Stafeta authority", "-addext", "basicConstraints=critical,CA:TRUE")
    _openssl(
        folder,
        "broker",
        "certificate",
        "Stafeta certificate",
        *(*authority, *ending, "-addext", f"subjectAltName={names}"),
    )
    # For mutual TLS: without another name, this one is the user's.
    _openssl(folder, user, "certificate", user, *authority, *ending, "-addext", "extendedKeyUsage=clientAuth")


def _openssl(folder: Path, name: str, kind: str, subject: str, *more: str) -> None:
    import subprocess

    from stafeta.errors import ConfigError

    certificate = folder / f"{name}.pem"
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", _DAYS[kind], "-subj", f"/CN={subject}"),
        *("-out", str(certificate), "-keyout", str(folder / f"{name}.key"), *more),
    ]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, umask=0o077)
    except FileNotFoundError:
        raise ConfigError("The program openssl makes certificates, and is not there: install it.") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(f"openssl made no {kind}: {lines[0] if lines else 'it does not say why'}")
    certificate.chmod(0o644)


def _keys_and_users(folder: Path, name: str) -> None:
    import os

    from stafeta.curve import write_pair
    from stafeta.security import Token, User, Users
    from stafeta.security.rules import Rule
    from stafeta.security.security import new_token
    from stafeta.security.users import hash_token, now, save

    write_pair(folder / "broker-curve")
    key = write_pair(folder / f"{name}-curve").public
    token = new_token()
    descriptor = os.open(folder / f"{name}.token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    everything = tuple(map(Rule.read, ("all #", "all $sys/#")))
    users = {name: User(allow=everything, curve_keys=(key,))}
    save(folder / "users.toml", Users(users=users, tokens={name: Token(name, hash_token(token), now())}))


def _configuration(folder: Path) -> str:
    from stafeta.config.options import TLS_DOORS, Tables
    from stafeta.config.toml import write

    certificate: Tables = {"tls_cert": str(folder / "broker.pem"), "tls_key": str(folder / "broker.key")}
    tables: Tables = {
        "data": str(folder / "data"),
        "host": "127.0.0.1",
        "security": {"users": str(folder / "users.toml")},
        "zeromq": {"curve_key": str(folder / "broker-curve.key")},
        **{door: dict(certificate) for door in TLS_DOORS},
    }
    return write(tables)


_NEXT = """\
{folder} has what a broker needs. Now:

1. Start it:        stafeta serve --config {folder}/stafeta.toml
   It listens on 127.0.0.1; for a network, set host in the file.
2. Ask it:          stafeta topics --curve-server {folder}/broker-curve.pub --curve-key {folder}/{user}-curve.key
3. Read with Spark: stafeta sql --broker grpc+tls://{host}:8815 --ca {folder}/ca.pem \\
                    --token-file {folder}/{user}.token 'SELECT 1'
4. Add users:       stafeta user add NAME --users {folder}/users.toml --allow 'consume news/#'
   Devices and frames let nobody in until their doors have a user: stafeta user add NAME --door devices

   To have all clients of a door show certificates: set its tls_client_ca to {folder}/ca.pem; {user}.pem and
   {user}.key are the user's.

Clients get ca.pem and broker-curve.pub. Keep ca.key somewhere else: whoever has it can be the broker."""
