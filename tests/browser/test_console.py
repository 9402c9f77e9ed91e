"""The console in a real browser: its script, its keyboard, its policy, and a phone's width.

The API is of memory: what a browser does needs neither Kafka nor Postgres.
"""

from collections.abc import Iterator

import pytest

pytest.importorskip("playwright", reason="browser tests need the package playwright: make setup")

from playwright.sync_api import Browser, expect

from tests.browser.browsers import CHROMIUM, PATIENCE_MS, PHONE, Visit, chromium, visiting
from tests.fakes.console_api import LONG, MemoryApi, application, delivery, served

pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="browser tests need Chromium: see the section on tests in CONTRIBUTING.md",
)
expect.set_options(timeout=PATIENCE_MS)

PAGES = (
    "/console",
    "/console/failures",
    "/console/deliveries",
    "/console/dead-letters",
    "/console/dead-letters/3/1",
    "/console/workflows",
    "/console/workflows/order/start",
    "/console/instances",
    "/console/instances/order/o-1",
    "/console/instances/order/o-long",
    "/console/endpoints",
    "/console/endpoints/ep_3f9a2c7d41e05b6a8c1d",
    "/console/search?q=unknown",
    "/console/no-such-page",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
def address(api: MemoryApi) -> Iterator[str]:
    with served(application(api)) as address:
        yield address


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    with visiting(browser, address) as visit:
        yield visit
        assert visit.complaints == []


def test_a_live_page_shows_what_is_new_and_keeps_what_is_typed(visit: Visit, api: MemoryApi):
    page = visit.page
    visit.open("/console/deliveries?refresh=2")
    field = page.get_by_label("Type")
    field.press_sequentially("dai")
    focused = page.locator("tbody tr").nth(3).locator("a").first
    name = focused.inner_text()
    api.deliveries.insert(0, delivery(250, type="from_the_future"))
    expect(page.locator("tbody")).to_contain_text("from_the_future")
    expect(field).to_have_value("dai")
    expect(field).to_be_focused()
    # The focus stays in its row when rows come before it.
    page.get_by_role("link", name=name).focus()
    api.deliveries.insert(0, delivery(251, type="even_later"))
    expect(page.locator("tbody")).to_contain_text("even_later")
    expect(page.get_by_role("link", name=name)).to_be_focused()


def test_live_updates_can_be_paused_and_say_when_they_fail(visit: Visit, api: MemoryApi):
    page = visit.page
    visit.open("/console/deliveries?refresh=2")
    page.keyboard.press("l")
    expect(page.locator("#live")).to_have_text("Paused")
    api.deliveries.insert(0, delivery(250, type="from_the_future"))
    page.keyboard.press("l")
    expect(page.locator("tbody")).to_contain_text("from_the_future")
    page.context.clear_cookies()
    expect(page.locator("#live")).to_have_text("Session ended: sign in again")


def test_the_keyboard_leads_everywhere(visit: Visit):
    page = visit.page
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", name="Deliveries", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("daily")
    page.keyboard.press("Enter")
    page.wait_for_url("**/deliveries?**")
    page.keyboard.press("g")
    page.keyboard.press("i")
    expect(page.get_by_role("heading", name="Instances", exact=True)).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/instances/order/o-1")
    page.keyboard.press("u")
    page.wait_for_url("**/console/instances?workflow=order")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_colors_are_switched_and_remembered(visit: Visit):
    page = visit.page
    shown = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(shown)
    page.keyboard.press("t")
    dark = page.evaluate(shown)
    assert dark != light
    visit.open("/console/users")
    assert page.evaluate(shown) == dark
    page.get_by_role("button", name="Colors").click()
    assert page.evaluate(shown) == light


def test_a_dead_letter_is_reprocessed_and_its_outcome_is_shown(visit: Visit):
    page = visit.page
    visit.open("/console/dead-letters")
    page.get_by_role("link", name="3/1", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("expected a connection of the Terra user")
    page.get_by_role("button", name="Reprocess").click()
    expect(page.get_by_role("main")).to_contain_text("The delivery is now processed")
    visit.open("/console/dead-letters")
    expect(page.get_by_role("link", name="3/1", exact=True)).to_have_count(0)


def test_failed_runs_are_retried_one_or_all_with_an_error(visit: Visit):
    page = visit.page
    visit.open("/console/failures")
    page.get_by_role("link", name="Retry all").click()
    page.get_by_role("button", name="Retry them").click()
    expect(page.get_by_role("main")).to_contain_text("1 retried, 0 refused.")


def test_a_failed_run_is_retried(visit: Visit):
    page = visit.page
    visit.open("/console/instances/order/o-1")
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("status")).to_have_text("The next run continues from the failed step.")


def test_a_form_that_is_refused_keeps_what_was_entered(visit: Visit):
    page = visit.page
    visit.open("/console/instances/order/o-long")
    page.get_by_text("Send approval …").click()
    payload = page.get_by_label("Payload, JSON")
    payload.fill('{"by": ')
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_label("Payload, JSON")).to_have_value('{"by": ')
    expect(page.get_by_role("alert")).to_contain_text("payload: expected JSON")
    # The response of a refused form is no failure of the page.
    visit.complaints = [text for text in visit.complaints if "400 (Bad Request)" not in text]
    page.get_by_label("Payload, JSON").fill('{"by": "amara"}')
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("status")).to_have_text("The event was sent.")


def test_a_timeline_of_any_length_is_read_in_windows_and_stays_small(visit: Visit):
    page = visit.page
    visit.open("/console/instances/order/o-long?stepsCursor=48000")
    seen = page.locator("table.timeline tbody")
    for number in range(2, 15):
        page.mouse.wheel(0, 100_000)
        expect(seen).to_have_count(number)
    # Windows that are far away have no rows, and none is lost when one scrolls back.
    page.wait_for_function("document.querySelectorAll('tbody[data-empty]').length >= 3")
    assert page.locator("table.timeline tr").count() < 14 * 202
    page.evaluate("scrollTo(0, 0)")
    expect(page.get_by_text("charge 48000", exact=False).first).to_be_visible()
    visit.open(f"/console/instances/order/o-long?stepsCursor={LONG - 100}")
    expect(page.get_by_text(f"charge {LONG - 1}")).to_be_visible()


def test_pages_have_no_mistake_and_nothing_is_beyond_the_edge_of_a_phone(
    browser: Browser, address: str
):
    with visiting(browser, address, PHONE) as visit:
        for path in PAGES:
            visit.open(path)
            hidden = visit.page.evaluate(
                """() => [...document.querySelectorAll("td, th.span, dd, nav a, button, label")]
                .filter((cell) => cell.checkVisibility() && cell.textContent.trim())
                .filter((cell) => cell.getBoundingClientRect().right > innerWidth + 1)
                .map((cell) => cell.textContent.trim().slice(0, 40))"""
            )
            assert hidden == [], f"{path}: {hidden}"
            assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        # A page that is not there is a page, and Chromium reports its status.
        assert [text for text in visit.complaints if "404" not in text] == []


def test_pages_work_without_the_script(browser: Browser, address: str):
    with visiting(browser, address, java_script_enabled=False) as visit:
        page = visit.page
        visit.open("/console/instances/order/o-1")
        page.get_by_role("button", name="Retry").click()
        expect(page.get_by_role("status")).to_have_text(
            "The next run continues from the failed step."
        )
        visit.open("/console/deliveries")
        page.get_by_role("link", name="Refresh every 5 s").click()
        assert page.locator('meta[http-equiv="refresh"]').get_attribute("content") == "5"
