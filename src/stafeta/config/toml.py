"""Writes TOML. (Python reads it, but does not write it.)"""

import json
import re

from stafeta.config.forms import Plain
from stafeta.config.options import Tables

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def write(tables: Tables) -> str:
    """A TOML document: what stands alone first, then each table."""
    return "\n".join(_lines((), tables)).strip() + "\n"


def _lines(path: tuple[str, ...], tables: Tables) -> list[str]:
    lines = [
        f"{_key(name)} = {_value(value)}" for name, value in tables.items() if not isinstance(value, dict)
    ]
    if path and lines:
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for name, value in tables.items():
        if isinstance(value, dict):
            lines += _lines((*path, name), value)
    return lines


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _value(value: Plain) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return str(value).lower()


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
