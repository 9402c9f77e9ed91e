"""Workflows in the console: each page on real rows, and each button on real runs."""

import html
import re
from collections.abc import Iterator

import httpx2
import pytest

from tests.e2e.system import System
from tests.integration.workflow_routes.asking import create, of, status, until
from tests.visitor import Visitor, visiting, words
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def visitor(system: System) -> Iterator[Visitor]:
    with visiting(system.url()) as visitor:
        yield visitor


def test_workflows_are_listed_with_their_counts_and_lead_to_their_instances(
    api: httpx2.Client, visitor: Visitor
) -> None:
    name = create(api, "echo", {"a": 1}, "in-the-console")
    until(api, "echo", name, "complete")
    page = visitor.page("/console/workflows")
    assert re.search(r"echo complete \d+", words(page))
    (link,) = re.findall(r'href="(/console/instances\?workflow=echo&amp;status=complete)"', page)
    listed = visitor.page(html.unescape(link))
    assert name in words(listed)
    assert 'href="/console/instances/echo/in-the-console"' in listed
    assert "complete" in words(visitor.page("/console"))
    none = visitor.press("/console/instances?workflow=echo", "Find", status="paused").text
    assert "headwater instances create -w echo" in words(none)


def test_pages_of_instances_follow_each_other(api: httpx2.Client, visitor: Visitor) -> None:
    for _ in range(4):
        create(api, "echo", None)
    seen = []
    path = "/console/instances?workflow=echo&pageSize=1"
    for _ in range(3):
        page = visitor.page(path)
        seen += re.findall(r'href="/console/instances/echo/([^"]+)"', page)
        (path,) = map(html.unescape, re.findall(r'href="([^"]+)" rel="next"', page))
        assert "pageSize=1" in path
    assert len(set(seen)) == 3


def test_an_instance_shows_its_steps_on_a_line_of_time_its_events_and_its_log(
    told: str, visitor: Visitor
) -> None:
    page = visitor.page(f"/console/instances/telling/{told}")
    text = words(page)
    assert f"{told} complete" in text
    assert page.count("<svg") == 8
    assert "step 3 do completed 1" in text
    assert 'Result { "number": 3 }' in text
    assert "end wait_for_event completed" in text
    assert "info test begun" in text
    assert "warn" in text
    assert "/api/workflows/workflows/telling/instances/" in text


def test_each_button_of_an_instance_does_what_it_says(api: httpx2.Client, visitor: Visitor) -> None:
    name = create(api, "waiting", 2)
    until(api, "waiting", name, "waiting")
    at = f"/console/instances/waiting/{name}"
    assert "The instance is paused." in words(visitor.press(at, "Pause").text)
    assert status(api, "waiting", name)["status"] == "paused"
    assert "The instance has resumed." in words(visitor.press(at, "Resume").text)
    until(api, "waiting", name, "waiting")
    refused = visitor.press(at, "Send", type="go", payload="{nonsense")
    assert refused.status_code == 400
    assert "payload: expected JSON" in words(refused.text)
    sent = visitor.press(at, "Send", payload='{"amount": 1.10}')
    assert "The event was sent." in words(sent.text)
    wait_until(lambda: "Consumed by" in words(visitor.page(at)), "the event to be consumed")
    assert "The next run has started." in words(visitor.press(at, "Restart").text)
    until(api, "waiting", name, "waiting")
    assert "Runs: 0 1" in words(visitor.page(at))
    earlier = words(visitor.page(f"{at}?runNumber=0"))
    assert "Run 0" in earlier
    assert '{ "amount": 1.10 }' in earlier
    ended = visitor.press(at, "Terminate", reason="no <more>")
    assert "The instance was terminated." in words(ended.text)
    assert "no <more>" in words(ended.text)
    assert status(api, "waiting", name)["error"]["message"].endswith(": no <more>")


def test_one_that_is_cancelled_cleans_up(api: httpx2.Client, visitor: Visitor) -> None:
    name = create(api, "tidy")
    until(api, "tidy", name, "waiting")
    done = visitor.press(f"/console/instances/tidy/{name}", "Cancel", reason="")
    assert "The run is being canceled" in words(done.text)
    until(api, "tidy", name, "terminated")
    assert "sweep do completed" in words(visitor.page(f"/console/instances/tidy/{name}"))


def test_one_that_has_failed_shows_why_and_is_retried(api: httpx2.Client, visitor: Visitor) -> None:
    name = create(api, "flaky")
    until(api, "flaky", name, "errored")
    at = f"/console/instances/flaky/{name}"
    text = words(visitor.page(at))
    assert "no such card" in text
    assert "in charge" in text  # a frame of the author's code
    assert "continues from the failed step" in words(visitor.press(at, "Retry").text)
    assert until(api, "flaky", name, "complete")["output"] == "keptcharged"
    # Its button is gone; who has kept the page is told what the API says.
    with pytest.raises(AssertionError, match="one button 'Retry'"):
        visitor.press(at, "Retry")


def test_failed_runs_are_grouped_by_their_error_and_retried_together(
    api: httpx2.Client, visitor: Visitor
) -> None:
    names = [create(api, "flaky") for _ in range(2)]
    for name in names:
        until(api, "flaky", name, "errored")
    page = visitor.page("/console/failures")
    assert re.search(r"errored flaky \w+ no such card [2-9]", words(page))
    (confirmed,) = re.findall(r'href="(/console/failures/retry\?workflow=flaky[^"]*)"', page)
    confirmed = html.unescape(confirmed)
    error = confirmed.rpartition("=")[2]
    listed = f"/console/instances?workflow=flaky&status=errored&errorName={error}"
    assert "no such card" in words(visitor.page(listed))
    assert "No instances match." in words(visitor.page(f"{listed}x"))
    done = words(visitor.press(confirmed, "Retry them").text)
    assert re.search(r"[2-9] retried, 0 refused\.", done)
    for name in names:
        until(api, "flaky", name, "complete")
    wait_until(
        lambda: "errored flaky" not in words(visitor.page("/console/failures")),
        "the failures to be gone",
    )


def test_a_run_is_started_with_a_form(visitor: Visitor) -> None:
    at = "/console/workflows/echo/start"
    refused = visitor.press(at, "Start", params="{nonsense", id="from-a-form")
    assert refused.status_code == 400
    assert "params: expected JSON" in words(refused.text)
    started = visitor.press(at, "Start", params='{"a": 1}', id="from-a-form", labels="team=blue")
    assert started.url.path == "/console/instances/echo/from-a-form"
    assert "The instance was created." in words(started.text)
    found = visitor.client.get("/console/search", params={"q": "from-a-form"})
    assert found.url.path == "/console/instances/echo/from-a-form"


def test_a_graph_is_drawn_with_its_tokens_and_says_what_it_waits_for(
    api: httpx2.Client, visitor: Visitor
) -> None:
    name = create(api, "judged", {"file": ""})
    until(api, "judged", name, "waiting")
    page = visitor.page(f"/console/instances/judged/{name}")
    text = words(page)
    assert "ask" in text
    assert "waiting_for_subworkflow waits for subworkflow" in text
    (child,) = re.findall(r'href="(/console/instances/waiting/[^"]+)"', page)
    (drawn,) = set(re.findall(r'src="([^"]+graph\.svg[^"]*)"', page))
    picture = visitor.client.get(html.unescape(drawn))
    assert picture.headers["content-type"].startswith("image/svg+xml")
    assert "<svg" in picture.text
    # By itself, too, it has the styles that are in it, and nothing else.
    (policy,) = picture.headers.get_list("content-security-policy")
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; ")
    assert "sandbox" in policy
    visitor.press(child, "Send", type="go", payload="")
    until(api, "judged", name, "complete")
    assert '"votes"' in words(visitor.page(f"/console/instances/judged/{name}"))


def test_what_is_not_there_is_said_with_the_status_of_the_api(visitor: Visitor) -> None:
    for path, code in (
        ("/console/instances/echo/no-such", "INSTANCE_NOT_FOUND"),
        ("/console/instances?workflow=no-such", "WORKFLOW_NOT_FOUND"),
    ):
        answer = visitor.client.get(path)
        assert answer.status_code == 404
        assert code in words(answer.text)


def test_what_was_done_here_is_audited_with_the_key_that_signed_in(
    api: httpx2.Client, system: System, visitor: Visitor
) -> None:
    name = create(api, "waiting", 1)
    visitor.press(f"/console/instances/waiting/{name}", "Pause")
    resource = f"/api/workflows{of('waiting', name, 'pause')}"

    def told() -> bool:
        return f"instances.pause {resource} success admin:" in words(
            visitor.page("/console/audit?action=instances.pause")
        )

    system.wait(told, "the entry to be in Postgres")
