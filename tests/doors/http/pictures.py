"""Takes the pictures of the dashboard that the documentation shows. `make pictures`

A real broker runs for a while, with sensors, readers of which one is stalled, and a pipeline with Spark; then a browser
looks at it: in light, dark, and as narrow as a phone.
"""

import argparse
import io
import json
import math
import random
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.demo.configuration import quick_pipeline
from examples.demo.fleet import SENSORS, reading
from examples.demo.stage import Stage
from stafeta.testing import Broker
from tests.doors.http.peers import Peer, messages_of
from tests.doors.http.windows import CHROMIUM, Window, browsing

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT: Final = Path(__file__).parents[3]
FOLDER: Final = ROOT / "docs" / "pictures"
LARGEST: Final = 200_000  # bytes of a picture
TOPIC: Final = "upb/lab/temperature"
WIDE: Final = (1280, 900)
PHONE: Final = (390, 844)
PICTURES: Final = (  # name, page, what is waited for, size, colours
    ("overview-light", "", "stalled, away", WIDE, "light"),
    ("overview-dark", "", "stalled, away", WIDE, "dark"),
    ("topic-light", f"topics/{TOPIC.replace('/', '%2F')}", "billing", (1280, 1000), "light"),
    ("subscriptions-light", "subscriptions", "billing", (1280, 560), "light"),
    ("pipeline-dark", "pipeline", "archive", (1280, 760), "dark"),
    ("sql-light", "pipeline", "archive", (1280, 640), "light"),
    ("phone-light", "", "stalled, away", PHONE, "light"),
    ("phone-dark", f"topics/{TOPIC.replace('/', '%2F')}", "billing", PHONE, "dark"),
)

JOBS: Final = ("archive", "rollup", "alerts")


class Example:
    """Publishes until it is told to stop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._sensors, self._orders, self._read)]

    def __enter__(self) -> None:
        with Peer(self._broker.door("http")) as peer:
            for client, filter_ in (
                ("billing", "orders/#"),
                ("archive", "upb/#"),
                ("wallboard", "upb/+/temperature"),
            ):
                peer.post("/api/subscriptions", {"client": client, "filter": filter_})
            peer.post("/api/subscriptions", {"client": "billing", "filter": TOPIC})
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _sensors(self) -> None:
        chance, began = random.Random(6), time.monotonic()
        with Peer(self._broker.door("http")) as peer:
            while not self._over.wait(0.2):
                for sensor in SENSORS:
                    text = reading(sensor, time.monotonic() - began, chance)
                    if text is None:
                        continue
                    _publish(peer, sensor.topic, sensor.kind.word, text)

    def _orders(self) -> None:
        began = time.monotonic()
        with Peer(self._broker.door("http")) as peer:
            while not self._over.wait(0.25):
                many = round(60 + 40 * math.sin((time.monotonic() - began) / 6) + random.uniform(0, 15))
                orders = [json.dumps({"item": number, "count": number % 3 + 1}) for number in range(many)]
                for shop in ("bucharest", "lisbon"):
                    _publish(peer, f"orders/{shop}", "json", *orders)

    def _read(self) -> None:
        """The archive follows closely, the wallboard with some delay; billing reads nothing."""
        with Peer(self._broker.door("http")) as peer:
            while not self._over.wait(0.5):
                for client, filter_ in (("archive", "upb/#"), ("wallboard", "upb/+/temperature")):
                    limit = 10_000 if client == "archive" else 9
                    page = peer.get("/api/subscriptions/messages", client=client, filter=filter_, limit=limit)
                    last = {one["topic"]: one["offset"] for one in page["messages"]}
                    ranges = [{"topic": topic, "last": offset} for topic, offset in last.items()]
                    if ranges:
                        peer.post(
                            "/api/subscriptions/ack", {"client": client, "filter": filter_, "ranges": ranges}
                        )


def _publish(peer: Peer, topic: str, kind: str, *payloads: str) -> None:
    peer.post(messages_of(topic), [{"payload": one, "kind": kind} for one in payloads], batch="true")


def take(
    browser: "Browser", base: str, name: str, page: str, text: str, size: tuple[int, int], scheme: str
) -> bytes:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
    try:
        window = Window(context.new_page(), base)
        window.open(page)
        window.see(text)
        if name.startswith("sql"):
            window.page.get_by_role("button", name="Readings of the last hour").click()
            window.page.get_by_role("button", name="Run").click()
            window.row("Result", TOPIC)
            window.page.get_by_role("heading", name="SQL").evaluate("found => found.scrollIntoView()")
            window.page.mouse.wheel(0, -80)  # from behind the head of the page
        window.page.wait_for_timeout(3500)  # so that tails and trends have something in them
        if window.errors:
            sys.exit(f"{name}: {window.errors}")
        return window.page.screenshot()
    finally:
        context.close()


def reduced(png: bytes) -> bytes:
    """With as many colours as fit."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        file = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(file, "png", optimize=True)
        if file.tell() <= LARGEST:
            break
    return file.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make pictures", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=90, help="how long the broker runs before (%(default)g)"
    )
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder of the pictures")
    options = parser.parse_args()
    if not CHROMIUM.exists():
        print("There is no chromium: make browser installs it.", file=sys.stderr)
        return 1
    options.into.mkdir(exist_ok=True)
    kept = [f'topics."{one}/#".keep=1h' for one in ("upb", "orders", "alerts", "rollup")]
    words = [word for one in kept for word in ("--set", one)]
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        doors = ("http", "flight", "zeromq", "devices", "frames")
        broker = closing.enter_context(Broker(folder / "data", *words, doors=doors))
        closing.enter_context(Example(broker))
        config = folder / "pipeline.toml"
        config.write_text(quick_pipeline(folder / "lake"), encoding="utf-8")
        (folder / "programs").mkdir()
        stage = Stage(folder / "programs")
        closing.callback(stage.close)
        about = ("--config", str(config), "--broker", broker.flight)
        stage.start("pipeline", "run", *JOBS, *about, log="pipeline.log")
        host, port = broker.door("http")
        with browsing() as browser:
            base = f"http://{host}:{port}"
            threading.Event().wait(options.seconds)
            for one in PICTURES:
                picture = reduced(take(browser, base, *one))
                (options.into / f"{one[0]}.png").write_bytes(picture)
                print(f"{one[0]}.png  {len(picture) / 1000:.0f} kB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
