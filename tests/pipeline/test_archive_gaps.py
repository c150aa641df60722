"""The archive where lake, log, checkpoint and notes do not fit together: nothing is passed over without a word."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from stafeta.errors import DataLoss
from stafeta.pipeline import checkpoint_files
from stafeta.pipeline.jobs.archiving.retention import FORMER, RetentionKeeper, holder
from stafeta.pipeline.jobs.archiving.starts import plan, sentence
from stafeta.pipeline.jobs.audit import audit
from stafeta.pipeline.lake import Lake
from stafeta.pipeline.lake.archived import ARCHIVED, Known
from stafeta.pipeline.lake.catalog import LAKE
from tests.brokers import BrokerProcess
from tests.pipeline.archives import Archiving, config_of, copied
from tests.pipeline.lakes import Archived, offsets, settings, whole
from tests.pipeline.queries import address, connect, forgetful, numbered, published
from tests.waiting import wait_until

__all__ = ["forgetful"]


def test_gaps_are_filled_and_nothing_behind_one_is_acknowledged(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    config = config_of(forgetful, tmp_path)
    archiving = Archiving(spark, config, tmp_path)
    with connect(forgetful) as connection:
        connection.hold("#", name=holder(archiving.lake), start="earliest")
        connection.publish("a", numbered(1, 10))
        archived = Archived(spark, forgetful, config)
        archived.take("a", 1, 4)
        archived.take("a", 6, 9)
        keeper = RetentionKeeper(archiving.lake, address(forgetful), ["#"], 0.0, str(tmp_path / "notes"))
        keeper.look(1.0)
        keeper.acknowledge(connection, 2.0)
        assert connection.cursors("#", name=holder(archiving.lake)) == {"a": 4}
    report = audit(spark, config, archiving.lake, "#")
    assert (report.messages, report.findings) == (10, ())
    archiving.run()
    assert offsets(archiving.lake) == {"a": whole(1, 10)}
    assert archiving.lake.archived() == {"a": [(1, 11)]}


# --- what is nowhere


def test_what_is_neither_in_lake_nor_log_is_told_until_it_is_accepted_and_then_no_more(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    config = config_of(forgetful, tmp_path)
    archiving = Archiving(spark, config, tmp_path)
    lake, name = archiving.lake, holder(archiving.lake)
    with connect(forgetful) as connection:
        for topic in ("a", "b,c"):
            connection.hold(topic, name="somebody", start="earliest")
        connection.publish("b,c", numbered(1, 3))
        connection.acknowledge("b,c", {"b,c": 3}, name="somebody")
        wait_until(
            lambda: connection.topics("b,c")[0].first == 3
        )  # before the archive began: that is no loss
        archiving.run()
        assert offsets(lake) == {"b,c": [3]}
        connection.publish("a", numbered(1, 8))
        Archived(spark, forgetful, config).take("a", 1, 3)
        for one in ("a", "#"):
            connection.acknowledge(one, {"a": 5}, name=name if one == "#" else "somebody")
        wait_until(lambda: connection.topics("a")[0].first == 5)
    with pytest.raises(DataLoss, match=r"has messages 3 to 4 of topic a: .* archive --accept-loss"):
        archiving.run()
    assert {one.what for one in audit(spark, config, lake, "#").findings} == {
        "in neither lake nor log",
        f"flight/{name} on # is done with what is not archived",
    }
    archiving.run(accept_loss=True)
    assert offsets(lake) == {"a": [1, 2, *whole(5, 8)], "b,c": [3]}
    assert audit(spark, config, lake, "#").findings == ()
    archiving.acknowledge()
    with connect(forgetful) as connection:
        assert connection.cursors("#", name=name) == {"a": 9, "b,c": 4}
    published(forgetful, a=["9"])
    archiving.run()
    assert offsets(lake) == {"a": [1, 2, *whole(5, 9)], "b,c": [3]}


class Log(NamedTuple):
    first: int
    next: int
    skipped: tuple[tuple[int, int], ...] = ()


def test_what_is_read_from_where() -> None:
    known = Known(
        {"whole": [(1, 5)], "gap": [(1, 3), (5, 9)], "left": [(1, 4)]}, {"late": [(1, 7)], "gap": [(3, 4)]}
    )
    logs = {
        "whole": Log(3, 9),
        "gap": Log(1, 12),
        "late": Log(7, 9),
        "new": Log(1, 2),
        "begun": Log(4, 9),
        "held": Log(3, 5),
    }
    found = plan(logs, known, ["whole", "gap", "held"])
    assert found.starts == {"whole": 5, "gap": 4, "left": 4, "late": 7, "new": 1, "begun": 4, "held": 3}
    assert found.gone == {"begun": [(1, 4)]}
    assert found.lost == {"held": [(1, 3)]}
    restored = {"whole": Log(3, 90, ((9, 80),)), "left": Log(70, 80, ((4, 70),))}
    found = plan(restored, known.of(restored), ["whole", "left"])
    assert found == ({"whole": 5, "left": 70}, {"whole": [(9, 80)], "left": [(4, 70)]}, {})
    lost = plan({"gap": Log(5, 9), "whole": Log(8, 8)}, known, []).lost
    assert lost == {"gap": [(4, 5)], "whole": [(5, 8)]}
    assert "has message 4 of topic gap (and 3 more, of 2 topics): " in sentence(lost)


# --- several lakes


def test_lakes_on_one_broker_let_go_of_nothing_that_another_lacks(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    """Neither by the broker's names nor by notes that they share."""
    one = Archiving(spark, config_of(forgetful, tmp_path), tmp_path)
    other = Archiving(spark, config_of(forgetful, tmp_path, namespace="other"), tmp_path)
    with connect(forgetful) as connection:
        for lake in (one.lake, other.lake):
            connection.hold("#", name=holder(lake), start="earliest")
        connection.publish("a", numbered(1, 5))
        one.run()
        one.acknowledge()
        assert connection.cursors("#", name=holder(one.lake)) == {"a": 6}
        assert connection.cursors("#", name=holder(other.lake)) == {"a": 1}
        for lake in (one.lake, other.lake):  # with the notes of the first
            keeper = RetentionKeeper(
                lake, address(forgetful), ["#"], 0.0, str(tmp_path / "checkpoint" / "keeper")
            )
            keeper.acknowledge(connection, 1e11)
        assert connection.cursors("#", name=holder(other.lake)) == {"a": 1}
    other.run()
    assert offsets(other.lake) == {"a": whole(1, 5)}


def test_notes_that_are_ahead_of_the_lake_or_of_the_clock_acknowledge_nothing_too_soon(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    config = config_of(broker, tmp_path)
    lake, folder = Lake(config.lake), str(tmp_path / "notes")
    published(broker, a=numbered(1, 9))
    archived = Archived(spark, broker, config)
    archived.take("a", 1, 4)

    def keeper() -> RetentionKeeper:
        return RetentionKeeper(lake, address(broker), ["#"], 100.0, folder)

    with connect(broker) as connection:
        connection.hold("#", name=holder(lake), start="earliest")
        checkpoint_files.write(folder, "seen.json", {"lake": lake.id, "seen": [(10.0, {"a": 8})]})
        keeper().acknowledge(connection, 200.0)
        assert connection.cursors("#", name=holder(lake)) == {"a": 4}
        checkpoint_files.write(folder, "seen.json", {"lake": lake.id, "seen": [(9e9, {"a": 4})]})
        archived.take("a", 4, 7)
        late = keeper()
        late.look(1000.0)  # the clock was set back
        late.acknowledge(connection, 1001.0)
        late.look(1011.0)
        late.acknowledge(connection, 1112.0)
        assert connection.cursors("#", name=holder(lake)) == {"a": 7}


def test_a_lake_of_earlier_versions_goes_on_and_gets_a_name_of_its_own(
    spark: SparkSession, forgetful: BrokerProcess, tmp_path: Path
) -> None:
    """One that has no id, no lists of what is archived, and no mark of the log."""
    config = config_of(forgetful, tmp_path, grace=3600.0)
    archiving = Archiving(spark, config, tmp_path)
    lake = archiving.lake
    with connect(forgetful) as connection:
        connection.hold("#", name=FORMER, start="earliest")
        connection.publish("a", numbered(1, 3))
        Archived(spark, forgetful, config).take("a", 1, 3)
        table = lake.table("messages")
        with table.transaction() as transaction:
            transaction.remove_properties(LAKE)
            transaction.set_properties({ARCHIVED: '{"a": [[1, 3]]}'})
        shutil.rmtree(Path(table.location().removeprefix("file://")) / "archived")
        assert (lake.id, holder(lake)) == ("", FORMER)
        assert lake.known() == Known({"a": [(1, 3)]}, {})
        archiving.run()
        assert holder(lake) == f"{FORMER}/{lake.id}" != f"{FORMER}/"
        assert [one.client for one in connection.subscriptions()] == [f"flight/{holder(lake)}"]
        assert connection.topics("a")[0].first == 1
    assert offsets(lake) == {"a": whole(1, 3)}
    assert lake.known() == Known({"a": [(1, 4)]}, {})
    assert lake.mark.endswith(".3")
    assert not lake.give_id()
    assert not Lake(config_of(forgetful, tmp_path, lake="new").lake).give_id()  # which never had the name


def test_each_lake_has_a_name_of_its_own_also_one_that_was_copied(tmp_path: Path) -> None:
    def id_of(name: str, namespace: str = "stafeta") -> str:
        from stafeta.config.options import Lake as Settings

        return Lake(Settings(warehouse=str(tmp_path / name), namespace=namespace)).id

    first = id_of("lake")
    assert id_of("lake") == first
    (tmp_path / "copy").mkdir()
    copied(tmp_path / "lake" / "catalog.db", tmp_path / "copy" / "catalog.db")
    assert len({first, id_of("lake", "other"), id_of("second"), id_of("copy")}) == 4


@pytest.mark.parametrize("text", ["", '{"lake":', "[1]", '{"lake": "%", "seen": [[1, 2]]}', '{"lake": "%"}'])
def test_notes_that_are_damaged_do_not_stop_the_archive(tmp_path: Path, text: str) -> None:
    """They only ever delay: what the lake has is noted anew."""
    lake = Lake(settings(tmp_path))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "seen.json").write_text(text.replace("%", lake.id))
    keeper = RetentionKeeper(lake, "grpc://127.0.0.1:1", ["#"], 0.0, str(tmp_path / "notes"))
    lake.accept({"a": [(1, 4)]})
    keeper.look(5.0)
    assert checkpoint_files.read(str(tmp_path / "notes"), "seen.json") == {
        "lake": lake.id,
        "seen": [[5.0, {"a": 4}]],
    }
