"""The example of docs/client.md that goes on where it was does so. (test_pages.py runs all of them, once.)"""

import re
from pathlib import Path

import pytest

from stafeta import Client
from tests.brokers import BrokerProcess

PAGE = Path(__file__).parent.parent / "docs" / "client.md"


@pytest.fixture
def examples(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The examples, for this broker and in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8").replace('"tcp://127.0.0.1:9001"', f'"{broker.address}"')
    text = text.replace('Client(folder="', f'Client("{broker.address}", folder="')
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_going_on_where_the_program_was(examples: list[str], broker: BrokerProcess, tmp_path: Path) -> None:
    lines = [str(number) for number in range(100)]
    with Client(broker.address) as reader:
        reader.subscribe("readings")
        for had in (30, 70, 100):
            (tmp_path / "readings.txt").write_text("".join(f"{line}\n" for line in lines[:had]))
            exec(examples[2], {"Client": Client})
        assert [message.text for message in reader.get_many("readings")] == lines
