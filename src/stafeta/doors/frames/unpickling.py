"""Reads pickles that hold plain data, and no others.

1. Only the opcodes run that build None, bool, int, float, str, bytes, list, tuple, dict and set. Every other one is
   refused by its name before it does anything.
2. Nothing is looked up or called, except what stands for sets and bytes in the protocols that have no opcode for
   them; functions of this module take that part, and check what they are given.
3. It is Python's own reader in Python, not the one in C: its memo is a dictionary, so that a huge index costs nothing.
4. A key is looked through before it is hashed: one tuple that holds another twice, and so on, takes for ever, and one
   that is nested a hundred thousand deep ends the process.
"""

import pickle
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any, ClassVar, Final

from stafeta.errors import InvalidFrame

_KEY_PARTS: Final = 10_000  # in all keys of a pickle that are tuples
_KEY_DEPTH: Final = 20
_LARGEST_KEY: Final = (1 << 61) - 2  # ints up to this have hashes of their own

_PLAIN: Final = (  # noqa: SIM905 - a list would take a line for each
    "PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE "
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT "
    "STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET ADDITEMS "
    "GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL REDUCE"
).split()
_NAMES: Final = {
    code[0]: name
    for name, code in vars(pickle).items()
    if name.isupper() and isinstance(code, bytes) and len(code) == 1
}
_READERS: Final[dict[int, Callable[[Any], None]]] = vars(pickle._Unpickler)["dispatch"]


def loads(data: bytes) -> object:
    """The value of a pickle. Raises `InvalidFrame`."""
    try:
        return _PlainUnpickler(BytesIO(data), encoding="utf-8").load()
    except InvalidFrame:
        raise
    except Exception as error:  # noqa: BLE001 - the reader raises whatever a mistake in a pickle leads to
        reason = str(error) or type(error).__name__
        raise InvalidFrame(f"The pickle cannot be read: {reason:.200}.") from None


def _refuse(code: int) -> Callable[[Any], None]:
    name = _NAMES.get(code, f"0x{code:02x}")

    def refuse(reader: object) -> None:
        raise InvalidFrame(f"The pickle has the opcode {name}, which plain data does not need.")

    return refuse


class _PlainUnpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code: _refuse(code) for code in range(256)},
        **{code: _READERS[code] for code, name in _NAMES.items() if name in _PLAIN},
    }
    stack: list[Any]
    append: Callable[[object], None]
    pop_mark: Callable[[], list[Any]]
    _parts = 0

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        match module, name:
            case "builtins" | "__builtin__", "set":
                return self._set
            case "builtins" | "__builtin__", "bytes":
                return _no_bytes
            case "_codecs", "encode":
                return _latin_1
        raise InvalidFrame(f"The pickle names {f'{module}.{name}':.100}, which is no plain data.")

    def persistent_load(self, pid: object) -> object:
        raise InvalidFrame("The pickle has a persistent id, which is no plain data.")

    # --- what hashes

    def _set(self, items: object = ()) -> set[Any]:
        if not isinstance(items, list | tuple):
            raise InvalidFrame("The pickle makes a set of something that is no list.")
        return set(self._keys(items))

    def _keys(self, keys: Iterable[Any]) -> Iterable[Any]:
        for key in keys:
            self._check_key(key, 0)
            yield key

    def _check_key(self, key: object, depth: int) -> None:
        if type(key) is tuple:
            self._parts += len(key) + 1
            if depth > _KEY_DEPTH or self._parts > _KEY_PARTS:
                raise InvalidFrame("The pickle has keys that are too large or nested too deep.")
            for part in key:
                self._check_key(part, depth + 1)
        elif type(key) is int and abs(key) > _LARGEST_KEY:
            # Thousands of such ints can be found that have the same hash, and make a dictionary very slow.
            self._parts += 10
            if self._parts > _KEY_PARTS:
                raise InvalidFrame("The pickle has too many keys that are huge numbers.")

    def _fill(self, target: object, items: list[Any]) -> None:
        if type(target) is not dict or len(items) % 2:
            raise InvalidFrame("The pickle puts keys and values where there is no dictionary.")
        target.update(zip(self._keys(items[::2]), items[1::2], strict=True))

    def load_dict(self) -> None:
        items = self.pop_mark()
        made: dict[Any, Any] = {}
        self._fill(made, items)
        self.append(made)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._fill(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._fill(self.stack[-1], items)

    def load_additems(self) -> None:
        items = self.pop_mark()
        target = self.stack[-1]
        if type(target) is not set:
            raise InvalidFrame("The pickle adds to a set where there is none.")
        target.update(self._keys(items))

    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.ADDITEMS[0]] = load_additems


def _no_bytes() -> bytes:
    """Protocols 0 to 2 write `b""` as a call of `bytes` without arguments."""
    return b""


def _latin_1(text: object, encoding: object = None) -> bytes:
    """They write other bytes as text to be encoded in Latin-1."""
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise InvalidFrame("The pickle calls _codecs.encode in a way in which bytes are not written.")
    return text.encode("latin-1")
