"""The options of the pipeline, which stand in the broker's own file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.config import Alerts, Archive, Compact, Config, Deadletter, Lake, Pipeline, Rollup, load
from stafeta.config.sources import Setting, build, from_assignment
from stafeta.errors import ConfigError

lines = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1)
names = st.sampled_from(["#", "a/+", "upb/#,lab/+", "È"])
durations = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)
sizes = st.integers(1 << 20, 1 << 50)
counts = st.integers(1, 10**14)
configs = st.builds(
    Config,
    lake=st.builds(Lake, lines, lines | st.just(""), lines),
    archive=st.builds(Archive, durations, sizes),
    pipeline=st.builds(Pipeline, lines, names, lines | st.just(""), durations, counts, durations),
    rollup=st.builds(
        Rollup, st.lists(durations.filter(bool), min_size=1, max_size=3, unique=True).map(tuple), durations
    ),
    alerts=st.builds(Alerts, lines),
    deadletter=st.builds(Deadletter, lines | st.just("")),
    compact=st.builds(Compact, sizes, durations),
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lake.warehouse=", "lake.warehouse: '' is not a folder, or a URL such as s3://bucket/lake."),
        ("lake.namespace=a\x01", "is not the name of a namespace"),
        ("pipeline.subscribe=", "pipeline.subscribe: The topic is empty."),
        ("pipeline.subscribe=a/#,b c", "The topic 'b c' has white space in it"),
        ("pipeline.batch=0", "0 is too small; the least is 1."),
        ("rollup.sizes=", "'' is not a duration"),
        ("rollup.sizes=1m,60s", "is not a list of durations, each once"),
        ("rollup.sizes=1m,0s", "0s is too small"),
        ("compact.size=1KiB", "1KiB is too small; the least is 1MiB."),
        ("rollup.sizs=1m", "Did you mean rollup.sizes?"),
    ],
)
def test_a_value_that_is_not_right_is_refused_with_what_would_be(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(flags=[from_assignment(text, "--set")], environment={})
    assert sentence in str(refused.value)


@pytest.mark.parametrize("value", [[], 3, True, ["1m", 5]])
def test_a_list_of_durations_holds_durations(value: object) -> None:
    with pytest.raises(ConfigError, match=r"rollup\.sizes"):
        build([Setting(("rollup", "sizes"), value, "here")])


def test_flags_and_files_say_the_same() -> None:
    flags = load(flags=[from_assignment("rollup.sizes=10s, 1m", "--set")], environment={})
    assert flags.rollup.sizes == (10.0, 60.0)
    assert build([Setting(("rollup", "sizes"), ["10s", "1m"], "here")]) == flags
    assert load(environment={"STAFETA_PIPELINE_SUBSCRIBE": "a/#, b"}).pipeline.subscribe == "a/#,b"


@given(configs)
def test_the_printed_configuration_loads_as_the_same(
    tmp_path_factory: pytest.TempPathFactory, config: Config
) -> None:
    file = tmp_path_factory.getbasetemp() / "pipeline.toml"
    file.write_text(config.to_toml(), encoding="utf-8")
    assert load(file, environment={}) == config
