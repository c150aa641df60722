"""`stafeta keys`: a key pair of CURVE."""

import argparse


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "keys",
        help="draw a key pair for the ZeroMQ door (CURVE)",
        description="Draws a key pair and writes NAME.key, which is its owner's alone, and NAME.pub, which may go "
        "anywhere; prints the public key. The broker's NAME.key is the option zeromq.curve_key; a client's public key "
        "goes into the users' file, as one of its user's curve_keys.",
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help="a name, or the path of a place for it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pathlib import Path

    from stafeta.cli import exits
    from stafeta.curve import write_pair

    print(write_pair(Path(options.name)).public)
    return exits.OK
