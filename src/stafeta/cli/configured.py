"""The flags that several commands have: of their configuration, and of Spark."""

import argparse
from typing import TYPE_CHECKING

from stafeta.cli import credentials

if TYPE_CHECKING:
    from stafeta.config import Config


def add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="read options from a TOML file (STAFETA_CONFIG)")


def add_assignments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        metavar="SECTION.OPTION=VALUE",
        action="append",
        default=[],
        help="set any option (repeatable)",
    )


def add_configuration(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    add_assignments(parser)
    parser.add_argument(
        "--broker", metavar="ADDRESS", help="where the broker's Flight door is (pipeline.broker)"
    )
    credentials.add_flight(parser)


def add_spark(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--master", metavar="URL", help="where Spark runs (local[*])")
    where.add_argument("--remote", metavar="URL", help="a Spark Connect server: sc://HOST:PORT")
    parser.add_argument(
        "--conf", metavar="NAME=VALUE", action="append", default=[], help="a setting of Spark's (repeatable)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="let Spark's log onto standard error")


def add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--own",
        action="store_true",
        help="start a Spark of its own, also if a pipeline runs whose Spark can be asked",
    )


def configuration(options: argparse.Namespace) -> "Config":
    """What `--config`, the environment, `--set` and `--broker` make together."""
    from stafeta.addresses import read_flight
    from stafeta.config import Setting, load
    from stafeta.config.sources import from_assignment
    from stafeta.errors import ConfigError

    settings = [from_assignment(text, "--set") for text in options.set]
    if options.broker is not None:
        try:
            settings.append(Setting(("pipeline", "broker"), read_flight(options.broker), "--broker"))
        except ConfigError as error:
            raise ConfigError(f"--broker: {error}") from None
    return load(options.config, settings)


def spark_settings(options: argparse.Namespace) -> dict[str, str]:
    """What `--conf` sets."""
    from stafeta.errors import ConfigError

    chosen = {}
    for one in options.conf:
        name, equals, value = one.partition("=")
        if not equals or not name.startswith("spark."):
            raise ConfigError(f"--conf {one}: write it as spark.NAME=VALUE, such as spark.driver.memory=2g.")
        chosen[name] = value
    return chosen
