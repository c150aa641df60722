"""A folder in which something is damaged: the broker starts, says so, and serves what is whole."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.broker import Broker, Limits
from stafeta.broker.consumer import Consumer
from stafeta.broker.topic import Retention
from stafeta.doors.flight.readers import RangeReader
from stafeta.doors.zeromq import actions
from stafeta.doors.zeromq.codec import Get
from stafeta.errors import OutOfSequence, StoreDamaged
from stafeta.examination import examine
from stafeta.store.sqlite import SqliteStore
from stafeta.store.sqlite.seals import mended, opened, seal
from tests.broker.stores import FailingSqlite, run
from tests.soundness import assert_sound

VALUES = st.one_of(st.integers(-(1 << 62), 1 << 62), st.text(max_size=20), st.binary(max_size=20), st.none())


@given(st.lists(VALUES, min_size=1, max_size=5), st.data())
def test_a_row_with_one_flipped_bit_is_put_right(row: list[object], data: st.DataObject) -> None:
    sealed = (*row, seal("t", *row))
    assert opened("t", sealed) == tuple(row)
    flippable = [at for at, value in enumerate(sealed) if value not in (None, "", b"")]
    at = data.draw(st.sampled_from(flippable))
    damaged = list(sealed)
    value = damaged[at]
    if isinstance(value, int):
        bits = 32 if at == len(row) else 62
        damaged[at] = value ^ 1 << data.draw(st.integers(0, bits - 1))
    else:
        assert isinstance(value, str | bytes)
        stored = bytearray(value.encode() if isinstance(value, str) else value)
        bit = data.draw(st.integers(0, 8 * len(stored) - 1))
        stored[bit // 8] ^= 1 << bit % 8
        damaged[at] = stored.decode(errors="surrogateescape") if isinstance(value, str) else bytes(stored)
    assert opened("t", tuple(damaged)) == tuple(row)


def test_a_row_that_is_worse_is_not() -> None:
    assert mended("t", (1, "name", 7, seal("t", 1, "other", 9))) is None


def test_a_cursor_that_is_lost_is_repaired_to_begin_again(tmp_path: Path) -> None:
    async def work() -> None:
        await filled(tmp_path)
        with database(tmp_path) as connection:
            connection.execute(
                "UPDATE cursor SET floor = 3000, sum = 12345 WHERE subscription = 1 AND topic = 1"
            )
        _, lost = examine(tmp_path, repair=True)
        assert lost is not None
        assert [finding.sentence for finding in lost.findings] == [
            "A row of table cursor is left out, since it is damaged: (1, 1, 3000).",
            "Client 'one' gets 'a/1' from 1 on again.",
        ]
        assert_sound(tmp_path)
        broker = await Broker.open(FailingSqlite(tmp_path))
        assert (await everything(broker, "one", "a/#"))["a/1"] == [*range(1, 21)]
        assert (await everything(broker, "two", "a/1"))["a/1"] == [*range(11, 21)]
        assert broker.publish_sequence("a/1", [b"20"], "p", 20) == (20, 20), "a retry is one still"
        await broker.close()

    run(work())


async def filled(folder: Path) -> None:
    broker = await Broker.open(FailingSqlite(folder, checkpoint_rows=10))
    broker.subscribe("one", "a/#")
    broker.subscribe("two", "a/1")
    for number in range(1, 21):
        for topic in range(3):
            broker.publish_sequence(f"a/{topic}", [b"%d" % number], "p", number, create=True)
        await broker.commit()
    for client, filter_ in (("one", "a/#"), ("two", "a/1")):
        broker.ack(broker.subscription(client, filter_), broker.topic("a/1"), 1, 11)
    await broker.commit()
    await broker.close()


@contextmanager
def database(folder: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(folder / "stafeta.db", isolation_level=None)) as connection:
        yield connection


async def everything(broker: Broker, client: str, filter_: str) -> dict[str, list[int]]:
    """The offsets that a subscriber gets, by topic."""
    subscription = broker.subscription(client, filter_)
    found: dict[str, list[int]] = {}
    for batch in await broker.fetch(subscription, list(subscription.cursors), 1 << 20):
        found.setdefault(batch.topic, []).extend(range(batch.base, batch.end))
    return found


def test_a_cursor_that_is_lost_begins_again_and_nothing_is_collected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        await filled(tmp_path)
        with database(tmp_path) as connection:
            connection.execute(
                "UPDATE cursor SET floor = 3000, sum = 12345 WHERE subscription = 1 AND topic = 2"
            )
        broker = await Broker.open(FailingSqlite(tmp_path))
        assert "a row of table cursor is damaged and left out: (1, 2, 3000)" in caplog.text
        assert "nothing is collected until this is repaired" in caplog.text
        whole = list(range(1, 21))
        assert await everything(broker, "one", "a/#") == {
            "a/0": whole,
            "a/1": list(range(11, 21)),
            "a/2": whole,
        }
        assert broker.topic("a/1").first == 1
        subscription = broker.subscription("one", "a/#")
        for name in ("a/0", "a/1", "a/2"):
            broker.ack(subscription, broker.topic(name), 1, 21)
        await broker.commit()
        await broker.collector.collect()
        assert broker.topic("a/0").first == 1
        await broker.close()
        assert_sound(tmp_path)  # the row was written anew
        broker = await Broker.open(FailingSqlite(tmp_path))
        await broker.collector.collect()
        assert broker.topic("a/0").first == 21, "and now it is collected"
        await broker.close()

    run(work())


def test_where_a_subscription_is_lost_its_topic_does_not_go_with_the_last_that_is_known(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        await filled(tmp_path)
        with database(tmp_path) as connection:
            connection.execute(
                "UPDATE subscription SET client = 'damaged', filter = 'x' WHERE client = 'one'"
            )
        broker = await Broker.open(FailingSqlite(tmp_path))
        broker.unsubscribe("two", "a/1")
        await broker.commit()
        await broker.collector.collect()
        assert broker.topic("a/1").first == 1
        assert sum([batch.count for batch in await broker.read(broker.topic("a/1"), 1, 1 << 20)]) == 20
        await broker.close()

    run(work())


def test_a_topic_whose_row_is_lost_is_found_again_under_another_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        await filled(tmp_path)
        with database(tmp_path) as connection:
            connection.execute("UPDATE topic SET name = 'damaged', next = 5 WHERE name = 'a/2'")
        broker = await Broker.open(FailingSqlite(tmp_path))
        assert "a row of table topic is damaged and left out" in caplog.text
        assert await everything(broker, "one", "a/#") == {"a/0": [*range(1, 21)], "a/1": [*range(11, 21)]}
        broker.publish("a/2", b"anew")
        await broker.commit()
        await broker.close()
        report, lost = examine(tmp_path, repair=True)
        assert not report.sound
        assert lost is not None
        assert any("its messages are in 'lost/3'" in finding.sentence for finding in lost.findings)
        assert_sound(tmp_path)
        broker = await Broker.open(FailingSqlite(tmp_path))
        await broker.collector.collect()
        assert await everything(broker, "quarantine", "lost/3") == {"lost/3": [*range(1, 21)]}
        assert (await everything(broker, "one", "a/#"))["a/2"] == [1]
        await broker.close()

    run(work())


def test_where_a_producer_is_not_known_any_more_it_may_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        await filled(tmp_path)
        broker = await Broker.open(FailingSqlite(tmp_path))
        with pytest.raises(OutOfSequence):
            broker.publish_sequence("a/1", [b"x"], "p", 25)
        await broker.close()
        with database(tmp_path) as connection:
            connection.execute("UPDATE producer SET state = zeroblob(9) WHERE topic = 2")
        broker = await Broker.open(FailingSqlite(tmp_path))
        assert "a row of table producer is damaged" in caplog.text
        assert broker.publish_sequence("a/1", [b"x"], "p", 25) == (21, 21)
        assert broker.publish_sequence("a/1", [b"x"], "p", 25) == (21, 21), "from there on it counts again"
        await broker.commit()
        await broker.close()

    run(work())


def test_a_damaged_block_after_the_checkpoint_does_not_keep_the_broker_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        store = FailingSqlite(tmp_path, checkpoint_rows=1000)
        broker = await Broker.open(store)
        broker.subscribe("one", "a")
        for number in range(1, 11):
            broker.publish_sequence("a", [b"%d" % number], "p", number)
            await broker.commit()
        position = broker.commits.position
        store.crash()
        with database(tmp_path) as connection:
            connection.execute("UPDATE block SET body = zeroblob(length(body)) WHERE id IN (5, 10)")
        broker = await Broker.open(FailingSqlite(tmp_path))
        assert "Stored batch 5 is damaged" in caplog.text
        assert "It has 5 to 5 of 'a'" in caplog.text
        assert await everything(broker, "one", "a") == {"a": [1, 2, 3, 4]}
        broker.ack(broker.subscription("one", "a"), broker.topic("a"), 1, 5)
        with pytest.raises(StoreDamaged, match="message 5 of 'a' cannot be read"):
            await everything(broker, "one", "a")
        await broker.skip("a", 5, 6)
        assert await everything(broker, "one", "a") == {"a": [6, 7, 8, 9]}
        assert broker.publish("a", b"new") == 11, "no offset is used again"
        assert broker.commits.position > position + 1, "nor a position"
        assert broker.publish_sequence("a", [b"y"], "p", 11) == (12, 12)
        await broker.commit()
        await broker.close()

    run(work())


def test_a_feed_of_many_topics_goes_on_with_those_that_are_whole(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path, checkpoint_rows=10))
        broker.subscribe("one", "t/#")
        for number in range(1, 6):
            for topic in range(5):
                broker.publish(f"t/{topic}", b"%d" % number)
                await broker.commit()
        await broker.close()
        with database(tmp_path) as connection:  # the second message of t/2
            connection.execute("UPDATE block SET body = zeroblob(length(body)) WHERE id = 8")
        broker = await Broker.open(FailingSqlite(tmp_path), tail=0)
        called: list[int] = []
        consumer = broker.consumer("one", lambda: called.append(1))
        consumer.resume()
        found, told = await taken(consumer)
        assert found == {"t/2": [1], **{f"t/{topic}": [1, 2, 3, 4, 5] for topic in (0, 1, 3, 4)}}
        assert [(error.topic, error.start, error.stop) for error in told] == [("t/2", 2, 3)]
        for name in ("t/2", "t/4"):  # what comes on the damaged topic waits, and is not told again
            broker.publish(name, b"more")
            await broker.commit()
        assert await taken(consumer) == ({"t/4": [6]}, [])
        called.clear()
        await broker.skip("t/2", 2, 3)
        assert called
        assert await taken(consumer) == ({"t/2": [3, 4, 5, 6]}, [])
        await broker.close()

    run(work())


def test_of_several_topics_that_are_read_together_what_comes_before_damage_is_whole(tmp_path: Path) -> None:
    async def work() -> None:
        await several(tmp_path, topics=5, each=5)
        zero_bodies(tmp_path, 8)  # the second message of t/2
        broker = await Broker.open(FailingSqlite(tmp_path), tail=0)
        topics = [broker.topic(f"t/{topic}") for topic in range(5)]

        async def read(start: int) -> list[tuple[str, int]]:
            scan = broker.scan([(topic, start, 100) for topic in topics])
            return [
                (batch.topic, offset)
                for portion in [await scan(1 << 20, 1), await scan(1 << 20, 1)]
                for batch in portion
                for offset in range(batch.base, batch.end)
            ]

        scan = broker.scan([(topic, 1, 100) for topic in topics])
        before = [(batch.topic, batch.base) for batch in await scan(1 << 20, 1)]
        assert before == [*[(f"t/{topic}", 1) for topic in range(5)], ("t/0", 2), ("t/1", 2)]
        for _ in range(2):
            with pytest.raises(StoreDamaged, match="message 2 of 't/2' cannot be read"):
                await scan(1 << 20, 1)
        assert await read(3) == [(f"t/{topic}", offset) for offset in (3, 4, 5) for topic in range(5)]
        await broker.skip("t/2", 2, 3)
        assert len(await read(1)) == 24
        await broker.close()

    run(work())


def test_who_counts_by_position_does_not_acknowledge_what_waits_behind_damage(tmp_path: Path) -> None:
    async def work() -> None:
        await several(tmp_path, topics=5, each=5)
        zero_bodies(tmp_path, 8)  # the second message of t/2
        broker = await Broker.open(FailingSqlite(tmp_path), tail=0)
        found: list[tuple[str, int]] = []
        position = 0

        async def get() -> None:
            nonlocal position
            delivery = await actions._deliver(broker, Get("one", "t/#", after=position, limit=100), 1 << 20)
            for batch in delivery.batches:
                found.extend((batch.topic, offset) for offset in range(batch.base, batch.end))
                position = max(position, batch.last_position)

        async def get_all() -> None:
            for _ in range(25):
                await get()

        with pytest.raises(StoreDamaged, match="message 2 of 't/2' cannot be read"):
            await get_all()
        assert [offset for topic, offset in found if topic == "t/2"] == [1]
        assert ("t/1", 3) in found, "what comes before the next message that can be read is not held up"
        await broker.skip("t/2", 2, 3)
        for _ in range(25):
            await get()
        assert sorted(found) == sorted(
            (f"t/{topic}", n) for topic in range(5) for n in range(1, 6) if (topic, n) != (2, 2)
        )
        await broker.close()

    run(work())


async def several(folder: Path, *, topics: int, each: int) -> None:
    """Topics t/0, t/1, … that are published to in turn, each message in a block of its own."""
    broker = await Broker.open(FailingSqlite(folder, checkpoint_rows=10))
    broker.subscribe("one", "t/#")
    for number in range(1, each + 1):
        for topic in range(topics):
            broker.publish(f"t/{topic}", b"%d" % number)
            await broker.commit()
    await broker.close()


def zero_bodies(folder: Path, *blocks: int) -> None:
    with database(folder) as connection:
        connection.executemany(
            "UPDATE block SET body = zeroblob(length(body)) WHERE id = ?", [(b,) for b in blocks]
        )


def test_neighbours_may_be_skipped_in_any_order_and_again(tmp_path: Path) -> None:
    async def work() -> None:
        await several(tmp_path, topics=1, each=10)
        zero_bodies(tmp_path, 4, 5, 7, 8)
        broker = await Broker.open(FailingSqlite(tmp_path), Limits(max_gaps=0), tail=0)
        for start, stop in ((5, 6), (4, 5), (7, 9), (7, 8)):
            await broker.skip("t/0", start, stop)
        for _ in range(2):
            assert broker.topic("t/0").skipped == ((4, 5), (5, 6), (7, 9))
            reader = RangeReader(broker, broker.topic("t/0"), 1, 11)
            found: list[int] = []
            while (batches := await reader.next()) is not None:
                found += [offset for batch in batches for offset in range(batch.base, batch.end)]
            assert found == [1, 2, 3, 6, 9, 10]
            assert (await everything(broker, "one", "t/#"))["t/0"] == found
            await broker.close()
            broker = await Broker.open(FailingSqlite(tmp_path), tail=0)
        await broker.close()

    run(work())


def test_retention_keeps_everything_where_the_index_is_damaged(tmp_path: Path) -> None:
    async def work() -> None:
        def keep(name: str) -> Retention:
            return Retention(age=3600 * 1_000_000)

        await several(tmp_path, topics=1, each=200)
        with database(tmp_path) as connection:
            connection.execute("UPDATE page SET runs = zeroblob(length(runs)) WHERE base <= 95 AND end > 95")
        broker = await Broker.open(FailingSqlite(tmp_path), retention=keep)
        broker.ack(broker.subscription("one", "t/#"), broker.topic("t/0"), 1, 201)
        await broker.commit()
        await broker.collector.collect()
        assert broker.topic("t/0").first == 1
        await broker.close()

    run(work())


@pytest.mark.parametrize("before", range(1, 12))
def test_a_row_of_the_index_that_is_found_elsewhere_does_not_give_offsets_out_again(
    tmp_path: Path, before: int
) -> None:
    """Its key is damaged where it lies, so that the one before it looks like the last."""
    whole = tmp_path / "whole"
    run(several(whole, topics=2, each=30))
    with database(whole) as connection:
        (runs,) = connection.execute("SELECT runs FROM page WHERE topic = 1 ORDER BY base DESC").fetchone()
    content = (whole / "stafeta.db").read_bytes()

    async def work(folder: Path) -> None:
        with suppress(StoreDamaged):
            broker = await Broker.open(FailingSqlite(folder))
            assert broker.publish("t/0", b"new") == 31
            await broker.commit()
            await broker.close()

    for bit in range(0, 8, 2):
        folder = tmp_path / str(bit)
        shutil.copytree(whole, folder)
        changed = bytearray(content)
        changed[content.rindex(runs) - before] ^= 1 << bit
        (folder / "stafeta.db").write_bytes(changed)
        run(work(folder))


def test_where_it_is_not_known_which_messages_a_batch_had_no_offset_is_given_out_again(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        store = FailingSqlite(tmp_path, checkpoint_rows=1000)
        broker = await Broker.open(store)
        broker.subscribe("one", "a")
        for number in range(1, 11):
            broker.publish("a", b"%d" % number)
            await broker.commit()
        position = broker.commits.position
        store.crash()
        with database(tmp_path) as connection:
            connection.execute("UPDATE block SET header = zeroblob(length(header)) WHERE id = 10")
        with pytest.raises(StoreDamaged, match="which messages stored batch 10 has"):
            await Broker.open(FailingSqlite(tmp_path))
        _, lost = examine(tmp_path, repair=True)
        assert lost is not None
        assert [(one.topic, one.start) for one in lost.findings if one.topic] == [("a", 10)]
        assert_sound(tmp_path)
        broker = await Broker.open(FailingSqlite(tmp_path))
        assert (await everything(broker, "one", "a"))["a"] == [*range(1, 10)]
        assert broker.publish("a", b"new") > 10
        assert broker.commits.position > position + 1
        await broker.commit()
        await broker.close()

    run(work())


def test_what_a_lost_subscription_waits_for_is_held_and_ids_do_not_meet(tmp_path: Path) -> None:
    async def work() -> None:
        await filled(tmp_path)
        for name in ("a/2", "a/0"):  # twice: what a repair has made is there at the next
            with database(tmp_path) as connection:
                connection.execute("UPDATE topic SET next = 5, first = 3 WHERE name = ?", (name,))
                connection.execute("UPDATE subscription SET client = 'x', start = 77 WHERE client = 'two'")
            _, lost = examine(tmp_path, repair=True)
            assert lost is not None
            assert_sound(tmp_path)
            broker = await Broker.open(FailingSqlite(tmp_path))
            broker.subscribe("new", f"new/{name}")
            await broker.commit()
            await broker.collector.collect()
            assert (await everything(broker, "quarantine", "a/1"))["a/1"] == [*range(11, 21)]
            await broker.close()

    run(work())


def test_a_row_that_holds_what_another_has_is_damaged_and_no_more(tmp_path: Path) -> None:
    async def work() -> None:
        await several(tmp_path, topics=1, each=20)
        with database(tmp_path) as connection:
            connection.execute("UPDATE block SET header = 'text', body = 7, segment = 'x' WHERE id = 3")
            connection.execute("UPDATE block SET body = 'text', checksum = 'x' WHERE id = 5")
            connection.execute("UPDATE block SET header = x'00' WHERE id = 7")
        broker = await Broker.open(FailingSqlite(tmp_path), tail=0)
        await broker.collector.collect()
        assert (await everything(broker, "one", "t/#"))["t/0"] == [1, 2]
        await broker.close()
        _, lost = examine(tmp_path, repair=True)
        assert lost is not None
        assert [(one.start, one.stop) for one in lost.findings if one.topic] == [(3, 4), (5, 6), (7, 8)]
        assert_sound(tmp_path)

    run(work())


def test_a_flipped_bit_that_is_put_right_is_found_by_check(tmp_path: Path) -> None:
    run(several(tmp_path, topics=1, each=20))
    with database(tmp_path) as connection:
        (body,) = connection.execute("SELECT body FROM block WHERE id = 3").fetchone()
        flipped = bytearray(body)
        flipped[-1] ^= 1
        connection.execute("UPDATE block SET body = ? WHERE id = 3", (bytes(flipped),))
    report, _ = examine(tmp_path)
    assert [finding.sentence for finding in report.findings] == ["A bit of stored batch 3 is flipped."]
    examine(tmp_path, repair=True)
    assert_sound(tmp_path)


def test_a_log_without_its_header_is_not_taken_for_empty(tmp_path: Path) -> None:
    async def work() -> None:
        broker = await Broker.open(FailingSqlite(tmp_path / "one"))
        broker.subscribe("one", "a")
        await broker.commit()
        await broker.close()
        broker = await Broker.open(FailingSqlite(tmp_path / "one", checkpoint_rows=1000))
        for number in range(1, 11):
            broker.publish("a", b"%d" % number)
            await broker.commit()
        shutil.copytree(tmp_path / "one", tmp_path / "two", ignore=shutil.ignore_patterns("*-shm", "lock"))
        await broker.close()
        log = tmp_path / "two" / "stafeta.db-wal"
        with log.open("r+b") as file:
            file.write(bytes(4096))
        with pytest.raises(StoreDamaged, match=r"The header of .* is damaged"):
            await Broker.open(SqliteStore(tmp_path / "two"))
        before = log.read_bytes()
        report, _ = examine(tmp_path / "two")
        assert not report.sound
        assert log.read_bytes() == before, "to look at it changes nothing"
        _, lost = examine(tmp_path / "two", repair=True)
        assert lost is not None
        kept = [path.read_bytes() for path in (tmp_path / "two" / "quarantine").rglob("*-wal*")]
        assert before in kept

    run(work())


async def taken(consumer: Consumer) -> tuple[dict[str, list[int]], list[StoreDamaged]]:
    """All that a consumer hands out, and what it says cannot be."""
    found: dict[str, list[int]] = {}
    told: list[StoreDamaged] = []
    while consumer.ready:
        try:
            batches = consumer.take(1 << 20)
            if batches is None:
                batches = await consumer.read(1 << 20)
        except StoreDamaged as error:
            told.append(error)
            continue
        for batch in batches:
            found.setdefault(batch.topic, []).extend(range(batch.base, batch.end))
    return found, told
