"""`stafeta shell`: commands one after the other, from a person or a pipe."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from stafeta.cli import connection, exits
from stafeta.cli.handover import Handover
from stafeta.cli.messages import subscribed, text_or_bytes, unsubscribed
from stafeta.cli.rendering import message_line, say, topic_lines, write
from stafeta.errors import StafetaError

if TYPE_CHECKING:
    from stafeta.clients.zeromq.client import Client

_PROMPT = "stafeta> "
_HELP = {
    "GET": "GET TOPIC (print the next message of a subscription and acknowledge it)",
    "PUT": "PUT TOPIC DATA (put a message, the rest of the line, on a topic)",
    "SUB": "SUB TOPIC (subscribe to a topic or filter)",
    "UNSUB": "UNSUB TOPIC (end a subscription)",
    "TOPICS": "TOPICS [FILTER] (list topics)",
    "HELP": "HELP (list the commands)",
    "EXIT": "EXIT (leave)",
}
_COMPLETION_TIMEOUT = 1.0


class BadCommand(StafetaError):
    """A line that is not a command."""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "shell",
        help="read commands from standard input",
        description="Reads commands from standard input: GET, PUT, SUB, UNSUB, TOPICS, HELP and EXIT. On a terminal "
        "it has a history and completes commands and topics with the tab key. In a pipe it prints one line for each "
        "command, and leaves with exit code 1 if one of them failed.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print results as JSON, one object a line")
    connection.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if not sys.stdin.isatty():
        failed = Shell(options, interactive=False).run(_piped_lines())
        return exits.REFUSED if failed else exits.OK
    from stafeta.cli import terminal

    shell = Shell(options, interactive=True)
    history = connection.state_folder(options) / "history"
    shell.run(terminal.lines(_PROMPT, history, list(_HELP), shell.known_topics))
    return exits.OK


class Shell:
    """Carries out lines.

    In a pipe its clients stay open between two lines. On a terminal they do not, because other commands of the same
    client would have to wait while a person thinks.
    """

    def __init__(self, options: argparse.Namespace, interactive: bool) -> None:
        self._options = options
        self._json: bool = options.json
        self._interactive = interactive
        self._clients: dict[str, Client] = {}
        self._topics: list[str] | None = None
        self._verbs: dict[str, Callable[[str], None]] = {
            "GET": self._get,
            "PUT": self._put,
            "SUB": self._sub,
            "UNSUB": self._unsub,
            "TOPICS": self._list_topics,
            "HELP": self._help,
        }

    def run(self, lines: Iterable[str]) -> bool:
        """Carries out lines up to EXIT. Says whether one of them failed."""
        failed = False
        try:
            for line in lines:
                verb, _, rest = line.strip("\r\n").lstrip().partition(" ")
                if verb.upper() == "EXIT":
                    break
                if verb and not self._carry_out(verb, rest.lstrip()):
                    failed = True
        finally:
            self._close()
        return failed

    def known_topics(self) -> list[str]:
        """The names of the broker's topics, for completion: asked for once between two commands."""
        if self._topics is None:
            self._topics = []
            hurried = argparse.Namespace(
                **vars(self._options) | {"timeout": _COMPLETION_TIMEOUT, "retries": 1}
            )
            with connection.visitor(hurried) as client:
                self._topics = [topic.name for topic in client.topics()]
        return self._topics

    def _carry_out(self, verb: str, rest: str) -> bool:
        self._topics = None
        try:
            command = self._verbs.get(verb.upper())
            if command is None:
                raise BadCommand(f"'{verb}' is not a command; HELP lists them.")
            command(rest)
        except StafetaError as error:
            print(f"stafeta: {error}", file=sys.stderr, flush=True)
            return False
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            print()
        finally:
            if self._interactive:
                self._close()
        return True

    def _get(self, rest: str) -> None:
        topic = _word(rest, "GET")
        client = self._subscriber()
        message = client.get(topic)
        if message is None:
            say(f"No message on {topic}.", self._json, topic=topic, id=None)
            return
        output = Handover()
        if output.give([message_line(message, self._json) + b"\n"]):
            client.ack(message)
        output.check_written()

    def _put(self, rest: str) -> None:
        topic, space, data = rest.partition(" ")
        if not space:
            raise BadCommand(f"What is to be put is missing: {_HELP['PUT']}.")
        payload = text_or_bytes(data.encode(errors="surrogateescape"))
        number = self._publisher().put(topic, payload)
        say(f"Put on {topic} as message {number}.", self._json, topic=topic, id=number)

    def _sub(self, rest: str) -> None:
        topic = _word(rest, "SUB")
        last = self._subscriber().subscribe(topic)
        say(subscribed(topic, last), self._json, topic=topic, last_id=last)

    def _unsub(self, rest: str) -> None:
        topic = _word(rest, "UNSUB")
        self._subscriber().unsubscribe(topic)
        say(unsubscribed(topic), self._json, topic=topic)

    def _list_topics(self, rest: str) -> None:
        topics = self._subscriber().topics(rest.strip() or "#")
        if self._interactive and not self._json:
            write(topic_lines(topics, as_json=False))
        else:
            names = " ".join(topic.name for topic in topics)
            say(names or "No topics.", self._json, topics=[topic._asdict() for topic in topics])

    def _help(self, rest: str) -> None:
        between = "\n" if self._interactive else "; "
        say(between.join(_HELP.values()), self._json, commands=list(_HELP))

    def _publisher(self) -> "Client":
        if "publisher" not in self._clients:
            self._clients["publisher"] = connection.publisher(self._options)
        return self._clients["publisher"]

    def _subscriber(self) -> "Client":
        if "subscriber" not in self._clients:
            self._clients["subscriber"] = connection.subscriber(self._options)
        return self._clients["subscriber"]

    def _close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()


def _word(rest: str, verb: str) -> str:
    words = rest.split()
    if len(words) != 1:
        raise BadCommand(
            f"'{rest}' is not one topic: {_HELP[verb]}." if words else f"A topic is missing: {_HELP[verb]}."
        )
    return words[0]


def _piped_lines() -> Iterator[str]:
    for line in sys.stdin.buffer:
        yield line.decode(errors="surrogateescape")
