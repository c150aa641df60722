"""What the broker counts, as Prometheus reads it: `GET /metrics`."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from starlette.responses import Response

from stafeta.doors.http.call import Call

TOPICS: Final = 100  # that are named, where nothing else is asked for
MOST_TOPICS: Final = 1000


class Scraper(Protocol):
    async def scrape(self, accept: str, filter_: str, limit: int) -> tuple[bytes, str]:
        """The text, and its media type. With a filter `limit` topics at most are named."""


def route(scraper: Scraper) -> Mapping[str, Callable[[Call], Awaitable[Response]]]:
    async def metrics(call: Call) -> Response:
        """Of the topics that the parameter `topics` matches, too: `limit` of them at most."""
        call.verbs.check_sees_all()
        parameters = call.parameters
        filter_ = parameters.text("topics")
        limit = parameters.number("limit", 0, MOST_TOPICS, TOPICS) or 0
        parameters.end()
        body, media_type = await scraper.scrape(call.header("accept"), filter_, limit)
        return Response(body, 200, {"cache-control": "no-store"}, media_type)

    return {"GET": metrics}
