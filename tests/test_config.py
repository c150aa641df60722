from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta.config import Address, Config, Keep, Limits, Setting, Store, TopicRule, ZeroMQ, load
from stafeta.config.options import OPTIONS, SECTIONS, Devices, Flight, Frames, Http
from stafeta.config.sources import VARIABLES, build, from_assignment
from stafeta.errors import ConfigError


def config_file(folder: Path, text: str) -> Path:
    path = folder / "stafeta.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(file: Path | None = None, *flags: Setting, **environment: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(file, flags, environment)
    return str(refused.value)


# Sources


def test_without_any_source_everything_has_its_default() -> None:
    assert load(environment={}) == Config()


def test_a_file_sets_options_and_sections(tmp_path: Path) -> None:
    file = config_file(
        tmp_path,
        """
        data = "/var/lib/stafeta"
        [zeromq]
        listen = ["127.0.0.2:9001", 9002, "[::1]:0"]
        max_frame = "32MiB"
        [store]
        sweep = "500ms"
        [topics."sensors/#"]
        keep = ["7d", "10GB", "1000 messages"]
        [topics.news]
        keep = "1w"
        """,
    )
    config = load(file, environment={})
    assert config.data == Path("/var/lib/stafeta")
    assert config.zeromq.listen == (Address("127.0.0.2", 9001), Address("", 9002), Address("::1", 0))
    assert config.zeromq.max_frame == 32 << 20
    assert config.store.sweep == 0.5
    assert config.topics == (
        TopicRule("sensors/#", Keep(age_seconds=604_800, bytes=10**10, messages=1000)),
        TopicRule("news", Keep(age_seconds=604_800)),
    )
    assert config.limits == Limits()


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = config_file(tmp_path, 'host = "127.0.0.2"\ndurability = "os"\ndata = "file"')
    environment = {"STAFETA_HOST": "127.0.0.3", "STAFETA_DATA": "variable", "PATH": "/bin"}
    config = load(file, [Setting(("host",), "127.0.0.4", "--host")], environment)
    assert (config.host, config.data, config.durability) == ("127.0.0.4", Path("variable"), "os")


def test_the_environment_can_name_the_file_but_a_flag_wins(tmp_path: Path) -> None:
    named = config_file(tmp_path, 'durability = "os"')
    assert load(environment={"STAFETA_CONFIG": str(named)}).durability == "os"
    (other := tmp_path / "other.toml").write_text("")
    assert load(other, environment={"STAFETA_CONFIG": str(named)}).durability == "fsync"


@pytest.mark.parametrize("name", ["STAFETA_ZEROMQ", "STAFETA_ZEROMQ_LISTEN"])
def test_the_name_of_a_door_is_short_for_where_it_listens(name: str) -> None:
    assert load(environment={name: "0,127.0.0.2:7"}).zeromq.listen == (
        Address("", 0),
        Address("127.0.0.2", 7),
    )


def test_every_option_has_a_variable_of_its_own() -> None:
    doors = [section for section in SECTIONS if (section, "listen") in OPTIONS]
    assert len(VARIABLES) == len(OPTIONS) + len(doors)
    assert set(VARIABLES.values()) == set(OPTIONS)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("durability=os", ("durability",), "os"),
        ("zeromq.max_frame = 1MiB", ("zeromq", "max_frame"), "1MiB"),
        ('topics."a.b/#".keep=7d', ("topics", "a.b/#", "keep"), "7d"),
        ("topics.a.b/#.keep=7d", ("topics", "a.b/#", "keep"), "7d"),
    ],
)
def test_an_assignment_names_any_option(text: str, key: tuple[str, ...], value: str) -> None:
    assert from_assignment(text, "--set") == Setting(key, value, "--set")


# Mistakes


def test_an_unknown_option_is_refused_with_the_one_meant(tmp_path: Path) -> None:
    file = config_file(tmp_path, "[zeromq]\nmax_fram = 1")
    assert (
        refusal(file) == f"{file}: zeromq.max_fram: no option has this name. Did you mean zeromq.max_frame?"
    )


def test_an_option_in_the_wrong_section_is_refused_with_the_right_one(tmp_path: Path) -> None:
    assert "Did you mean limits.max_payload?" in refusal(config_file(tmp_path, "[zeromq]\nmax_payload = 1"))


def test_an_unknown_section_is_refused_even_when_empty(tmp_path: Path) -> None:
    assert "zeromg: no option has this name." in refusal(config_file(tmp_path, "[zeromg]"))


def test_an_unknown_variable_is_refused_with_the_one_meant() -> None:
    assert (
        refusal(STAFETA_DURABILTY="os")
        == "STAFETA_DURABILTY: no option has this name. Did you mean STAFETA_DURABILITY?"
    )


def test_the_variables_of_client_commands_are_none_of_the_brokers() -> None:
    assert load(environment={"STAFETA_BROKER": "tcp://127.0.0.1:1", "STAFETA_STATE": "state"}) == Config()


def test_a_section_is_no_option(tmp_path: Path) -> None:
    assert "zeromq: this is a section" in refusal(config_file(tmp_path, "zeromq = 9001"))


def test_a_topic_has_no_options_but_keep(tmp_path: Path) -> None:
    sentence = refusal(config_file(tmp_path, '[topics."a/+"]\nkep = "7d"'))
    assert 'topics.a/+.kep: options of topics are written keep = "7d" below [topics."FILTER"].' in sentence


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("data", "", "is not the path of a folder"),
        ("host", "*", "0.0.0.0 for all of them"),
        ("host", "300.1.2.3", "is not an address"),
        ("durability", "none", "is not one of fsync, os"),
        ("log_level", 3, "is not one of debug, info, warning, error"),
        ("allow_anyone", "maybe", "is neither true nor false"),
        ("allow_anyone", 1, "is neither true nor false"),
        ("zeromq.listen", "on", "write a port"),
        ("zeromq.listen", 70_000, "ports end at 65535"),
        ("zeromq.listen", True, "write a port"),
        ("zeromq.listen", [9001, "a b:1"], "is not an address"),
        ("zeromq.max_frame", "big", "such as 256KiB or 10GB"),
        ("zeromq.get_reply", 0, "the least is 1KiB"),
        ("limits.max_lag", "1MB", "such as 1000 or 1_000_000"),
        ("store.sweep", 1, "such as 500ms or 7d"),
        ("store.sweep", "0s", "the least is 1ms"),
        ("topics.a.keep", "for ever", "'1000 messages'"),
        ("topics.a.keep", ["7d", "1w"], "sets the same limit twice"),
        ("topics.a b.keep", "7d", "has white space in it"),
    ],
)
def test_a_wrong_value_is_refused_with_its_source_and_what_is_right(
    key: str, value: object, right: str
) -> None:
    sentence = refusal(None, Setting(tuple(key.split(".")), value, "here"))
    assert sentence.startswith(f"here: {key}: ")
    assert right in sentence


def test_a_file_that_is_not_there_or_not_toml_is_refused_by_name(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.toml") == (
        f"The configuration {tmp_path / 'no.toml'} cannot be read: No such file or directory."
    )
    file = config_file(tmp_path, "data =")
    assert refusal(file).startswith(f"The configuration {file} is not TOML: ")
    file.write_bytes(b"\xff")
    assert refusal(file).startswith(f"The configuration {file} is not TOML: ")


def test_an_assignment_needs_a_value() -> None:
    with pytest.raises(ConfigError, match=r"--set durability: write it as section\.option=value"):
        from_assignment("durability", "--set")


# Who may come in


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_open(host: str) -> None:
    assert load(environment={"STAFETA_HOST": host}).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example"])
def test_other_addresses_are_refused_unless_asked_for_by_name(host: str) -> None:
    assert "set allow_anyone = true" in refusal(STAFETA_HOST=host)
    assert load(environment={"STAFETA_HOST": host, "STAFETA_ALLOW_ANYONE": "true"}).host == host


def test_the_address_of_a_door_counts_as_well() -> None:
    assert "zeromq.listen: 0.0.0.0:9001 can be reached" in refusal(STAFETA_ZEROMQ="0.0.0.0:9001")
    doors = {"STAFETA_ZEROMQ": "127.0.0.1:9001"} | {
        f"STAFETA_{door}": "off" for door in ("DEVICES", "FRAMES", "FLIGHT", "HTTP")
    }
    only_the_door = load(environment={"STAFETA_HOST": "0.0.0.0", **doors})
    assert only_the_door.zeromq.listen == (Address("127.0.0.1", 9001),)


def test_a_door_listens_on_the_host_unless_it_names_another() -> None:
    config = Config(host="127.0.0.2", zeromq=ZeroMQ(listen=(Address("", 1), Address("::1", 2))))
    assert config.addresses(config.zeromq.listen) == (Address("127.0.0.2", 1), Address("::1", 2))


# Round trip

sizes = st.integers(4 << 10, 1 << 50)
counts = st.integers(1, 10**14)
durations = st.integers(1, 10**13).map(lambda milliseconds: milliseconds / 1000)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
addresses = st.builds(Address, st.sampled_from(["", "127.0.0.1", "::1", "localhost"]), st.integers(0, 65535))
filters = (
    st.lists(st.sampled_from(["a", "+", "#", "È", '"', "'", "\\\\", "$x", ""]), max_size=3)
    .map("/".join)
    .filter(bool)
)
keeps = st.builds(Keep, st.none() | durations, st.none() | sizes, st.none() | counts)
configs = st.builds(
    Config,
    data=texts.filter(lambda text: "\0" not in text and not text.startswith("~")).map(Path),
    durability=st.sampled_from(["fsync", "os"]),
    allow_anyone=st.booleans(),
    log_format=st.sampled_from(["text", "json"]),
    zeromq=st.builds(ZeroMQ, st.lists(addresses, max_size=3).map(tuple), sizes, sizes, sizes),
    devices=st.builds(Devices, st.lists(addresses, max_size=3).map(tuple), sizes, sizes),
    frames=st.builds(Frames, st.lists(addresses, max_size=3).map(tuple), sizes),
    flight=st.builds(Flight, st.lists(addresses, max_size=3).map(tuple), sizes, counts),
    http=st.builds(
        Http,
        st.lists(addresses, max_size=3).map(tuple),
        sizes,
        sizes,
        st.lists(st.sampled_from(["broker.example.com", "::1"]), max_size=2).map(tuple),
        durations.filter(lambda seconds: seconds >= 1),
    ),
    limits=st.builds(Limits, sizes, sizes, counts, counts, counts, counts),
    store=st.builds(Store, sizes, counts, durations),
    topics=st.lists(st.builds(TopicRule, filters, keeps), unique_by=lambda rule: rule.filter, max_size=3).map(
        tuple
    ),
)


@given(configs)
def test_the_printed_configuration_loads_as_the_same(
    tmp_path_factory: pytest.TempPathFactory, config: Config
) -> None:
    file = config_file(tmp_path_factory.getbasetemp(), config.to_toml())
    assert load(file, environment={}) == config


@given(configs)
def test_options_survive_being_written_one_by_one(config: Config) -> None:
    settings = [
        Setting((*path, name), value, "here")
        for path, table in _tables(config)
        for name, value in table.items()
    ]
    assert build(settings) == config


def _tables(config: Config) -> list[tuple[tuple[str, ...], dict[str, object]]]:
    plain = config.to_plain()
    found: list[tuple[tuple[str, ...], dict[str, object]]] = [
        ((), {name: value for name, value in plain.items() if not isinstance(value, dict)})
    ]
    for name, table in plain.items():
        if isinstance(table, dict):
            nested = {key: value for key, value in table.items() if isinstance(value, dict)}
            found += [((name, key), dict(value)) for key, value in nested.items()]
            found.append(((name,), {key: value for key, value in table.items() if key not in nested}))
    return found
