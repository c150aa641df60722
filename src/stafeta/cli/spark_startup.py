"""Runs in the shell of `stafeta spark --shell` once its session is there: these names are the user's."""

from stafeta.cli import spark_shell as _shell
from stafeta.cli.spark_shell import topics

_shell.behave_in_a_pipe()
messages = topics()
_shell.greet()
exec(_shell.own_startup())  # noqa: S102 - it is the user's own
