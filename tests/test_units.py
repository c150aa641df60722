import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafeta import units
from stafeta.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("1_000_000", 1_000_000),
        ("17B", 17),
        ("256KiB", 256 * 1024),
        ("256kib", 256 * 1024),
        ("1.5 GiB", 3 * 2**29),
        ("10GB", 10**10),
        ("2TB", 2 * 10**12),
    ],
)
def test_a_size_is_a_number_with_or_without_a_unit(written: object, size: int) -> None:
    assert units.parse_size(written) == size


@pytest.mark.parametrize(
    "written",
    ["", "KiB", "-1", -1, "12 parsecs", "0.5B", "1__0", "1e3", True, 1.5, None, "٣KiB", "9223372037GB"],
)
def test_what_is_no_size_is_refused_by_its_value(written: object) -> None:
    with pytest.raises(ConfigError, match=r"is not a size; write .* 256KiB or 10GB") as refusal:
        units.parse_size(written)
    assert repr(written) in str(refusal.value)


@given(st.integers(0, (1 << 63) - 1))
def test_a_size_is_read_back_as_written(size: int) -> None:
    assert units.parse_size(units.format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "written"), [(0, "0B"), (1, "1B"), (16 << 20, "16MiB"), (10**10, "10GB"), (1001, "1001B")]
)
def test_a_size_is_written_in_its_largest_unit(size: int, written: str) -> None:
    assert units.format_size(size) == written


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("0s", 0),
        ("500ms", 0.5),
        ("90s", 90),
        ("2m", 120),
        ("1.5h", 5400),
        ("7d", 604_800),
        ("1w", 604_800),
        ("3 s", 3),
    ],
)
def test_a_duration_is_a_number_and_a_unit(written: str, seconds: float) -> None:
    assert units.parse_duration(written) == seconds


@pytest.mark.parametrize("written", ["", "7", 7, "7D", "1h30m", "-1s", "7 fortnights", None])
def test_what_is_no_duration_is_refused_by_its_value(written: object) -> None:
    with pytest.raises(
        ConfigError, match="is not a duration; write a number and one of ms, s, m, h, d, w"
    ) as refusal:
        units.parse_duration(written)
    assert repr(written) in str(refusal.value)


@given(st.integers(0, 10**14))
def test_a_duration_is_read_back_as_written(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert units.parse_duration(units.format_duration(seconds)) == seconds


@pytest.mark.parametrize(("written", "count"), [(0, 0), (12, 12), ("12", 12), ("1_000_000", 1_000_000)])
def test_a_count_is_a_whole_number(written: object, count: int) -> None:
    assert units.parse_count(written) == count


@pytest.mark.parametrize("written", ["", "1.5", 1.5, -1, "12 messages", False, 1 << 63, str(1 << 63)])
def test_what_is_no_count_is_refused(written: object) -> None:
    with pytest.raises(ConfigError, match="is not a count; write a whole number"):
        units.parse_count(written)
