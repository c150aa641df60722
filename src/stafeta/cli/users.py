"""`stafeta user`, `token` and `role`: who may come to a broker, and do what. They change the users' file."""

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from stafeta.cli import exits

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    _Parsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_VARIABLE = "STAFETA_SECURITY_USERS"
_DOORS = ("zeromq", "devices", "frames", "flight", "http")


def register(subparsers: "_Parsers") -> None:
    _register_user(_group(subparsers, "user", "who may come in, and do what"))
    _register_token(_group(subparsers, "token", "secrets by which programs come in"))
    _register_role(_group(subparsers, "role", "rules that several users share"))


def _group(subparsers: "_Parsers", name: str, text: str) -> "_Parsers":
    parser = subparsers.add_parser(
        name,
        help=text,
        description=f"Changes the users' file of a broker: {text}. The broker reads it at SIGHUP.",
        allow_abbrev=False,
    )
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def _command(
    commands: "_Parsers", name: str, text: str, run: "Callable[[argparse.Namespace], int]"
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
    )
    parser.add_argument(
        "--users",
        metavar="FILE",
        default=os.environ.get(_VARIABLE) or "users.toml",
        help=f"the users' file (${_VARIABLE}, else users.toml)",
    )
    parser.set_defaults(run=run)
    if name == "list":
        parser.add_argument("--json", action="store_true", help="print it as JSON")
    else:
        parser.add_argument("name", metavar="NAME")
    return parser


def _register_user(commands: "_Parsers") -> None:
    typed = "The password is read from the terminal, or is the first line of standard input."
    for name, text in (
        ("add", "add a user"),
        ("set", "change what a user may do, and leave the rest as it is"),
    ):
        parser = _command(commands, name, text, _run_add if name == "add" else _run_set)
        parser.add_argument(
            "--role", action="append", metavar="ROLE", help="a role that the user has (repeatable)"
        )
        _add_rules(parser)
        parser.add_argument(
            "--door", action="append", choices=_DOORS, help="come in there without credentials as it"
        )
        parser.add_argument(
            "--curve-key",
            action="append",
            metavar="KEY",
            help="a public key for the ZeroMQ door (repeatable)",
        )
        parser.add_argument("--pipeline", action="store_true", help="the user of the pipeline's jobs")
        parser.add_argument(
            "--plain-names", action="store_true", help="has the durable names from before there were users"
        )
        if name == "add":
            parser.description = f"Adds a user. {typed}"
            parser.add_argument("--no-password", action="store_true", help="it comes in by other means only")
    _command(
        commands, "passwd", "set a user's password", _run_passwd
    ).description = f"Sets a user's password. {typed}"
    _command(commands, "remove", "remove a user, and its tokens", _run_remove)
    _command(commands, "list", "list the users", _run_list)


def _register_token(commands: "_Parsers") -> None:
    create = _command(commands, "create", "make a token, and print it: it is shown only now", _run_create)
    create.add_argument("--user", required=True, metavar="USER", help="whose it is")
    create.add_argument("--expires", metavar="DURATION", help="after so long, such as 90d (never)")
    _command(commands, "revoke", "let a token be good no more", _run_revoke)
    _command(commands, "list", "list the tokens, and when they were used", _run_tokens)


def _register_role(commands: "_Parsers") -> None:
    _add_rules(_command(commands, "set", "add a role, or give it other rules", _run_role))
    _command(commands, "remove", "remove a role, which no user may have", _run_remove_role)
    _command(commands, "list", "list the roles", _run_roles)


def _add_rules(parser: argparse.ArgumentParser) -> None:
    for word in ("allow", "deny"):
        parser.add_argument(
            f"--{word}",
            action="append",
            metavar="RULE",
            help=f"{word} OPERATIONS on FILTER, such as 'consume news/#' (repeatable)",
        )


def _run_add(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import add_user

    add_user(options)
    return _said(options, f"User {options.name} was added.")


def _run_set(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import set_user

    set_user(options)
    return _said(options, f"User {options.name} was changed.")


def _run_passwd(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import set_password

    set_password(options)
    return _said(options, f"User {options.name} has a new password.")


def _run_remove(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import remove_user

    remove_user(options)
    return _said(options, f"User {options.name} was removed.")


def _run_list(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import user_rows

    return _listed(options, user_rows(options))


def _run_create(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import create_token

    print(create_token(options))
    return _said(options, f"This is the token {options.name}; it is shown only now.")


def _run_revoke(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import revoke_token

    revoke_token(options)
    return _said(options, f"Token {options.name} was revoked.")


def _run_tokens(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import token_rows

    return _listed(options, token_rows(options))


def _run_role(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import set_role

    set_role(options)
    return _said(options, f"Role {options.name} was set.")


def _run_remove_role(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import remove_role

    remove_role(options)
    return _said(options, f"Role {options.name} was removed.")


def _run_roles(options: argparse.Namespace) -> int:
    from stafeta.cli.users_file import role_rows

    return _listed(options, role_rows(options))


def _said(options: argparse.Namespace, sentence: str) -> int:
    print(f"{sentence} A broker that runs reads {options.users} at SIGHUP.", file=sys.stderr)
    return exits.OK


def _listed(options: argparse.Namespace, rows: list[dict[str, object]]) -> int:
    from stafeta.text_tables import lines

    if options.json:
        print(json.dumps(rows, ensure_ascii=False))
    elif rows:
        table = [
            [", ".join(cell) if isinstance(cell, list) else str(cell) for cell in row.values()]
            for row in rows
        ]
        heads = [name.upper().replace("_", " ") for name in rows[0]]
        print("\n".join(lines([heads, *table], "<" * len(heads))))
    return exits.OK
