"""The pages say what happens: their blocks are run as they stand."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import DATA, PAGES, ROOT, SHELLS, Block, blocks, is_slow
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

# What is not run, by the page and how it begins. Everything else is.
NOT_RUN = {
    ("docs/cli.md", "stafeta init secure"),  # needs openssl; test_init.py runs it
    (
        "docs/flight-client.md",
        'tls = stafeta.Tls(roots="authority.pem"',
    ),  # test_client_tls.py has such a broker
    ("docs/operate.md", "python3 -m venv /opt/stafeta"),  # installs into the system
    ("docs/lake.md", "stafeta-lake/  "),  # a picture of a folder
    ("docs/lake.md", "INSTALL iceberg;"),  # fetches from the internet
    ("docs/lake.md", "connector.name=iceberg"),  # settings of Trino
    ("docs/lake.md", "SELECT topic, avg(CAST(from_utf8(payload)"),  # for Trino
    ("docs/lake.md", "spark-sql --packages"),  # fetches from the internet
    ("docs/lake.md", "SELECT count(*) FROM stafeta.stafeta.messages"),  # for the one before
    ("docs/pipeline.md", "$ stafeta pipeline run audit"),  # of a log that is damaged
    ("docs/pipeline.md", "$ stafeta pipeline run replay"),  # of a day that is over
    ("docs/protocols/devices.md", "New client <ID>"),  # a form
    ("docs/protocols/devices.md", "<IP>:<PORT> - "),  # a form
    ("docs/sql.md", "stafeta: A column, variable"),  # test_sql.py makes the mistake
}
BLOCKS = {page: list(blocks(page)) for page in PAGES}
PORTS = (5000, 8080, 8815, 9001, 12345)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def is_run(block: Block) -> bool:
    """Here, or with Spark by tests/pipeline/test_pages.py. The only SQL that is a file is in docs/cli.md."""
    return block.info in (*SHELLS, *DATA, "python") or (block.info, block.page.name) == ("sql", "cli.md")


def test_every_block_is_run_or_known_not_to_be() -> None:
    left_out = {(name(page), block.text) for page in PAGES for block in BLOCKS[page] if not is_run(block)}
    known = {
        (page, text): [one for one in NOT_RUN if one[0] == page and text.startswith(one[1])]
        for page, text in left_out
    }
    assert not [block for block, names in known.items() if not names]
    assert {one for names in known.values() for one in names} == NOT_RUN


@pytest.fixture(scope="module")
def network() -> list[str]:
    """What starts a program in a network of its own, where that is allowed; else the machine's has to do."""
    alone = ["unshare", "--map-root-user", "--net"]
    if (
        shutil.which("unshare")
        and subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0
    ):
        return alone
    for port in PORTS:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(
                    f"somebody listens on port {port}, which the pages use, and no network of one's own is allowed"
                )
    return []


def read(page: Path, network: list[str], *flags: str) -> None:
    done = subprocess.run(
        [*network, sys.executable, "-m", "tests.pages", name(page), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(is_run, BLOCKS[page]))], ids=name)
def test_a_page_does_what_it_says(page: Path, network: list[str]) -> None:
    read(page, network)


@pytest.mark.soak
@pytest.mark.parametrize("page", [page for page in PAGES if any(map(is_slow, BLOCKS[page]))], ids=name)
def test_a_page_does_what_it_says_also_where_that_takes_a_while(page: Path, network: list[str]) -> None:
    read(page, network, "--slow")
