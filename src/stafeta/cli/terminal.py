"""Lines that a person types, with a history and completion."""

import readline
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

_HISTORY_LENGTH = 1000


def lines(
    prompt: str, history: Path, verbs: Sequence[str], topics: Callable[[], Sequence[str]]
) -> Iterator[str]:
    """Reads commands until the end of input: a verb, and then a topic."""
    complete = _Completer(verbs, topics).complete
    return (line for line in typed(lambda: input(prompt), history, complete, " ") if line is not None)


def typed(
    ask: Callable[[], str],
    history: Path,
    complete: Callable[[str, int], str | None],
    delimiters: str,
) -> Iterator[str | None]:
    """Reads lines until the end of input; None for one that was interrupted. The history outlives the program in a
    file. `complete` gives the completions of a word, which delimiters part from others."""
    readline.set_history_length(_HISTORY_LENGTH)
    with suppress(OSError):
        readline.read_history_file(history)
    readline.set_completer_delims(delimiters)
    readline.set_completer(complete)
    editline = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if editline else "tab: complete")
    try:
        while True:
            line: str | None = None
            try:
                line = ask()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
            yield line
    finally:
        with suppress(OSError):
            history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            readline.write_history_file(history)


class _Completer:
    def __init__(self, verbs: Sequence[str], topics: Callable[[], Sequence[str]]) -> None:
        self._verbs = verbs
        self._topics = topics
        self._found: list[str] = []

    def complete(self, begun: str, index: int) -> str | None:
        """The completion with this index, as readline asks for them: 0, 1, 2, … until there is none."""
        if index == 0:
            before = readline.get_line_buffer()[: readline.get_begidx()].split()
            if not before:
                self._found = [verb + " " for verb in self._verbs if verb.startswith(begun.upper())]
            elif len(before) == 1:
                self._found = [topic for topic in self._topics() if topic.startswith(begun)]
            else:
                self._found = []
        return self._found[index] if index < len(self._found) else None
