"""What `with` and `async with` do with a client, or with what it has opened.

1. `Closing` is closed where the block is left, however that happens.
2. `Finishing` has something to finish, such as messages on their way. It takes its time where the block ends. Where an
   error leaves the block that error is raised: finishing takes a few seconds at most then, and is only logged where it
   fails.
"""

from types import TracebackType
from typing import Final, Self

from stafeta.errors import StafetaError

EXIT_TIMEOUT: Final = 2.0  # seconds that one waits at most when leaving because of an error


class Closing:
    """What `with` closes."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Finishing:
    """What `with` finishes."""

    def _complete(self) -> object:
        """Finish everything; where the block has ended."""
        raise NotImplementedError

    def _abandon(self) -> object:
        """Finish what can be in a few seconds, or undo it; where an error has left the block."""
        raise NotImplementedError

    def _log_unfinished(self, error: StafetaError) -> None:
        """Log that `_abandon` has failed."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._complete()
            return
        try:
            self._abandon()
        except StafetaError as second:
            self._log_unfinished(second)


class AsyncFinishing:
    """The same for `async with`."""

    async def _complete(self) -> object:
        raise NotImplementedError

    async def _abandon(self) -> object:
        raise NotImplementedError

    def _log_unfinished(self, error: StafetaError) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._complete()
            return
        try:
            await self._abandon()
        except StafetaError as second:
            self._log_unfinished(second)
