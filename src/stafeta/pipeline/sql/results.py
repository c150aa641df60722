"""What a statement brings, and where that goes."""

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from stafeta.errors import DataLoss

if TYPE_CHECKING:
    import pyarrow as pa

VIEWS: Final = ("messages", "readings", "rollups", "dead")


class Done(NamedTuple):
    """What a statement has brought: so many rows, and whether the limit has left some out."""

    rows: int
    cut: bool
    has_columns: bool


class Output(Protocol):
    """Takes one result after the other: `begin`, any number of `write`, and `end` or `drop`."""

    @property
    def shown(self) -> bool:
        """Whether something of the result cannot be taken back."""

    def begin(self, schema: "pa.Schema") -> None: ...

    def write(self, batch: "pa.RecordBatch") -> None: ...

    def end(self) -> None: ...

    def drop(self) -> None: ...


class Statements:
    """Carries out statements, one after the other. What is gone from the log while a query runs is in the lake by then:
    once, the query begins anew."""

    def run(self, statement: str, output: Output, limit: int | None = None) -> Done:
        """Carries out a statement. Raises what Spark has against it as a sentence."""
        retried = False
        while True:
            try:
                return self.attempt(statement, output, limit)
            except DataLoss:
                output.drop()
                if retried or output.shown:
                    raise
                retried = True
            except BaseException:
                output.drop()
                raise

    def attempt(self, statement: str, output: Output, limit: int | None = None) -> Done:
        """The same, once. Where it fails, the output is left as it is."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Ends the statement that runs, from another thread. What is only planned goes on: may be repeated."""
        raise NotImplementedError
