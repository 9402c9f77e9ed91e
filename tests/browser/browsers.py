"""Chromium of this machine, if there is one: pages of the console, and what they complain about."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

from tests.fakes.console_api import KEY

#: Names of the program on Debian, Ubuntu, Fedora and macOS.
_PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Path of the program; None if there is none.
CHROMIUM: Final = next(filter(None, map(shutil.which, _PROGRAMS)), None)
#: Milliseconds within which a page has what a test waits for, also on a busy machine.
PATIENCE_MS: Final = 120_000
PHONE: Final = {"width": 390, "height": 844}
DESK: Final = {"width": 1440, "height": 900}

#: Tells the console about every violation of the policy of a page; the console itself tells some.
_WATCH: Final = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`));
"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright:
        # In a container there is no sandbox, and little shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page of a person who is signed in, and the complaints of the browser about it."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(f"{self.address}{path}")


@contextlib.contextmanager
def visiting(
    browser: Browser, address: str, viewport: dict[str, int] = DESK, **options: object
) -> Iterator[Visit]:
    """A visit; signs in with the form."""
    context = browser.new_context(viewport=viewport, **options)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    context.set_default_navigation_timeout(PATIENCE_MS)
    context.add_init_script(_WATCH)
    page = context.new_page()
    visit = Visit(page, address)
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.on(
        "console",
        lambda line: line.type in ("error", "warning") and visit.complaints.append(line.text),
    )
    visit.open("/console")
    page.get_by_label("Operators' key, or an API key").fill(KEY)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()
    yield visit
    context.close()
