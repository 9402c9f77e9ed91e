"""Draw the screenshots of docs/console.md with Chromium, from an API of memory.

`make screenshots` runs it. Data and time are fixed, so only changes of the console change pictures.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.browser.browsers import PHONE, chromium, visiting  # noqa: E402 (after the path)
from tests.fakes.console_api import MemoryApi, application, served  # noqa: E402

FOLDER = Path(__file__).parent
VIEWPORT = {"width": 1060, "height": 560}


def main() -> None:
    """Draw all of them."""
    with served(application(MemoryApi())) as address, chromium() as browser:
        with visiting(browser, address, VIEWPORT) as visit:
            visit.page.screenshot(path=FOLDER / "overview.png")
            visit.open("/console/instances/order/o-long?stepsCursor=49950")
            visit.page.get_by_text("Send approval …").wait_for()
            visit.page.screenshot(path=FOLDER / "instance.png")
        with visiting(browser, address, PHONE, color_scheme="dark") as visit:
            visit.open("/console/dead-letters")
            visit.page.screenshot(path=FOLDER / "phone.png")


if __name__ == "__main__":
    main()
