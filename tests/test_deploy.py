"""What lies in deploy/ fits the program: its commands, options, variables, ports and metrics are real."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from stafeta.cli.main import in_order, parser_for
from stafeta.config import load
from stafeta.config.options import Config
from stafeta.config.sources import OTHER_VARIABLES, VARIABLES
from stafeta.pipeline.runner.reports import Report
from tests.broker.test_consumer import publish
from tests.metrics.scrapes import families
from tests.metrics.test_scrape import Door, opened, report

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "stafeta.service"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
RULES = DEPLOY / "prometheus" / "stafeta.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "stafeta.json"
METRIC = re.compile(r"\b(?:stafeta|process)_\w+")
MATCHED = re.compile(r"\b((?:stafeta|process)_\w+)\{([^}]*)\}")
OF_PROMETHEUS = {"job", "instance", "le"}


def instructions(name: str) -> list[str]:
    """The rest of the lines of a Containerfile that begin with this word."""
    joined = re.sub(r"\\\n\s*", "", CONTAINERFILE)
    return [line.partition(" ")[2].strip() for line in joined.splitlines() if line.partition(" ")[0] == name]


def commands() -> dict[str, list[str]]:
    """Every command line of stafeta's, by where it is."""
    found = {f"Containerfile {number}": json.loads(words) for number, words in enumerate(instructions("CMD"))}
    found |= {
        f"compose {name}": service["command"]
        for name, service in COMPOSE["services"].items()
        if "build" in service
    }
    unit = re.search(r"^ExecStart=\S*/stafeta (.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    assert unit is not None
    return {**found, "systemd": shlex.split(unit[1])}


def variables() -> dict[str, str]:
    """Every variable of stafeta's that is set, with its value."""
    found = dict(re.findall(r"\b(STAFETA_\w+)=(\S+)", " ".join(instructions("ENV"))))
    for service in COMPOSE["services"].values():
        found |= {name: str(value) for name, value in service.get("environment", {}).items()}
    return found


@pytest.mark.parametrize("place", commands())
def test_every_command_is_one_of_stafeta(place: str) -> None:
    words = in_order(commands()[place])
    options = parser_for(words).parse_args(words)
    assert callable(options.run)


def test_every_variable_is_an_option_with_a_value_that_it_may_have() -> None:
    found = variables()
    assert {"STAFETA_DATA", "STAFETA_HOST", "STAFETA_PIPELINE_BROKER"} <= found.keys()
    assert not found.keys() - VARIABLES.keys() - OTHER_VARIABLES
    config = load(environment=found)
    config.check()
    assert config.http.hosts == ("broker",)


def test_without_users_the_image_alone_does_not_listen_to_strangers() -> None:
    image = dict(re.findall(r"\b(STAFETA_\w+)=(\S+)", " ".join(instructions("ENV"))))
    assert "STAFETA_ALLOW_ANYONE" not in image
    assert image["STAFETA_HOST"] == "0.0.0.0"


def test_nobody_is_root_in_a_container() -> None:
    stages = [line.partition(" AS ")[2] for line in instructions("FROM")]
    assert {"broker", "pipeline"} <= set(stages)
    assert instructions("USER") == ["10001:10001"] * 2
    assert instructions("HEALTHCHECK")


def test_ports_are_those_of_the_doors() -> None:
    config = Config()
    doors = {
        address.port
        for door in ("zeromq", "devices", "frames", "flight", "http")
        for address in getattr(config, door).listen
    }
    exposed = {int(port.partition("/")[0]) for port in " ".join(instructions("EXPOSE")).split()}
    assert exposed == doors
    published = {int(port.split(":")[2].partition("/")[0]) for port in COMPOSE["services"]["broker"]["ports"]}
    assert published == doors
    assert all(
        port.startswith("127.0.0.1:")
        for service in COMPOSE["services"].values()
        for port in service.get("ports", ())
    ), "the example has no users"


def test_what_is_copied_and_mounted_is_there() -> None:
    for line in instructions("COPY"):
        words = [word for word in line.split() if not word.startswith("--")]
        if "--from" not in line:
            assert all((ROOT / word).exists() for word in words[:-1]), line
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), volume
        if "build" in service:
            build = service["build"]
            assert (DEPLOY / build["context"] / build["dockerfile"]).exists()
            assert f" AS {build['target']}\n" in CONTAINERFILE


# --- systemd


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    text = UNIT.read_text(encoding="utf-8")
    copy = tmp_path / "stafeta.service"
    copy.write_text(text.replace("/opt/stafeta/bin/stafeta", "/bin/true"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    if done.returncode and "stafeta.service" not in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr:.200}")
    assert done.returncode == 0, done.stderr
    assert "stafeta.service:" not in done.stderr, "it has nothing to complain of"


def test_the_unit_watches_and_reloads() -> None:
    unit = UNIT.read_text(encoding="utf-8")
    for line in (
        "Type=notify",
        "WatchdogSec=",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "StateDirectory=stafeta",
    ):
        assert f"\n{line}" in unit
    prevented = re.search(r"RestartPreventExitStatus=(.*)", unit)
    assert prevented is not None
    assert prevented[1].split() == ["2", "5"], "wrong configuration, and a folder that cannot be used"
    files = re.search(r"LimitNOFILE=(\d+)", unit)
    assert files is not None
    assert int(files[1]) > 5 * Config().limits.max_connections


# --- metrics


@pytest.fixture(scope="module")
def metrics() -> dict[str, set[str]]:
    """The labels of every sample that a scrape has."""

    async def work() -> dict[str, set[str]]:
        async with opened([Door()]) as (broker, metrics):
            broker.subscribe("c", "t")
            await publish(broker, "t=1")
            await report(broker, Report("archive", "running", "now", 3, 100, 50.0, 7, 1))
            found: dict[str, set[str]] = {}
            for family in families(await metrics.scrape()).values():
                for sample in family.samples:
                    found.setdefault(sample.name, set()).update(sample.labels)
            return found

    return asyncio.run(work())


def expressions() -> Iterator[str]:
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def test_every_metric_that_is_asked_for_exists(metrics: dict[str, set[str]]) -> None:
    asked = list(expressions())
    names = {name for expression in asked for name in METRIC.findall(expression)}
    assert len(names) > 40
    assert not names - metrics.keys()
    for expression in asked:
        for name, matchers in MATCHED.findall(expression):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert labels <= metrics[name] | OF_PROMETHEUS, expression


def test_every_metric_is_shown_or_documented(metrics: dict[str, set[str]]) -> None:
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    own = {re.sub(r"_(bucket|sum|count)$", "", name) for name in metrics if name.startswith("stafeta_")}
    assert not [name for name in own if f"`{name}`" not in page]
    named = set(re.findall(r"`(stafeta_\w+)`", page))
    asked_for = {name for name in named if name.startswith("stafeta_topic")}
    assert not named - own - asked_for, "the page names no metric that is none"


def test_every_alert_is_explained() -> None:
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(Stafeta\w+)` ", page, re.MULTILINE) == alerts


def test_prometheus_accepts_configuration_rules_and_what_the_dashboard_asks(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed here; on Debian it is in the package prometheus")
    folder = DEPLOY / "prometheus"
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = [
        {"record": f"asked:{number}", "expr": re.sub(r"\$\w+", "5m", expression)}
        for number, expression in enumerate(asked)
    ]
    queries = tmp_path / "queries.yml"
    queries.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    for words in (
        ["check", "config", str(folder / "prometheus.yml")],
        ["test", "rules", str(folder / "stafeta.rules.test.yml")],
        ["check", "rules", str(queries)],
    ):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
