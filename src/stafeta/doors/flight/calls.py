"""The calls of Arrow Flight, each in a thread of its own."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import orjson
from pyarrow import flight

from stafeta import addresses
from stafeta.doors.flight import codec
from stafeta.doors.flight.actions import ACTIONS, act
from stafeta.doors.flight.codec import Description, Ticket
from stafeta.doors.flight.encode_batches import BatchEncoder, schema_of
from stafeta.doors.flight.puts import PutStream
from stafeta.doors.flight.readers import Stream
from stafeta.doors.tls import Certificates
from stafeta.errors import (
    BrokerClosed,
    InvalidRequest,
    Lagging,
    NotAuthenticated,
    NotPermitted,
    StafetaError,
    StoreDamaged,
    StoreError,
    TakenOver,
    Unavailable,
)
from stafeta.message import COLUMNS

if TYPE_CHECKING:
    from stafeta.broker import Verbs
    from stafeta.doors.flight.server import FlightDoor, Part

log = logging.getLogger("stafeta.flight")

POLL_INTERVAL: Final = 0.25  # seconds between two looks at whether a quiet stream's client is still there
ALL: Final = codec.ALL


@contextmanager
def _translating_errors() -> Iterator[None]:
    """What goes wrong reaches the client as the fitting Flight error, with a sentence and no traceback."""
    try:
        yield
    except flight.FlightError:
        raise
    except StafetaError as error:
        raise flight_error(error) from None
    except Exception as error:
        log.exception("a call failed for a reason that it should not have")
        raise flight.FlightInternalError(f"The broker failed at this: {error!r}.", b"{}") from None


def flight_error(error: StafetaError) -> flight.FlightError:
    if isinstance(error, StoreDamaged):
        kind: Any = flight.FlightInternalError
    elif isinstance(error, NotAuthenticated):
        kind = flight.FlightUnauthenticatedError
    elif isinstance(error, NotPermitted):
        kind = flight.FlightUnauthorizedError
    elif isinstance(error, StoreError | BrokerClosed | Unavailable):
        kind = flight.FlightUnavailableError
    elif isinstance(error, TakenOver | Lagging):
        kind = flight.FlightCancelledError
    else:
        kind = flight.FlightServerError
    # Flight adds ". Detail: …" to the sentence.
    made: flight.FlightError = kind(codec.sentence(error).removesuffix("."), codec.write_error(error))
    return made


_HEADERS: Final = "headers"


class _Headers(flight.ServerMiddleware):
    def __init__(self, authorization: str | None) -> None:
        self.authorization = authorization


class _HeadersFactory(flight.ServerMiddlewareFactory):
    """Keeps of each call the header that says who calls."""

    def start_call(self, info: Any, headers: Any) -> _Headers:
        found: list[Any] = next(
            (values for name, values in headers.items() if name.lower() == "authorization"), []
        )
        return _Headers(str(found[0]) if found else None)


class Calls(flight.FlightServerBase):
    """Listens as soon as it is made."""

    def __init__(self, door: "FlightDoor", location: str, certificates: Certificates | None = None) -> None:
        self._door = door
        self.contents: tuple[bytes, ...] = ()
        self._asks_for_certificates = False
        options: dict[str, Any] = {}
        if certificates is not None:
            self.contents = certificate, key, authorities = certificates.files.contents()
            options["tls_certificates"] = [(certificate, key)]
            self._asks_for_certificates = bool(authorities)
            if authorities:
                options |= {"verify_client": True, "root_certificates": authorities}
        middleware: Any = {_HEADERS: _HeadersFactory()} if door.broker.security.configured else None
        super().__init__(location, middleware=middleware, **options)

    @contextmanager
    def _call(self, context: Any) -> Iterator["Verbs"]:
        """What the caller may do, by the call's header, or by the certificate that TLS has verified. What goes wrong
        meanwhile reaches him."""
        peer = _address(context.peer())
        with _translating_errors():
            verbs = self._admit(context, peer)
            self._door.connections.begin(peer)
            try:
                yield verbs
            finally:
                self._door.connections.end(peer)

    def _admit(self, context: Any, peer: str) -> "Verbs":
        headers = context.get_middleware(_HEADERS)
        name = context.peer_identity().decode(errors="replace")
        # One whose certificate names nobody has shown one all the same: he is not the door's own user.
        certificate = name if name or self._asks_for_certificates else None
        return self._door.admit(None if headers is None else headers.authorization, peer, certificate)

    # --- describing

    def list_flights(self, context: Any, criteria: Any) -> Iterator[flight.FlightInfo]:
        with self._call(context) as verbs:
            wanted = Description(None, codec.read_criteria(criteria) or "#", ALL, None)
            parts = self._door.ask(self._door.describe(verbs, wanted))
        for part in parts:
            yield _info(flight.FlightDescriptor.for_path(part.name), [part], None)

    def get_flight_info(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        with self._call(context) as verbs:
            wanted = _description(descriptor)
            parts = self._door.ask(self._door.describe(verbs, wanted))
            return _info(descriptor, parts, wanted.partitions)

    def get_schema(self, context: Any, descriptor: flight.FlightDescriptor) -> Any:
        with self._call(context) as verbs:
            self._door.ask(self._door.describe(verbs, _description(descriptor)))
            return flight.SchemaResult(schema_of(COLUMNS))

    def list_actions(self, context: Any) -> Any:
        with self._call(context):
            return [(name, action.__doc__ or "") for name, action in ACTIONS.items()]

    # --- doing

    def do_action(self, context: Any, action: flight.Action) -> Any:
        with self._call(context) as verbs:
            found = self._door.ask(act(self._door, verbs, action.type, action.body.to_pybytes()))
            return iter([flight.Result(orjson.dumps(one)) for one in found])

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        with self._call(context) as verbs:
            command = descriptor.command if descriptor.descriptor_type == flight.DescriptorType.CMD else None
            target = codec.read_target(descriptor.path or [], command)
            user = verbs.principal.user
            self._door.enter(user)
            try:
                PutStream(self._door, verbs, target, _address(context.peer()), writer).run(reader)
            finally:
                self._door.leave(user)

    def do_exchange(self, *_: Any) -> None:
        with _translating_errors():
            raise InvalidRequest("do_exchange is not offered: there are do_put and do_get.")

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        with self._call(context) as verbs:
            wanted = codec.read_ticket(ticket.ticket)
            user = verbs.principal.user
            self._door.enter(user)
            try:
                stream = self._door.ask(self._door.open(verbs, wanted))
            except BaseException:
                self._door.leave(user)
                raise
            mark = None if wanted.mark is None else verbs.mark
            encoder = BatchEncoder(
                wanted.columns,
                wanted.batch_rows,
                wanted.limit,
                runs=wanted.runs,
                mark=mark,
                apart=bool(wanted.spans),
                together=wanted.together,
            )
            schema = encoder.schema
            if mark is not None:
                schema = schema.with_metadata({"mark": mark(verbs.visible_position - 1)})
            return flight.GeneratorStream(schema, Sending(self._door, context, stream, encoder, user))


class Sending:
    """The batches of a stream, as fast as the client takes them."""

    def __init__(
        self, door: "FlightDoor", context: Any, stream: Stream, encoder: BatchEncoder, user: str
    ) -> None:
        self._door = door
        self._stream = stream
        self._user = user
        self._peer = _address(context.peer())
        door.connections.begin(self._peer)
        self._batches = _sent(context, stream, encoder)  # which must not know this, to let it go

    def __iter__(self) -> "Sending":
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def __del__(self) -> None:
        # Not the end of a generator: one that was never asked for anything has none.
        with suppress(RuntimeError):  # the loop has gone
            self._door.loop.call_soon_threadsafe(self._door.close_stream, self._stream)
        self._door.leave(self._user)
        self._door.connections.end(self._peer)


def _sent(context: Any, stream: Stream, encoder: BatchEncoder) -> Iterator[Any]:
    with _translating_errors():
        while not encoder.done:
            try:
                portion = stream.take(POLL_INTERVAL)
            except Empty:
                if context.is_cancelled():
                    return
                continue
            if portion is None:
                return
            yield from encoder.batches(portion)


def _description(descriptor: flight.FlightDescriptor) -> Description:
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return codec.read_description(descriptor.command or b"")
    return Description(codec.topic_of(descriptor.path or []), None, ALL, None)


def _info(
    descriptor: flight.FlightDescriptor, parts: "list[Part]", partitions: int | None
) -> flight.FlightInfo:
    endpoints = [
        flight.FlightEndpoint(Ticket(topic=part.name, range=codec.Range(start, stop)).encode(), [])
        for part in parts
        for start, stop in part.ranges(partitions)
    ]
    found = [
        {
            "topic": part.name,
            "first": part.first,
            "next": part.next,
            "rows": part.rows,
            "bytes": part.size,
            **({"skipped": part.skipped} if part.skipped else {}),
        }
        for part in parts
    ]
    return flight.FlightInfo(
        schema_of(COLUMNS),
        descriptor,
        endpoints,
        sum(part.rows for part in parts),
        sum(part.size for part in parts) if all(part.size >= 0 for part in parts) else -1,
        app_metadata=orjson.dumps({"topics": found}),
    )


def _address(peer: str) -> str:
    """gRPC's `ipv4:127.0.0.1:40000` and `ipv6:%5B::1%5D:40000` as the other doors write addresses."""
    return str(addresses.split(unquote(peer.partition(":")[2])))
