"""What a principal may do, as the verbs of `guarded.py` ask for it.

1. What was decided is good for one generation of the users. A principal who would not be let in any more is refused.
2. A user may make only so many topics.
"""

from collections.abc import Collection
from time import monotonic
from typing import TYPE_CHECKING

from stafeta.broker.topic import Subscription, Topic
from stafeta.errors import InvalidClient, LimitReached, NotPermitted
from stafeta.message import Batch
from stafeta.names import COUNTER_PREFIX, USERS_PREFIX, check_filter, client_of, owned
from stafeta.security import Principal
from stafeta.security.pace import Pace
from stafeta.security.permissions import BROKER, Permissions
from stafeta.security.rules import ADMINISTER, LIST, PUBLISH, READ, SUBSCRIBE
from stafeta.store.port import ReadNext

if TYPE_CHECKING:
    from stafeta.broker.broker import Broker


SHOWN = 1000  # characters of a statement that are noted
_NOT_SAID = (USERS_PREFIX, COUNTER_PREFIX + USERS_PREFIX)  # which only the broker puts before names


class UserTopics:
    """The topics that each user has made since the start, and that are there still."""

    def __init__(self) -> None:
        self._made: dict[str, set[str]] = {}
        self._pruned: dict[str, float] = {}  # when it was last seen which of them have gone

    def check(self, broker: "Broker", user: str, name: str) -> None:
        """Call before a topic is made."""
        made, most = self._made.setdefault(user, set()), broker.limits.max_user_topics
        if len(made) >= most and monotonic() - self._pruned.get(user, -1.0) >= 1.0:  # which takes a while
            known = broker.topics
            made.intersection_update([one for one in made if one in known and known[one].exists])
            self._pruned[user] = monotonic()
        if len(made) >= most:
            raise LimitReached(
                f"User {user!r} has made {most} topics, as many as limits.max_user_topics allows."
            )
        made.add(name)


class Checked:
    """What is checked for a principal. It has no verbs."""

    __slots__ = (
        "_broker",
        "_generation",
        "_own",
        "_permissions",
        "_publish",
        "_publishable",
        "_topics",
        "pace",
        "principal",
    )

    def __init__(self, broker: "Broker", principal: Principal) -> None:
        self._broker = broker
        self._topics = broker.topics
        self.principal = principal
        self.pace: Pace | None = broker.paces.of(principal)
        self._publish = broker.publish
        self._generation = -1
        self._permissions: Permissions
        self._may()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.principal.user!r})"

    # --- checks

    def _may(self) -> Permissions:
        """What the user may do now; raises `NotAuthenticated` where he is nobody any more."""
        security = self._broker.security
        if security.generation != self._generation:
            security.check(self.principal)
            self._permissions = security.permissions(self.principal.user)
            self._publishable: dict[str, Topic] = self._permissions.publishable
            self._own = "" if security.plain_user == self.principal.user else owned(self.principal.user, "")
            self._generation = security.generation
        return self._permissions

    def _name(self, client: str) -> str:
        """What a client is called at the broker."""
        if client.startswith(_NOT_SAID):
            raise InvalidClient(f"The client id {client!r:.80} is kept for users' own; choose another.")
        return self._own + client if client else ""

    def _check(self, operation: int, name: str, client: str = "") -> None:
        permissions = (
            self._permissions if self._generation == self._broker.security.generation else self._may()
        )
        if not permissions.on(name, client or self.principal.client) & operation:
            raise self._refused(permissions, operation, name)

    def _checking(self, operation: int, names: Collection[str], read: ReadNext) -> ReadNext:
        """The same, where all of these are checked now and before each portion."""

        async def checked(size: int, overhead: int) -> list[Batch]:
            for name in names:
                self._check(operation, name)
            return await read(size, overhead)

        for name in names:
            self._check(operation, name)
        return checked

    def _refused(self, permissions: Permissions, operation: int, name: str) -> NotPermitted:
        self._broker.security.observe_refusal(self.principal, operation, name)
        return permissions.refusal(operation, name)

    def _check_filter(self, operation: int, filter_: str, client: str = "") -> None:
        check_filter(filter_)
        security = self._broker.security
        try:
            self._may().check_filter(
                operation, filter_, client or self.principal.client, whole=security.whole_filters
            )
        except NotPermitted:
            security.observe_refusal(self.principal, operation, filter_)
            raise

    def _now_on(self, name: str, client: str) -> int:
        """What the user may do with a topic now, whoever he is; nothing where he is nobody any more."""
        security = self._broker.security
        current = self._generation == security.generation
        permissions = self._permissions if current else security.permissions(self.principal.user)
        return permissions.on(name, client)

    def _administers(self) -> bool:
        return bool(self._may().on(BROKER) & ADMINISTER)

    def sees_all(self) -> bool:
        """Whether the principal administers the broker, or may list every topic."""
        if self._administers():
            return True
        try:
            self._may().check_filter(LIST, "#", self.principal.client, whole=True)
        except NotPermitted:
            return False
        return True

    def check_sees_all(self) -> None:
        """Refuses who neither administers the broker nor may list every topic."""
        if not self.sees_all():
            raise self._refused(self._permissions, ADMINISTER, BROKER)

    def may_query(self) -> bool:
        """Whether the principal may ask a pipeline's Spark, which reads every topic: he administers the broker, and may
        read them all."""
        if not self._administers():
            return False
        try:
            self._may().check_filter(READ, "#", self.principal.client, whole=True)
        except NotPermitted:
            return False
        return True

    def check_may_query(self) -> None:
        """Refuses who does not administer the broker, or may not read every topic."""
        if not self._administers():
            raise self._refused(self._permissions, ADMINISTER, BROKER)
        if not self.may_query():
            raise self._refused(self._permissions, READ, "#")

    def record_query(self, statement: str) -> None:
        """Notes in the log of who did what that a pipeline's Spark is asked this, by somebody who may."""
        self.check_may_query()
        if len(statement) > SHOWN:
            statement = f"{statement[:SHOWN]}… ({len(statement):,} characters)"
        self._broker.security.observer("sql", **self._who(), what=statement)

    def check_alive(self) -> None:
        """Raises `NotAuthenticated` where the principal would not be let in any more."""
        self._may()

    def may_publish(self, name: str) -> bool:
        return bool(self._may().on(name, self.principal.client) & PUBLISH)

    def _check_publish(self, name: str, producer: str = "") -> None:
        """Also before a topic is made, of which a user may make only so many."""
        self._check(PUBLISH, name, client_of(producer) if producer else "")
        topic = self._topics.get(name)
        if topic is None or not topic.exists:
            self._broker.user_topics.check(self._broker, self.principal.user, name)
        else:
            self._permissions.note_published(name, topic)

    def _owned(self, subscription: Subscription) -> Subscription:
        """A subscription that is this user's, or that he administers."""
        self._may()
        if not self._is_own(subscription.client) and not self._administers():
            raise self._refused(self._permissions, SUBSCRIBE, subscription.filter)
        return subscription

    def _is_own(self, name: str) -> bool:
        return name.startswith(self._own) and not (not self._own and name.startswith(USERS_PREFIX))

    def _shown(self, name: str) -> str:
        """A client's name as this user knows it: another's has its user before it."""
        return name.removeprefix(self._own) if self._is_own(name) else name

    def _who(self) -> dict[str, str]:
        principal = self.principal
        return {"user": principal.user, "door": principal.door, "address": principal.address}
