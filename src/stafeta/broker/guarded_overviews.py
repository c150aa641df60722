"""What there is, as one user may see it; and subscriptions that are found in these lists."""

from stafeta.broker import overview
from stafeta.broker.checks import Checked
from stafeta.broker.overview import ClientLine, SubscriptionLine
from stafeta.broker.topic import Subscription
from stafeta.errors import NotSubscribed
from stafeta.names import USERS_PREFIX


class Overviews(Checked):
    """Part of `GuardedBroker`."""

    __slots__ = ()

    def stats(self) -> dict[str, object]:
        """What the broker does; to those who do not administer it, what they see of it anyway."""
        found = self._broker.stats()
        if self._administers():
            return found
        return {name: found[name] for name in ("position", "uptime")}

    async def client_lines(self, after: str, limit: int) -> list[ClientLine]:
        """The user's own, unless he administers the broker: then all, by the names that they have there."""
        if self._administers():
            return await self._broker.client_lines(after, limit)
        lines = await overview.clients(self._broker, self._own + after, limit, self._is_own)
        return [line._replace(client=self._shown(line.client)) for line in lines]

    async def subscription_lines(
        self, after: tuple[str, str], limit: int, wanted: str = "", *, search: str = ""
    ) -> list[SubscriptionLine]:
        if self._administers():
            return await self._broker.subscription_lines(after, limit, wanted, search=search)
        began = self._own + after[0], after[1]
        lines = await overview.subscriptions(self._broker, began, limit, wanted, self._is_own, search=search)
        return [line._replace(client=self._shown(line.client)) for line in lines]

    async def lagging_lines(
        self, limit: int, *, by_age: bool = False, wanted: str = "", search: str = ""
    ) -> list[SubscriptionLine]:
        if self._administers():
            return await self._broker.lagging_lines(limit, by_age=by_age, wanted=wanted, search=search)
        lines = await overview.lagging(
            self._broker, limit, self._is_own, by_age=by_age, wanted=wanted, search=search
        )
        return [line._replace(client=self._shown(line.client)) for line in lines]

    def subscription_named(self, client: str, filter_: str) -> Subscription:
        """The user's own, or any where he administers the broker: by the names that the lists show him."""
        self._may()
        if not client.startswith(USERS_PREFIX):
            client = self._name(client)
        elif not self._administers():
            raise NotSubscribed(f"Client {client!r} has no subscription to {filter_!r}.")
        return self._broker.subscription_named(client, filter_)

    def end_subscription(self, subscription: Subscription) -> None:
        self._broker.end_subscription(self._owned(subscription))

    def durable_subscriptions(self) -> list[tuple[str, Subscription]]:
        """Each with the name of its client."""
        everyone = self._broker.durable_subscriptions()
        if not self._administers():
            everyone = [one for one in everyone if self._is_own(one[0])]
        return [(self._shown(client), one) for client, one in everyone]
