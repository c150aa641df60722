"""Times as people write them, and back."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stafeta.errors import ConfigError
from stafeta.times import iso, micros_of, parse, time_of


@given(st.datetimes(timezones=st.timezones()))
@example(datetime(1945, 4, 2, 2, tzinfo=ZoneInfo("Africa/Tunis")))
def test_a_time_is_read_back_as_it_was_written(time: datetime) -> None:
    if not timedelta(1) < time.replace(tzinfo=UTC) - datetime.min.replace(tzinfo=UTC) < timedelta(3_652_000):
        return  # in another zone there is no such year
    assert parse(iso(time)) == micros_of(time)
    # In UTC: at an hour that summer time left out, Python says that a time is unlike any of another zone.
    assert time_of(micros_of(time)) == time.astimezone(UTC)


def test_milliseconds_are_a_time_too() -> None:
    assert parse(" 1500 ") == 1_500_000
    assert parse("-1") == -1000


@pytest.mark.parametrize("text", ["", "yesterday", "1.5", "2026-11-16T08:00:00", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no time; write ISO 8601 with a zone"):
        parse(text)
