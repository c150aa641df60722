"""What the exit code of a command says. (docs/cli.md tells it to users.)"""

from stafeta.errors import (
    EXIT_FATAL,
    BackupError,
    ConfigError,
    JavaMissing,
    NoReply,
    StafetaError,
    StoreError,
)

OK = 0
REFUSED = 1
USAGE = 2
NOTHING = 3
UNREACHABLE = 4
DATA_FOLDER = 5
FATAL = EXIT_FATAL
OUTPUT = 74  # EX_IOERR of sysexits.h
INTERRUPTED = 130  # as shells say it: 128 and the number of SIGINT
BROKEN_PIPE = 141  # and of SIGPIPE

MEANINGS = {
    OK: "done",
    REFUSED: "refused, or failed; standard error says why",
    USAGE: "wrong usage or configuration",
    NOTHING: "there was nothing to get",
    UNREACHABLE: "the broker was not reached",
    DATA_FOLDER: "a folder cannot be used: locked, damaged, full or read-only",
    FATAL: "the broker could not go on",
    OUTPUT: "the output could not be written",
    INTERRUPTED: "interrupted",
    BROKEN_PIPE: "whoever read the output left",
}

_BY_ERROR: dict[type[StafetaError], int] = {
    ConfigError: USAGE,
    JavaMissing: USAGE,
    NoReply: UNREACHABLE,
    StoreError: DATA_FOLDER,
    BackupError: DATA_FOLDER,
}


def code_of(error: StafetaError) -> int:
    """The exit code of a command that ends with this error."""
    return next((code for kind, code in _BY_ERROR.items() if isinstance(error, kind)), REFUSED)
