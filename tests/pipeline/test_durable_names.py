"""The names under which the broker holds what jobs have not read: each folder of checkpoints has its own."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stafeta.pipeline.checkpoint_files import durable_name


def test_each_folder_of_checkpoints_has_its_own_names(tmp_path: Path) -> None:
    one, other = (str(tmp_path / name) for name in ("one", "other"))
    names = {durable_name(place, job) for place in (one, other) for job in ("rollup", "alerts")}
    assert len(names) == 4
    assert {durable_name(place, job) for place in (one, other) for job in ("rollup", "alerts")} == names
    assert {name.rpartition("/")[0] for name in names} == {"pipeline/rollup", "pipeline/alerts"}


def test_a_job_whose_checkpoint_is_lost_has_the_name_that_it_had(tmp_path: Path) -> None:
    name = durable_name(str(tmp_path), "rollup")
    (tmp_path / "rollup" / "offsets").mkdir(parents=True)  # it runs
    assert durable_name(str(tmp_path), "rollup") == name
    (tmp_path / "rollup" / "offsets").rmdir()
    assert durable_name(str(tmp_path), "rollup") == name


def test_a_job_from_before_keeps_its_name_and_a_new_one_beside_it_gets_its_own(tmp_path: Path) -> None:
    (tmp_path / "rollup" / "offsets").mkdir(parents=True)
    (tmp_path / "mine" / "part" / "offsets").mkdir(parents=True)
    (tmp_path / "deadletter").mkdir()  # which has never read anything
    (tmp_path / "alerts.lock").touch()
    for _ in range(2):
        assert durable_name(str(tmp_path), "rollup") == "pipeline/rollup"
        assert durable_name(str(tmp_path), "mine") == "pipeline/mine"
        for job in ("deadletter", "alerts"):
            assert durable_name(str(tmp_path), job).startswith(f"pipeline/{job}/")


def test_all_that_come_at_once_have_one_name(tmp_path: Path) -> None:
    for number in range(20):
        place = str(tmp_path / str(number))
        with ThreadPoolExecutor(4) as pool:
            assert len({*pool.map(lambda place: durable_name(place, "rollup"), [place] * 4)}) == 1
        assert [one.name for one in Path(place).iterdir()] == ["durable.json"]
