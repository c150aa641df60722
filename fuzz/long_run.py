"""One target under atheris, in a process of its own: libFuzzer takes the process over, and ends it.

python -m fuzz.long_run TARGET [options of libFuzzer …] FOLDER
"""

import sys
from pathlib import Path

import atheris


def main(name: str, *options: str) -> None:
    with atheris.instrument_imports(include=["stafeta"]):  # so that it sees which bytes lead somewhere new
        from fuzz.targets import TARGETS
    target = TARGETS[name]
    for number, seed in enumerate(target.seeds):
        Path(options[-1], f"seed-{number}").write_bytes(seed)
    atheris.Setup(["fuzz", *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
