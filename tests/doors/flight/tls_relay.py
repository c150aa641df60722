"""A wire that speaks TLS to clients, and passes on to a broker what they say."""

import asyncio
import ssl
import threading
from contextlib import suppress
from typing import Self

from stafeta.clients.closing import Closing
from tests.certificates import Pair

_PART = 1 << 16


class TlsRelay(Closing):
    def __init__(self, broker: tuple[str, int], pair: Pair) -> None:
        self._broker = broker
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._context.set_alpn_protocols(["h2"])  # gRPC takes nothing else
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self.address = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def present(self, pair: Pair) -> None:
        """Cut all connections, and be somebody else to those that come."""
        self._context.load_cert_chain(pair.certificate, pair.key)
        asyncio.run_coroutine_threadsafe(_cut(), self._loop).result()

    async def _start(self) -> str:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0, ssl=self._context)
        return f"grpc+tls://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        self._server.close()
        await _cut()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outer: asyncio.StreamWriter | None = None
        try:
            inner, outer = await asyncio.open_connection(*self._broker)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, outer))
                both.create_task(_pump(inner, writer))
        finally:
            writer.transport.abort()
            if outer is not None:
                outer.transport.abort()


async def _cut() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_PART):
            writer.write(data)
            await writer.drain()
    writer.close()
