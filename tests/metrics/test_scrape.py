"""A scrape: names and forms as Prometheus has them, the figures of the broker, and bounded however much there is."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from stafeta.broker import Broker, lag, portions
from stafeta.broker.portions import PORTION
from stafeta.doors.figures import DoorFigures, MeasuredDoor
from stafeta.errors import InvalidName
from stafeta.metrics import Metrics
from stafeta.metrics.jobs import MOST
from stafeta.pipeline.runner.reports import Report
from stafeta.testing.memory import MemoryStore
from tests.broker.stores import run
from tests.broker.test_consumer import publish
from tests.doors.test_turns import MOST as TURN
from tests.doors.test_turns import TOPICS, counted
from tests.metrics.scrapes import families, values
from tests.metrics.test_lag import turns
from tests.waiting import PATIENCE


class Door:
    def figures(self) -> DoorFigures:
        return DoorFigures("test", 2, 5, {"tls": 3}, {"invalid": 4})


@asynccontextmanager
async def opened(doors: Sequence[MeasuredDoor] = ()) -> AsyncIterator[tuple[Broker, Metrics]]:
    broker = await Broker.open(MemoryStore())
    metrics = Metrics(broker, doors)
    metrics.start()
    await broker.lag()  # so that who asks later does not get what was found before
    with patch.object(lag, "WAIT", PATIENCE):  # else a busy machine shows what was before
        try:
            yield broker, metrics
        finally:
            metrics.close()
            await broker.close()


def test_every_family_is_named_and_formed_as_usual() -> None:
    async def work() -> None:
        async with opened([Door()]) as (broker, metrics):
            broker.subscribe("c", "t")
            await publish(broker, "t=1")
            await report(broker, Report("archive", "running", "now", 3, 100, 50.0, 7, 1))
            found = families(await metrics.scrape(filter_="#", limit=10))
            assert {name.partition("_")[0] for name in found} == {"stafeta", "process"}
            assert all(family.documentation for family in found.values())
            assert all(family.type != "unknown" for family in found.values())
            for family in found.values():
                if family.type == "histogram":
                    check_histogram(family)
                if family.type == "gauge" and not family.name.startswith("process"):
                    assert not family.name.endswith("_total"), family.name

    run(work())


def check_histogram(family: object) -> None:
    samples = getattr(family, "samples", [])
    buckets = [(float(one.labels["le"]), one.value) for one in samples if one.name.endswith("_bucket")]
    (count,) = [one.value for one in samples if one.name.endswith("_count")]
    assert buckets == sorted(buckets)
    assert [value for _, value in buckets] == sorted(value for _, value in buckets)
    assert buckets[-1] == (math.inf, count)
    assert [one.value for one in samples if one.name.endswith("_sum")]


def test_figures_are_those_of_the_broker() -> None:
    async def work() -> None:
        async with opened([Door()]) as (broker, metrics):
            consumer = broker.consumer("d")
            consumer.subscribe("t", durable=True)
            await publish(broker, "t=1", "t=2")
            batches = consumer.take(1 << 20)
            assert batches
            broker.subscribe("waits", "#")
            await publish(broker, "t=3")
            broker.security.failures["test"] += 2
            found = values(await metrics.scrape())
            assert found["stafeta_published_messages_total",] == 3
            assert found["stafeta_delivered_messages_total",] == 2
            assert found["stafeta_topics",] == 1
            assert found["stafeta_subscriptions",] == found["stafeta_clients",] == 2
            assert found["stafeta_durable_subscriptions",] == 2
            assert found["stafeta_lag_messages",] == 3 + 1
            assert found["stafeta_lag_messages_max",] == 3
            assert found["stafeta_subscriptions_behind_messages", "0"] == 2
            assert found["stafeta_subscription_lag_messages", "d", "t"] == 3
            assert found["stafeta_subscription_lag_seconds", "waits", "#"] >= 0
            assert found["stafeta_connections", "test"] == 2
            assert found["stafeta_connections_rejected_total", "test", "tls"] == 3
            assert found["stafeta_dropped_messages_total", "test", "invalid"] == 4
            assert found["stafeta_authentication_failures_total", "test"] == 2
            assert found["stafeta_refusing_messages",] == 0
            assert found["process_open_fds",] > 0

    run(work())


def test_openmetrics_is_written_for_who_asks_for_it() -> None:
    async def work() -> None:
        async with opened() as (broker, metrics):
            await publish(broker, "t=1")
            scrape = await metrics.scrape("application/openmetrics-text; version=1.0.0", "#", 0)
            assert scrape.content_type.startswith("application/openmetrics-text")
            names = {family.name for family in read_openmetrics(scrape.body.decode())}  # type: ignore[no-untyped-call]
            assert "stafeta_published_messages" in names

    run(work())


# --- topics


def test_topics_are_named_only_on_request_and_no_more_than_asked_for() -> None:
    async def work() -> None:
        async with opened() as (broker, metrics):
            await publish(broker, *[f"t/{number:02}=x" for number in range(30)], "other=1", "t/00=2")
            broker.subscribe("c", "t/+")
            await broker.commit()
            assert not [name for name, *_ in values(await metrics.scrape()) if "_topic_" in name]
            scrape = await metrics.scrape(filter_="t/#", limit=3)
            found = values(scrape)
            named = [key[1] for key in found if key[0] == "stafeta_topic_stored_messages"]
            assert named == ["t/00", "t/01", "t/02"]
            assert found["stafeta_topic_published_messages_total", "t/00"] == 2
            assert found["stafeta_topic_subscriptions", "t/01"] == 1
            assert found["stafeta_topics_left_out",] == 27
            assert scrape.body.endswith(b"# 27 more topics match; 3 are told of.\n")
            with pytest.raises(InvalidName):
                await metrics.scrape(filter_="a/b#")

    run(work())


def test_a_name_that_would_break_the_text_is_escaped() -> None:
    async def work() -> None:
        async with opened() as (broker, metrics):
            name = 'quote"back\\slash}=ü'
            await publish(broker, f"{name.replace('=', ':')}=x")
            found = values(await metrics.scrape(filter_="#", limit=10))
            assert ("stafeta_topic_stored_messages", name.replace("=", ":")) in found

    run(work())


def test_a_scrape_grows_neither_with_topics_nor_with_subscriptions() -> None:
    async def work() -> None:
        async with opened() as (broker, metrics):
            await publish(broker, "t/0=x")
            before = (await metrics.scrape()).body.count(b"\n")
            many = 4 * PORTION
            for number in range(many):
                broker.subscribe(f"c{number}", f"t/{number}")
            await publish(broker, *[f"t/{number}=x" for number in range(many)])
            await broker.lag()
            loop = asyncio.get_running_loop()
            scrape = await metrics.scrape()
            assert values(scrape)["stafeta_topics",] == many
            assert scrape.body.count(b"\n") < before + 100, "the slowest are named, and no others"
            asked = loop.create_task(broker.lag())
            assert await turns(asked) <= 2, "what is read on the loop does not depend on how many there are"
            one = loop.create_task(metrics.scrape(filter_="#", limit=1))
            assert await turns(one) >= many // PORTION, "topics are counted in portions"

    run(work())


def test_no_turn_of_a_scrape_looks_at_more_than_a_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(portions, "PORTION", TURN)
        monkeypatch.setattr(portions, "FEW", TURN // 10)
        async with opened() as (broker, metrics):
            broker.subscribe("all", "#")
            await publish(broker, *[f"t/{number}=x" for number in range(TOPICS)])
            with counted() as seen:
                await asyncio.sleep(0)  # the turn that began with what is not counted
                found = values(await metrics.scrape(filter_="#", limit=TOPICS))
            assert found["stafeta_lag_messages",] == TOPICS
            assert ("stafeta_topic_stored_messages", f"t/{TOPICS - 1}") in found
            assert 1 < seen.most <= TURN

    run(work())


# --- jobs


async def report(broker: Broker, said: Report) -> None:
    broker.publish_own(said.topic, said.to_json().encode())
    await broker.commit()


def test_jobs_are_told_of_as_they_last_reported() -> None:
    async def work() -> None:
        async with opened() as (broker, metrics):
            await report(broker, Report("archive", "running", "now", 3, 100, 50.0, 7, 1))
            broker.publish_own("$sys/pipeline/control", b'{"stop": []}')
            broker.publish_own("$sys/pipeline/strange", b"[1")
            broker.publish_own("$sys/pipeline/liar", json.dumps(vars(Report("archive"))).encode())
            await report(broker, Report("rollup", "failed", "now", 3, 5, error="it broke"))
            for state in ("running", "failed"):
                await report(broker, Report("archive", state, "now", 4, 200, "many", 9, 2))  # type: ignore[arg-type]
                found = values(await metrics.scrape())
                assert found["stafeta_job_state", "archive", state] == 1
            assert found["stafeta_job_state", "archive", "running"] == 0
            assert found["stafeta_job_state", "rollup", "failed"] == 1
            assert found["stafeta_job_rows_total", "archive"] == 200
            assert found["stafeta_job_rows_per_second", "archive"] == 0, "what is no number is none"
            assert found["stafeta_job_lag_messages", "archive"] == 9
            assert found["stafeta_job_restarts_total", "archive"] == 2
            assert 0 <= found["stafeta_job_report_age_seconds", "archive"] < 3600
            assert {key[1] for key in found if key[0] == "stafeta_job_rows_total"} == {"archive", "rollup"}

    run(work())


def test_no_more_than_so_many_jobs_are_told_of() -> None:
    async def work() -> None:
        async with opened() as (broker, metrics):
            for number in range(MOST + 5):
                await report(broker, Report(f"job{number:03}", "running", "now", 1, 1))
            found = values(await metrics.scrape())
            assert len([key for key in found if key[0] == "stafeta_job_rows_total"]) == MOST

    run(work())


def test_the_loop_says_how_late_it_is() -> None:
    async def work() -> None:
        async with opened() as (_, metrics):
            while not values(await metrics.scrape())["stafeta_loop_lag_seconds_count",]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    run(work())
