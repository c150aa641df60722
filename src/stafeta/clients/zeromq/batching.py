"""Packing messages into batches: as many as go well into one request."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator

from stafeta.clients.zeromq.requests import PublishBatch
from stafeta.errors import InvalidMessage
from stafeta.message import Kind

MAX_PAYLOAD = 8 * 1024 * 1024
_MAX_COUNT = 1000
_MAX_SIZE = 256 * 1024
_WORTH_A_LOOK = 1024 * 1024

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Batcher:
    """Takes messages one after the other and gives batches of them, in their order.

    Messages of a batch are of one kind: `kind`, or where that is None, `string` for text and `bytes` for bytes. With
    `create` the broker makes the topic where it does not exist.
    """

    def __init__(
        self, kind: str | None = None, max_payload: int = MAX_PAYLOAD, *, create: bool = False
    ) -> None:
        self._given = None if kind is None else Kind.of(kind).word
        self._max_payload = max_payload
        self._create = create
        self._kind = ""
        self._size = 0
        self._items: list[str | bytes] = []

    def add(self, data: str | bytes) -> PublishBatch | None:
        """Takes a message; the batch before it, if that is full."""
        size = self._checked_size(data)
        kind = self._given or ("string" if isinstance(data, str) else "bytes")
        full = None
        if self._items and (
            kind != self._kind or self._size + size > _MAX_SIZE or len(self._items) == _MAX_COUNT
        ):
            full = self.rest()
        self._items.append(data)
        self._size += size
        self._kind = kind
        return full

    def fill(self, items: Iterator[str | bytes]) -> PublishBatch | None:
        """Takes messages until a batch is full; None when they have come to an end before that."""
        for item in items:
            batch = self.add(item)
            if batch is not None:
                return batch
        return None

    async def fill_async(self, items: AsyncIterator[str | bytes]) -> PublishBatch | None:
        """`fill` for an asynchronous iterator."""
        async for item in items:
            batch = self.add(item)
            if batch is not None:
                return batch
        return None

    def rest(self) -> PublishBatch | None:
        """What has been taken and not been given yet."""
        if not self._items:
            return None
        items, size = self._items, self._size
        self._items, self._size = [], 0
        try:
            publications = _encode(
                [item if isinstance(item, str) else item.decode() for item in items]
            ).encode()
        except UnicodeDecodeError:
            return self._parcel(items, _in_base64(items), "base64")
        # Control characters take six bytes each in JSON: a large message of them would not fit a frame.
        if len(publications) > _WORTH_A_LOOK and len(publications) > size * 1.4:
            return self._parcel(items, _in_base64(items), "base64")
        return self._parcel(items, publications, "")

    def _parcel(self, items: list[str | bytes], publications: bytes, encoding: str) -> PublishBatch:
        return PublishBatch(len(items), self._kind, encoding, publications + b',"create":true' * self._create)

    def _checked_size(self, data: object) -> int:
        if isinstance(data, bytes):
            size = len(data)
        elif not isinstance(data, str):
            raise InvalidMessage(f"A message is text or bytes, not {type(data).__name__}.")
        elif data.isascii():
            size = len(data)
        else:
            try:
                size = len(data.encode())
            except UnicodeEncodeError:
                raise InvalidMessage(
                    "The text has half a surrogate pair in it, which is no character."
                ) from None
        if size > self._max_payload:
            raise InvalidMessage(
                f"The message has {size:,} bytes; at most {self._max_payload:,} are allowed."
            )
        return size


def _in_base64(items: list[str | bytes]) -> bytes:
    raw = [item.encode() if isinstance(item, str) else item for item in items]
    return _encode([b64encode(item).decode() for item in raw]).encode()
