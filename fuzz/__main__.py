"""Runs targets for long, each in a process of its own, and tells how that went.

An input that breaks a promise is written to a file, with the command that runs it again; the exit code is then 1.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fuzz.target import Target
from fuzz.targets import TARGETS

CRASHES = Path("fuzz-crashes")
PATIENCE = 5  # seconds for one input: codecs take time in proportion to what they read
_SHOWN = 30  # lines of what went wrong

_DONE = re.compile(r"^Done (\d+) runs", re.MULTILINE)
_FOUND = re.compile(r"Test unit written to (\S+)")
_TRACE = re.compile(
    r"^Traceback.*?\n\n|ERROR: libFuzzer: (timeout|out-of-memory).*", re.MULTILINE | re.DOTALL
)


def main() -> int:
    options = arguments()
    chosen = [TARGETS[name] for name in options.targets or TARGETS]
    if options.input is not None:
        for target in chosen:
            target.run(options.input.read_bytes())
        return 0
    width = max(len(target.name) for target in chosen)
    results = [passes(target, options.runs, options.seed, width) for target in chosen]
    return 0 if all(results) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Feeds any bytes to every codec.")
    parser.add_argument(
        "targets", nargs="*", choices=[[], *TARGETS], metavar="TARGET", help=", ".join(TARGETS)
    )
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs for each target (1,000,000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="to have the same inputs again")
    parser.add_argument("--input", type=Path, help="run this file's bytes once, and nothing else")
    return parser.parse_args()


def passes(target: Target, runs: int, seed: int, width: int) -> bool:
    """Runs one target and prints a line on it."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stafeta-fuzz-") as folder:
        options = [f"-runs={runs}", f"-seed={seed}", f"-max_len={target.longest}", f"-timeout={PATIENCE}"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "fuzz.long_run",
                target.name,
                *options,
                f"-artifact_prefix={folder}/",
                folder,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            check=False,
        )
        count = _DONE.search(done.stdout)
        passed = done.returncode == 0 and count is not None
        result = f"{int(count[1]) if count else 0:>9,} runs" if passed else "BROKEN".rjust(14)
        print(f"{target.name:<{width}}  {result}  {time.monotonic() - begin:7.1f} s  seed {seed}", flush=True)
        if not passed:
            explain(target, done.stdout)
    return passed


def explain(target: Target, told: str) -> None:
    trace = _TRACE.search(told)
    lines = (trace[0] if trace else told).strip().splitlines()
    print("\n".join(f"    {line}" for line in lines[-_SHOWN:]))
    found = _FOUND.search(told)
    if found:
        CRASHES.mkdir(exist_ok=True)
        kept = CRASHES / f"{target.name}-{Path(found[1]).name}"
        shutil.copy(found[1], kept)
        print(f"    The input: {kept.read_bytes()!r}")
        print(f"    Again: {sys.executable} -m fuzz {target.name} --input {kept}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
