"""A real browser, headless, as somebody who looks at the broker has it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

CHROMIUM: Final = Path("/usr/bin/chromium")
# The first two make each window load two pages of the browser's own, for a second of a processor. The others are what
# Playwright leaves out: of two such options the last one counts.
_LEFT_OUT: Final = (
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxPopup",
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)
OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    f"--disable-features={','.join(_LEFT_OUT)}",
)


@contextmanager
def browsing() -> Iterator["Browser"]:
    """While it runs, Playwright has a loop of its own in this thread: asyncio.run does not go there."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A page of the broker's, and what went wrong in it."""

    def __init__(self, page: "Page", base: str) -> None:
        self.page = page
        self.base = base
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.set_default_timeout(PATIENCE * 1000)
        page.on("console", self._says)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asks)

    def _says(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _asks(self, request: Any) -> None:
        if not request.url.startswith((self.base + "/", "data:")):
            self.foreign.append(request.url)

    def open(self, path: str = "") -> None:
        self.page.goto(f"{self.base}/#/{path}")

    def log_in(self, user: str, password: str) -> None:
        self.page.get_by_label("User").fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()

    def see(self, text: str) -> "Locator":
        """Waits until the text is there."""
        found = self.page.get_by_text(text).first
        found.wait_for()
        return found

    def row(self, table: str, text: str) -> "Locator":
        """Waits for the row of a table that has this text."""
        found = (
            self.page.get_by_role("table", name=table, exact=True).get_by_role("row").filter(has_text=text)
        )
        found.first.wait_for()
        return found.first
