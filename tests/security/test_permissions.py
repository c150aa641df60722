"""What a user may do, and what it costs to find out."""

from typing import Any

from stafeta.security import Role, Security, User, Users
from stafeta.security import permissions as module
from stafeta.security.permissions import source_of
from stafeta.security.rules import PUBLISH, Rule


def test_the_cost_of_a_decision_does_not_grow_with_users_and_rules() -> None:
    """Counted, not timed: how many nodes of rules are looked at for a message's topic."""

    def looked_at(count: int) -> int:
        roles = {"many": Role(tuple(Rule.read(f"publish t/{number}/+") for number in range(count)))}
        users = Users({f"u{number}": User(roles=("many",)) for number in range(count // 10)}, roles)
        permissions = Security(users).permissions("u3")
        trie = permissions._tries[0]
        seen = 0
        keys = type(trie)._covering

        def counting(self: Any, *arguments: Any) -> Any:
            nonlocal seen
            for node in keys(self, *arguments):
                seen += 1
                yield node

        type(trie)._covering = counting  # type: ignore[method-assign,assignment]
        try:
            assert permissions.on("t/7/x") & 1
            assert not permissions.on("u/7/x")
            before = seen
            for _ in range(1000):
                permissions.on("t/7/x")
            assert seen == before
        finally:
            type(trie)._covering = keys  # type: ignore[method-assign]
        return seen

    assert looked_at(100) == looked_at(10_000)


def test_what_is_remembered_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 100)
    security = Security(Users({name: User(allow=(Rule.read("publish #"),)) for name in ("ann", "bob")}))
    for number in range(1000):
        for name in ("ann", "bob"):
            assert security.permissions(name).on(f"t/{number}") == PUBLISH
    kept = [len(security.permissions(name)._masks) for name in ("ann", "bob")]
    assert sum(kept) <= 101


def test_a_topic_of_a_job_is_known_by_its_name() -> None:
    assert source_of("rollup/1m/a/b") == "a/b"
    assert source_of("alerts/hot/a") == "a"
    assert source_of("dead/a/b") == "a/b"
    assert [source_of(name) for name in ("rollup", "rollup/1m", "alerts", "dead", "rollups/1m/a", "a")] == [
        None
    ] * 6
