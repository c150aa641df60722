"""The asyncio client behind the plain one's methods, so that one suite tests both."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from stafeta import AsyncClient, Client, Message


class BlockingClient:
    """Runs each call of an `AsyncClient` to its end, on a loop of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = AsyncClient(*arguments, **options)
        self._runner = asyncio.Runner()
        try:
            self._runner.run(self._client.__aenter__())
        except BaseException:
            self._runner.close()
            raise

    def messages(self, topic: str) -> Iterator[Message]:
        following = self._client.messages(topic)
        try:
            while True:
                yield self._runner.run(anext(following))  # type: ignore[arg-type]
        finally:
            self._runner.run(following.aclose())  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        assert inspect.iscoroutinefunction(method)
        return lambda *arguments, **options: self._runner.run(method(*arguments, **options))

    def __enter__(self) -> "BlockingClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._runner:
            self._runner.run(self._client.close())


KINDS_OF_CLIENT: dict[str, Callable[..., Client]] = {
    "plain": Client,
    "asyncio": BlockingClient,  # type: ignore[dict-item]
}
