"""`stafeta completion`: what a shell needs to complete commands, options and topics.

Commands and options are written into the script, as they are. Topics are asked of a running broker each time, for at
most half a second; where there is none, there are none. Names of topics are a stranger's: no shell may expand them.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from stafeta.cli import exits
from stafeta.cli.rendering import write

_TOPICS = "command stafeta topics --plain --timeout 0.5 --retries 1"

_BASH = """\
# stafeta for bash: eval "$(stafeta completion bash)"
_stafeta_topics() {{
  local within='#'
  case $1 in */*) within="${{1%/*}}/#" ;; esac
  {topics} "$within" 2>/dev/null </dev/null
}}
_stafeta() {{
  local begun=${{COMP_WORDS[COMP_CWORD]}} command='' word words='' at
  for ((at = 1; at < COMP_CWORD; at++)); do
    word=${{COMP_WORDS[at]}}
    case $word in
      {valued}) ((at++)) ;;
      -*) ;;
      *) command="${{command:+$command }}$word"; case $word in {nested}) ;; *) break ;; esac ;;
    esac
  done
  COMPREPLY=()
  case $command in
{cases}
  esac
  case $begun in -*) ;; *) case $command in {taking})
    while IFS= read -r word; do
      [[ $word == "$begun"* ]] && COMPREPLY+=("$(printf %q "$word")")
    done < <(_stafeta_topics "$begun")
    return ;;
  esac ;; esac
  COMPREPLY=($(compgen -W "$words" -- "$begun"))
}}
complete -o default -F _stafeta stafeta
"""

_ZSH = """\
#compdef stafeta
# stafeta for zsh: put it into a file _stafeta in a folder of $fpath, or: eval "$(stafeta completion zsh)"
_stafeta() {{
  local begun=${{words[CURRENT]}} command='' word within='#' at
  local -a found
  for ((at = 2; at < CURRENT; at++)); do
    word=${{words[at]}}
    case $word in
      {valued}) ((at++)) ;;
      -*) ;;
      *) command="${{command:+$command }}$word"; case $word in {nested}) ;; *) break ;; esac ;;
    esac
  done
  case $command in
{cases}
  esac
  case $begun in -*) ;; *) case $command in {taking})
    case $begun in */*) within="${{begun%/*}}/#" ;; esac
    found=(${{(f)"$({topics} "$within" 2>/dev/null </dev/null)"}}) ;;
  esac ;; esac
  if (( ${{#found}} )); then compadd -a found; else _files; fi
}}
if [ "$funcstack[1]" = _stafeta ]; then _stafeta "$@"; else compdef _stafeta stafeta; fi
"""

_FISH = """\
# stafeta for fish: stafeta completion fish | source
function __stafeta_topics
  set -l within '#'
  set -l begun (commandline -ct)
  string match -q '*/*' -- $begun; and set within (string replace -r '/[^/]*$' '' -- $begun)'/#'
  {topics} "$within" 2>/dev/null </dev/null
end
"""


class _Command(NamedTuple):
    name: str  # with that of its group before it
    help: str
    options: dict[str, str]
    topics: bool  # a topic is among its arguments
    words: list[str]  # what its first argument may be, where that is known


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes commands, options and topics",
        description="Prints a script with which a shell completes commands, options, and the topics of a running "
        "broker (the one that STAFETA_BROKER names).",
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from stafeta.cli.main import parser_for

    parser = parser_for([])
    commands = list(_commands(parser, "", ""))
    script = _fish(commands) if options.shell == "fish" else _cases(options.shell, parser, commands)
    write([script.rstrip("\n").encode()])
    return exits.OK


def _commands(parser: argparse.ArgumentParser, name: str, text: str) -> Iterator[_Command]:
    options: dict[str, str] = {}
    inner: dict[str, tuple[argparse.ArgumentParser, str]] = {}
    topics, choices = False, list[str]()
    for action in parser._actions:
        options |= {flag: action.help or "" for flag in action.option_strings if flag.startswith("--")}
        topics = topics or action.metavar in ("TOPIC", "FILTER")
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._choices_actions}
            inner = {word: (one, helps.get(word, "")) for word, one in action.choices.items()}
        elif action.choices and not action.option_strings:
            choices = list(action.choices)
    # A topic of the broker that is asked for them: devices have another.
    yield _Command(name, text, options, topics and "--client" in options, [*inner, *choices])
    for word, (one, said) in inner.items():
        yield from _commands(one, f"{name} {word}".lstrip(), said)


def _cases(shell: str, parser: argparse.ArgumentParser, commands: list[_Command]) -> str:
    variable = ("words='{}'" if shell == "bash" else "found=({})").format
    cases = [f"    '{one.name}') {variable(' '.join([*one.words, *one.options]))} ;;" for one in commands]
    nested = sorted({one.name.partition(" ")[0] for one in commands if " " in one.name})
    taking = [f'"{one.name}"' for one in commands if one.topics]
    valued = [flag for action in parser._actions if action.nargs != 0 for flag in action.option_strings]
    return (_BASH if shell == "bash" else _ZSH).format(
        topics=_TOPICS,
        cases="\n".join(cases),
        nested="|".join(nested),
        taking="|".join(taking),
        valued="|".join(valued),
    )


def _fish(commands: list[_Command]) -> str:
    lines = [_FISH.format(topics=_TOPICS)]
    helps = {one.name: one.help for one in commands}
    for name, _, options, topics, inner in commands:
        when = "-n " + _quoted(
            " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
            or "__fish_use_subcommand"
        )
        for word in inner:
            text = helps.get(f"{name} {word}".lstrip(), "")
            lines.append(f"complete -c stafeta -f {when} -a {word} -d {_quoted(text)}")
        for flag, text in options.items():
            lines.append(f"complete -c stafeta {when} -l {flag.removeprefix('--')} -d {_quoted(text)}")
        if topics:
            lines.append(f"complete -c stafeta -f {when} -a '(__stafeta_topics)'")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
