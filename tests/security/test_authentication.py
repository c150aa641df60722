"""Who comes in: by password, token, certificate, key, or a door's own user; and how often one may try."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from stafeta.errors import NotAuthenticated
from stafeta.security import ANYONE, Principal, Security, Token, User, Users
from stafeta.security.attempts import BY_ADDRESS, BY_USER, WINDOW, Attempts
from stafeta.security.passwords import LONGEST, WAITING, hash_password
from stafeta.security.users import hash_token, now

PASSWORD = "correct horse"
KEY = "k" * 40
HERE = "10.0.0.1:5000"


@pytest.fixture(scope="module")
def users() -> Users:
    soon, past = now() + timedelta(days=1), now() - timedelta(seconds=1)
    return Users(
        {"ann": User(hash_password(PASSWORD), curve_keys=(KEY,)), "sensor": User()},
        tokens={
            "ci": Token("ann", hash_token("good"), now(), soon),
            "old": Token("ann", hash_token("stale"), now(), past),
        },
        doors={"devices": "sensor"},
    )


def come(security: Security, **given: object) -> Principal:
    options = {"door": "flight", "address": HERE, **given}
    return asyncio.run(security.authenticate(**options))  # type: ignore[arg-type]


def test_nobody_is_asked_where_no_users_are_configured() -> None:
    security = Security()
    assert come(security) is ANYONE
    assert come(security, password=("who", "ever")) is ANYONE
    assert come(security, token="any") is ANYONE


@pytest.mark.parametrize(
    ("given", "user"),
    [
        ({"password": ("ann", PASSWORD)}, "ann"),
        ({"token": "good"}, "ann"),
        ({"certificate_name": "sensor"}, "sensor"),
        ({"curve_key": KEY}, "ann"),
        ({"door": "devices"}, "sensor"),
    ],
)
def test_each_credential_is_its_users(users: Users, given: dict[str, object], user: str) -> None:
    security = Security(users)
    principal = come(security, **given)
    assert principal.user == user
    assert principal.address == HERE
    security.check(principal)
    security.replace(Users({"other": User()}))
    with pytest.raises(NotAuthenticated):
        security.check(principal)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "without a user"),
        ({"door": "zeromq"}, "without a user"),
        ({"password": ("ann", "wrong horse")}, "unknown, or the password is wrong"),
        ({"password": ("bob", PASSWORD)}, "unknown, or the password is wrong"),
        ({"password": ("sensor", "")}, "unknown, or the password is wrong"),
        ({"password": ("sensor", "\x00 nobody's password")}, "unknown, or the password is wrong"),
        ({"password": ("bob", "\x00 nobody's password")}, "unknown, or the password is wrong"),
        ({"password": ("ann", PASSWORD + "x" * LONGEST)}, "unknown, or the password is wrong"),
        ({"password": ("ann\ud800", "\udfff")}, "unknown, or the password is wrong"),
        ({"token": ""}, "unknown, or was revoked"),
        ({"token": "bad"}, "unknown, or was revoked"),
        ({"token": "g" * 1_000_000}, "unknown, or was revoked"),
        ({"token": "stale"}, "expired"),
        ({"certificate_name": "bob"}, "certificate's name"),
        ({"certificate_name": ""}, "certificate's name"),
        ({"curve_key": "j" * 40}, "no user's"),
        # A wrong credential is not overlooked because the door would do without one.
        ({"door": "devices", "token": "bad"}, "unknown, or was revoked"),
    ],
)
def test_anything_else_is_refused(users: Users, given: dict[str, object], sentence: str) -> None:
    with pytest.raises(NotAuthenticated, match=sentence):
        come(Security(users), **given)


def test_a_token_is_over_when_it_expires_or_is_revoked(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    security = Security(users)
    principal = come(security, token="good")
    security.check(principal)
    security.replace(replace(users, tokens={}))
    with pytest.raises(NotAuthenticated, match="revoked"):
        security.check(principal)
    security.replace(users)
    security.check(principal)
    later = time.time() + 2 * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(NotAuthenticated, match="expired"):
        security.check(principal)


def test_a_token_that_expires_is_a_change(users: Users) -> None:
    async def scenario() -> None:
        soon = now() + timedelta(seconds=1)
        security = Security(replace(users, tokens={"ci": Token("ann", hash_token("good"), now(), soon)}))
        changed = asyncio.Event()
        security.on_change(changed.set)
        security.start()
        before = security.generation
        await asyncio.wait_for(changed.wait(), 60)
        assert security.generation > before
        security.close()

    asyncio.run(scenario())


def test_a_password_that_was_changed_is_over(users: Users) -> None:
    security = Security(users)
    principal = come(security, password=("ann", PASSWORD))
    security.check(principal)
    security.replace(users.with_user("ann", User(hash_password("another one"))))
    with pytest.raises(NotAuthenticated, match="was changed"):
        security.check(principal)


def test_guessing_is_soon_refused_unheard(users: Users) -> None:
    async def scenario() -> None:
        security = Security(users)

        async def guess(number: int, address: str) -> str:
            with pytest.raises(NotAuthenticated) as caught:
                await security.authenticate(
                    door="flight", address=address, password=("ann", f"guess {number}")
                )
            return str(caught.value)

        said = await asyncio.gather(*(guess(number, f"10.0.0.9:{number}") for number in range(1000)))
        assert sum(sentence.startswith("The user is unknown") for sentence in said) == BY_ADDRESS
        # The address is refused now also where the password is right; others are not.
        with pytest.raises(NotAuthenticated, match="Too many"):
            await security.authenticate(door="flight", address="10.0.0.9:1", password=("ann", PASSWORD))
        found = await security.authenticate(door="flight", address=HERE, password=("ann", PASSWORD))
        assert found.user == "ann"
        security.close()

    asyncio.run(scenario())


def test_no_more_passwords_wait_than_may(users: Users) -> None:
    async def scenario() -> None:
        security = Security(users)
        come_in = [
            security.authenticate(door="flight", address=f"10.0.0.{n}:1", password=(f"u{n}", "guess"))
            for n in range(WAITING + 5)
        ]
        said = await asyncio.gather(*come_in, return_exceptions=True)
        assert sum("too many passwords" in str(error) for error in said) == 5
        security.close()

    asyncio.run(scenario())


def test_a_user_who_is_guessed_at_comes_in_from_where_he_has_been() -> None:
    clock = [0.0]
    attempts = Attempts(lambda: clock[0])
    attempts.begun("home", "ann")
    attempts.succeeded("home", "ann")
    for number in range(BY_USER):
        assert attempts.allowed(f"stranger {number}", "ann")
        attempts.begun(f"stranger {number}", "ann")
    assert not attempts.allowed("another stranger", "ann")
    assert attempts.allowed("home", "ann")
    assert attempts.allowed("another stranger", "bob")
    clock[0] = WINDOW
    assert attempts.allowed("another stranger", "ann")


def test_coming_in_often_is_no_failure() -> None:
    attempts = Attempts()
    for _ in range(10 * BY_USER):
        assert attempts.allowed("home", "ann")
        attempts.begun("home", "ann")
        attempts.succeeded("home", "ann")


def test_who_guesses_at_others_does_not_lock_out_who_came_in_from_the_same_address(users: Users) -> None:
    async def scenario() -> None:
        security = Security(users)

        async def come_in(name: str, password: str) -> str:
            try:
                found = await security.authenticate(door="flight", address=HERE, password=(name, password))
            except NotAuthenticated as error:
                return str(error)
            return found.user

        assert await come_in("ann", PASSWORD) == "ann"
        for number in range(BY_ADDRESS + 1):
            said = await come_in("bob", f"guess {number}")
        assert said.startswith("Too many")
        assert await come_in("ann", PASSWORD) == "ann"
        # Her own password is guessed at no more often than anybody's.
        for number in range(BY_ADDRESS + 1):
            said = await come_in("ann", f"guess {number}")
        assert said.startswith("Too many")
        security.close()

    asyncio.run(scenario())


def test_a_password_that_came_in_is_not_hashed_again(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    security = Security(users)
    hashed: list[str] = []

    def verify(known: str, secret: str) -> bool:
        hashed.append(secret)
        return secret == PASSWORD

    monkeypatch.setattr("stafeta.security.passwords.verify", verify)
    for _ in range(5):
        assert come(security, password=("ann", PASSWORD)).user == "ann"
    with pytest.raises(NotAuthenticated):
        come(security, password=("ann", "wrong horse"))
    assert hashed == [PASSWORD, "wrong horse"]
    # Neither from elsewhere, nor after it was changed.
    assert come(security, password=("ann", PASSWORD), address="10.0.0.2:1").user == "ann"
    security.replace(users.with_user("ann", User(hash_password("another one"))))
    come(security, password=("ann", PASSWORD))
    assert len(hashed) == 4


def test_a_password_that_is_changed_while_it_is_verified_is_the_old_one(users: Users) -> None:
    async def scenario() -> None:
        security = Security(users)
        coming = asyncio.ensure_future(
            security.authenticate(door="flight", address=HERE, password=("ann", PASSWORD))
        )
        await asyncio.sleep(0)
        security.replace(users.with_user("ann", User(hash_password("another one"))))
        with pytest.raises(NotAuthenticated):
            await coming
        security.close()

    asyncio.run(scenario())


def test_a_network_of_ipv6_is_one_address() -> None:
    security = Security(Users({"ann": User()}))
    said = []
    for number in range(BY_ADDRESS + 1):
        with pytest.raises(NotAuthenticated) as caught:
            come(security, address=f"[2001:db8::{number:x}]:5", password=("ann", "guess"))
        said.append(str(caught.value))
    assert said[-1].startswith("Too many")
    with pytest.raises(NotAuthenticated, match="unknown"):
        come(security, address="[2001:db8:0:1::1]:5", password=("bob", "guess"))
