"""The native client: TLS, and the token."""

import asyncio
import logging
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stafeta
from stafeta import Tls
from stafeta.errors import ConfigError, NoReply, Refused, StafetaError, Untrusted
from tests.certificates import Authority, Pair
from tests.doors.flight.guarded_server import TOKEN, GuardedServer
from tests.doors.flight.peers import Place
from tests.doors.flight.tls_relay import TlsRelay
from tests.waiting import wait_until

SOON = 5.0
PATIENT = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody has heard of."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("broker", "DNS:broker.example,IP:127.0.0.1")


@pytest.fixture(scope="module")
def secure(pair: Pair) -> Iterator[GuardedServer]:
    with GuardedServer("grpc+tls://127.0.0.1:0", tls_certificates=[_contents(pair)]) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(authority: Authority, pair: Pair) -> Iterator[GuardedServer]:
    """One that wants to know who calls."""
    with GuardedServer(
        "grpc+tls://127.0.0.1:0",
        tls_certificates=[_contents(pair)],
        verify_client=True,
        root_certificates=authority.roots.read_bytes(),
    ) as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[GuardedServer]:
    with GuardedServer("grpc://127.0.0.1:0") as server:
        yield server


@pytest.fixture(scope="module")
def relay(flying: Any, pair: Pair) -> Iterator[TlsRelay]:
    with TlsRelay(flying.door("flight"), pair) as one:
        yield one


def _contents(pair: Pair) -> tuple[bytes, bytes]:
    return pair.certificate.read_bytes(), pair.key.read_bytes()


@pytest.mark.parametrize(
    ("address", "options", "sentence"),
    [
        ("grpc://127.0.0.1:1", {"tls": Tls()}, r"without TLS; for it, write grpc\+tls://127.0.0.1:1"),
        ("127.0.0.1", {"tls": Tls()}, r"write grpc\+tls://127.0.0.1:8815"),
        ("https://127.0.0.1:1", {}, "no address of a Flight door"),
        ("grpc+tls://127.0.0.1:1", {"token": "two\nlines"}, "is of visible"),
        ("grpc+tls://127.0.0.1:1", {"token": "ștafetă"}, "is of visible"),
        ("grpc+tls://127.0.0.1:1", {"token": ""}, "is of visible"),
        ("grpc://broker.example:1", {"token": TOKEN}, r"in the clear.*write grpc\+tls://broker.example:1"),
        ("192.0.2.1", {"token": TOKEN}, "in the clear"),
        ("grpc://[2001:db8::1]", {"token": TOKEN}, "in the clear"),
    ],
)
def test_options_that_do_not_go_together(address: str, options: dict[str, Any], sentence: str) -> None:
    for connect in (stafeta.connect, stafeta.connect_async):
        with pytest.raises(ConfigError, match=sentence) as told:
            connect(address, **options)
        assert not options.get("token") or options["token"] not in str(told.value)


@pytest.mark.parametrize(
    "address", ["grpc://localhost:1", "127.0.0.1:1", "grpc://127.8.8.8:1", "grpc://[::1]:1"]
)
def test_a_token_may_go_in_the_clear_where_it_does_not_leave_the_machine(address: str) -> None:
    with pytest.raises(NoReply):
        stafeta.connect(address, token=TOKEN, timeout=0.1)


def test_files_that_are_not_what_they_should_be(
    authority: Authority, stranger: Authority, pair: Pair, tmp_path: Path
) -> None:
    certificate, key = pair
    text = tmp_path / "text.pem"
    text.write_text("This is no certificate. Nu e niciun certificat, ștafetă.")
    locked = tmp_path / "locked.key"
    other = stranger.pair("other", "DNS:other.example")
    subprocess.run(
        ["openssl", "ec", "-in", str(key), "-out", str(locked), "-aes128", "-passout", "pass:secret"],
        check=True,
        capture_output=True,
    )
    missing = tmp_path / "missing.pem"
    for tls, sentence in (
        (Tls(roots=missing), r"missing\.pem, the TLS roots, cannot be read: No such file"),
        (Tls(roots=str(tmp_path)), "the TLS roots, cannot be read: Is a directory"),
        (Tls(roots=text), r"text\.pem, the TLS roots, has no certificates"),
        (Tls(certificate=certificate), "A TLS certificate is given, .*broker.pem, and no key"),
        (Tls(key=key), "A TLS key is given, .*broker.key, and no certificate"),
        (Tls(certificate=certificate, key=missing), r"missing\.pem, the TLS key, cannot be read"),
        (Tls(certificate=text, key=key), "not a TLS certificate and its key"),
        (Tls(certificate=certificate, key=text), "not a TLS certificate and its key"),
        (Tls(certificate=certificate, key=other.key), "not a TLS certificate and its key"),
        (Tls(certificate=certificate, key=locked), "without a password"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            stafeta.connect("grpc+tls://127.0.0.1:1", tls=tls)


def soon(error: type[StafetaError], sentence: str, call: Callable[[], object]) -> None:
    begun = time.monotonic()
    with pytest.raises(error, match=sentence) as told:
        call()
    assert time.monotonic() - begun < SOON
    assert "\n" not in str(told.value)


def test_a_broker_that_is_not_trusted_is_told_at_once(
    secure: GuardedServer, plain: GuardedServer, authority: Authority, stranger: Authority
) -> None:
    for address, tls, sentence in (
        (secure.address, Tls(roots=stranger.roots), r"not accepted \(.*issuer.*\).* TLS roots"),
        (secure.address, None, "certificate is not accepted"),
        (
            secure.address,
            Tls(roots=authority.roots, hostname="other.example"),
            "not for other.example.*TLS hostname",
        ),
        (
            plain.address.replace("grpc:", "grpc+tls:"),
            Tls(roots=authority.roots),
            "does not speak TLS.*grpc://",
        ),
    ):
        soon(
            Untrusted,
            f"The broker at .* is not trusted: .*{sentence}",
            partial(stafeta.connect, address, tls=tls, token=TOKEN, timeout=PATIENT),
        )


def test_a_broker_that_wants_tls_or_a_certificate_just_hangs_up(
    secure: GuardedServer, mutual: GuardedServer, authority: Authority, stranger: Authority
) -> None:
    certificate, key = stranger.pair("somebody", "DNS:somebody.example")
    for address, tls in (
        (secure.address.replace("+tls", ""), None),
        (mutual.address, Tls(roots=authority.roots)),
        (mutual.address, Tls(roots=authority.roots, certificate=certificate, key=key)),
    ):
        with pytest.raises(NoReply, match="Does it run"):
            stafeta.connect(address, tls=tls, token=TOKEN, timeout=0.3)


def test_a_token_that_is_refused(secure: GuardedServer, authority: Authority) -> None:
    tls = Tls(roots=authority.roots)
    for token in (None, "another"):
        soon(
            Refused,
            "This token is not known",
            partial(stafeta.connect, secure.address, tls=tls, token=token, timeout=PATIENT),
        )


def test_the_token_goes_with_every_call(secure: GuardedServer, authority: Authority) -> None:
    secure.guard.calls.clear()
    with stafeta.connect(secure.address, tls=Tls(roots=authority.roots), token=TOKEN) as broker:
        broker.publish("t", ["x"])
        assert broker.read("t", columns=["payload"]).num_rows == 1
        broker.describe({"topic": "t"})
    assert {*secure.guard.calls} == {"DO_ACTION", "DO_PUT", "DO_GET", "GET_FLIGHT_INFO"}


def test_a_token_without_tls(plain: GuardedServer) -> None:
    with stafeta.connect(plain.address, token=TOKEN) as broker:
        assert broker.stats() == {"version": "0"}


def test_a_client_with_a_certificate(mutual: GuardedServer, authority: Authority) -> None:
    certificate, key = authority.pair("me", "DNS:me.example")
    tls = Tls(str(authority.roots), str(certificate), str(key))
    with stafeta.connect(mutual.address, tls=tls, token=TOKEN) as broker:
        assert broker.stats() == {"version": "0"}


def test_the_name_in_the_certificate_is_another_one_than_in_the_address(
    secure: GuardedServer, authority: Authority
) -> None:
    address = secure.address.replace("127.0.0.1", "localhost")
    with pytest.raises(Untrusted, match="not for localhost"):
        stafeta.connect(address, tls=Tls(roots=authority.roots), token=TOKEN)
    tls = Tls(roots=authority.roots, hostname="broker.example")
    with stafeta.connect(address, tls=tls, token=TOKEN) as broker:
        assert broker.address == address


def test_the_roots_of_the_system_are_trusted_where_none_are_named(
    secure: GuardedServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.roots))
    with stafeta.connect(secure.address, token=TOKEN) as broker:
        assert broker.stats() == {"version": "0"}


def test_messages_go_and_come_through_tls(
    relay: TlsRelay, authority: Authority, topic: str, name: str
) -> None:
    with (
        stafeta.connect(relay.address, tls=Tls(roots=authority.roots), token=TOKEN) as broker,
        broker.subscribe(topic, name=name) as subscription,
    ):
        broker.publish(topic, [b"x" * 1000] * 20_000)
        assert next(iter(subscription)).payloads()[0] == b"x" * 1000
        assert broker.read(topic, columns=["payload"]).num_rows == 20_000


def test_messages_go_and_come_through_tls_with_asyncio(
    relay: TlsRelay, authority: Authority, topic: str
) -> None:
    async def run() -> int:
        tls = Tls(roots=authority.roots)
        async with stafeta.connect_async(relay.address, tls=tls, token=TOKEN) as broker:
            await broker.publish(topic, ["x", "y"])
            return (await broker.read(topic)).num_rows

    assert asyncio.run(run()) == 2


def test_a_certificate_that_is_renewed_while_a_program_runs(
    place: Place,
    authority: Authority,
    stranger: Authority,
    pair: Pair,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expired = stranger.pair("expired", "IP:127.0.0.1")
    with (
        TlsRelay(place, pair) as relay,
        stafeta.connect(relay.address, tls=Tls(roots=authority.roots)) as broker,
        broker.producer(topic) as producer,
    ):
        producer.send("before")
        producer.flush()
        relay.present(expired)
        producer.send("meanwhile")
        with caplog.at_level(logging.WARNING, "stafeta.client"):
            wait_until(lambda: "certificate is not accepted" in caplog.text)
        relay.present(pair)
        producer.flush()
        assert broker.read(topic).num_rows == 2
