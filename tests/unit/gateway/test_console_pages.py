"""The console's pages of all that the API may say: everything that it can leave out, or not."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape
from typing import Any

import msgspec
import pytest
from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State
from litestar.testing import TestClient

from headwater.gateway.api.admin import DeadLetterPosition, ReplayAnswer
from headwater.gateway.api.auditor import status_of
from headwater.gateway.api.authentication import Caller
from headwater.gateway.api.console.api_client import ConsoleKeys
from headwater.gateway.api.console.glance import (
    Lag,
    furthest_behind,
    glance_of,
    lags_of,
    samples_of,
)
from headwater.gateway.api.console.overview import attention_of
from headwater.gateway.api.console.routes import Console
from headwater.gateway.api.console.sessions import SignIn
from headwater.gateway.api.console.views import projections_of
from headwater.gateway.api.console.workflow_views import actions_of, awaited_event
from headwater.gateway.api.request_scope import STATE_NAME
from headwater.gateway.client.instance_texts import state_text
from headwater.projections.deliveries.quality import ConnectionActivity, ConnectionCount, Quality
from headwater.projections.deliveries.queries import DeadLetter, DeadLetterPage, DeadReason
from headwater.projections.deliveries.users import Connection, SourceRows, UserWhole
from headwater.projections.workflows.instances import (
    FailedRuns,
    InstanceCount,
    StuckInstance,
    of_stuck,
)
from headwater.schemas.answers import (
    Concurrency,
    CurrentStep,
    Event,
    Failure,
    HistoryPage,
    Instance,
    InstanceFound,
    InstanceMeta,
    InstancePage,
    InstanceStatus,
    LogLine,
    Parent,
    SlotAwaited,
    Step,
    Token,
    TokensAt,
    WorkflowList,
    WorkflowListed,
)
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus
from tests.unit.gateway.test_auditor_commands import FINDING, REPORT
from tests.visitor import Form, forms, scripts, words

AT = datetime(2026, 7, 1, 8, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>"
FAILURE = Failure(name="ValueError", message=HOSTILE, traceback=f"File {HOSTILE}, line 3")
OF_RUN: dict[str, Any] = {"workflow_name": "order", "instance_id": "a", "run_number": 2}
WAIT = CurrentStep(
    step_key=HOSTILE, name=HOSTILE, type=EntryKind.WAIT, status=EntryStatus.WAITING, attempts=0,
    max_attempts=None, timeout_ms=None, next_retry_at=None, wake_at=AT,
    wait_event_type=["yes", "no"], last_attempt_at=None,
)  # fmt: skip
SLOT = SlotAwaited(key=HOSTILE, limit=2, before=7, since=AT)
STANDS: dict[str, Any] = {
    "deployment_id": "dep_1",
    "current_step": WAIT,
    "current_tokens": [
        TokensAt(node_ref=HOSTILE, status="waiting", tokens=1, next_retry_at=None, wake_at=None)
    ],
    "awaited_slot": SLOT,
}
BARE_META = InstanceMeta(
    workflow_name="order", run_number=2, params=None, created_at=AT, updated_at=AT,
    started_at=None, completed_at=None,
)  # fmt: skip
FULL_META = msgspec.structs.replace(
    BARE_META,
    params={HOSTILE: HOSTILE},
    parent=Parent(workflow_name="day", instance_id="b", run_number=0, step_key="c"),
    retention_until=AT,
    **STANDS,
)
STEP = Step(
    id=HOSTILE, **OF_RUN, step_key=HOSTILE, name=HOSTILE, type=EntryKind.DO,
    status=EntryStatus.ERRORED, attempts=3, max_attempts=3, timeout_ms=1, next_retry_at=AT,
    wake_at=AT, wait_event_type=HOSTILE, last_attempt_at=AT, error=FAILURE, result=HOSTILE,
    error_name="ValueError", error_message=HOSTILE, child_workflow_name="day",
    child_instance_id="c", trimmed_before=None, created_at=AT, updated_at=AT, completed_at=None,
    rolled_back_at=AT, rollback_failed_at=None,
)  # fmt: skip
TOKEN = Token(
    id="1", **OF_RUN, node_ref=HOSTILE, task=None, subworkflow=None, status="failed", path_id="0",
    parent_token_id=None, sibling_group=None, branch_index=0, branch_total=1, iteration_counts={},
    attempts=1, input=None, result={"a": HOSTILE}, error=FAILURE, next_retry_at=None, wake_at=None,
    reason=None, child_workflow_name=None, child_instance_id=None, created_at=AT, updated_at=AT,
    completed_at=AT,
)  # fmt: skip
EVENT = Event(
    id="e", **OF_RUN, type=HOSTILE, payload=HOSTILE, created_at=AT, delivered_at=None,
    consumed_by_step_key=None,
)  # fmt: skip
LINE = LogLine(
    id="l", **OF_RUN, step_key=None, attempt=None, level="error", category=HOSTILE,
    message=HOSTILE, data={"a": HOSTILE}, is_replay=False, created_at=AT,
)  # fmt: skip

COUNT = InstanceCount(workflow="order", status="errored", instances=3, built_in=False)
ERRORED = FailedRuns(
    workflow="order", state="errored", error=HOSTILE, message=HOSTILE, runs=3, new=1, first_at=AT,
    last_at=AT, instance_id="a",
)  # fmt: skip
REASON = DeadReason(state="dead", reason="no_user", deliveries=2, new=0, first_at=AT, last_at=AT)
#: Where a replay of all dead letters goes on.
AFTER = DeadLetterPosition(partition=2, offset=7)
LETTER = DeadLetter(
    partition=2, offset=7, event_id=None, request_id=None, original_topic="webhooks",
    original_partition=0, original_offset=1, reason="no_user", message=HOSTILE, stage=None,
    rule=None, dead_at=AT, replayed_at=AT, expired_at=None,
)  # fmt: skip
#: Somebody of whom nothing is known.
STRANGER = UserWhole(
    user_id="", connections=(), counts={}, sources=(), last_outcomes=(), waiting=(), dead=()
)


OPEN = Connection(
    terra_user_id=HOSTILE, provider="WHOOP", active=True, reference_id="u", scopes=HOSTILE,
    connected_at=AT, deactivated_at=None,
)  # fmt: skip
SILENT = ConnectionActivity(
    terra_user_id=HOSTILE, user_id=HOSTILE, provider="whoop", state="silent", connected_at=AT,
    last_delivery_at=AT, last_day=AT.date(), silent_days=9, silent_after_days=3, failing_since=AT,
    source="terra",
)  # fmt: skip
QUALITY = Quality(
    weeks=[],
    rejected_values=[],
    skipped=[],
    connections=[ConnectionCount(provider="whoop", state="silent", connections=1)],
    not_receiving=[SILENT],
    connections_counted_at=AT,
)
CONNECTED = msgspec.structs.replace(
    STRANGER,
    connections=(OPEN,),
    activity=(SILENT,),
    counts={"daily_summary": 3},
    sources=(SourceRows(source=HOSTILE, rows={"daily_summary": 3}, updated_at=AT),),
)


def instance(full: bool) -> Instance:
    status = InstanceStatus(status=RunStatus.WAITING)
    if not full:
        return Instance(id="a", details=status, meta=BARE_META)
    status = msgspec.structs.replace(status, error=FAILURE, output=HOSTILE)
    return Instance(id="a", details=status, meta=FULL_META, labels={"team": HOSTILE})


def listed(full: bool) -> InstancePage:
    whole = instance(full)
    fields = {"workflow_name": "order", "created_at": AT, "updated_at": AT}
    result = InstanceFound(
        id="a", details=whole.details, labels=whole.labels, **fields, **(STANDS if full else {})
    )
    return InstancePage(instances=[result], has_next_page=full, cursor="more" if full else None)


def history(full: bool, of: str) -> HistoryPage:
    return HistoryPage(
        run_number=2,
        steps=[STEP] if full and of == "code" else [],
        tokens=[TOKEN] if full and of == "graph" else [],
        events=[EVENT] if full else [],
        logs=[LINE] if full else [],
        logs_has_next_page=full,
        steps_has_next_page=full,
        tokens_has_next_page=full,
        events_has_next_page=full,
        steps_cursor="more" if full else None,
        tokens_cursor="more" if full else None,
        events_cursor="more-events" if full else None,
        logs_cursor="more-lines" if full else None,
    )


def known(full: bool) -> WorkflowList:
    limit = Concurrency(limit=3, key="params.user", held=3, waiting=2)
    limits = [limit, Concurrency(limit=1)] if full else [None]
    return WorkflowList(workflows=[WorkflowListed(name="order", concurrency=c) for c in limits])


def api(full: bool, of: str) -> list[Any]:
    """What the API answers; of everything else, that it is not there."""
    base = "/api/workflows/workflows"
    answers: dict[str, object] = {
        base: known(full),
        f"{base}/order/instances": listed(full),
        f"{base}/order/instances/a": instance(full),
        f"{base}/order/instances/a/history": history(full, of),
        "/admin/user/{user_id:str}": CONNECTED if full else STRANGER,
        "/admin/quality": QUALITY,
        "/admin/instances": {"instances": [COUNT] if full else []},
        "/admin/instances/failures": {"groups": [ERRORED] if full else []},
        "/admin/dlq/reasons": {"groups": [REASON] if full else []},
        "/admin/auditor": status_of(
            msgspec.structs.replace(REPORT, findings=[FINDING] if full else [])
        ),
        "/admin/dlq": DeadLetterPage(
            rows=(LETTER,) if full else (), cursor="more" if full else None
        ),
        "/health/ready": {"parts": {"kafka": "ok"}},
    }

    def answering(path: str, answer: object) -> Any:  # noqa: ANN401 (a handler of Litestar's)
        @get(path, sync_to_thread=False)
        def handle() -> Response[bytes]:
            return Response(msgspec.json.encode(answer), media_type="application/json")

        return handle

    return [*(answering(path, answer) for path, answer in answers.items()), put_back]


@post("/admin/dlq/replay", status_code=200)
async def put_back(request: Request[Any, Any, Any]) -> ReplayAnswer:
    """Goes on after 7 once, and then is done."""
    requested = await request.json()
    rest = None if requested.get("after") == {"partition": 2, "offset": 7} else AFTER
    number = 1 if rest is None else 1000
    return ReplayAnswer(dry_run=False, replayed=number, failed=0, next=rest, results=[])


OPERATOR = Caller("admin:00000000", frozenset({"system:read"}))


async def find(_key: str) -> Caller:
    return OPERATOR


@pytest.fixture(
    params=[(False, "code"), (True, "code"), (True, "graph")], ids=["bare", "code", "graph"]
)
def client(request: pytest.FixtureRequest) -> Iterator[TestClient[Any]]:
    console = Console(
        ConsoleKeys("the-key", "another"),
        SignIn(find, lambda *_: OPERATOR, "default", ["the-key"]),
        clock=lambda: int(AT.timestamp() * 1000),
        record_refusal=lambda _scope, _code: None,
        bodies=lambda app: app,
    )
    state = State({STATE_NAME: lambda: "request-1"})
    app = Litestar([console.router(), *api(*request.param)], state=state, openapi_config=None)
    with TestClient(app) as client:
        client.post("/console/login", data={"key": "the-key"})
        yield client


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/console/workflows", "order"),
        ("/console/auditor", "0 lost of 120 deliveries"),
        ("/console/instances?workflow=order", "order"),
        ("/console/instances/order/a", "Run 2"),
        ("/console/instances/order/a?runNumber=1&done=pause", "The instance is paused."),
    ],
)
def test_pages_show_all_that_there_is_and_nothing_where_there_is_nothing(
    client: TestClient[Any], path: str, shown: str
):
    page = client.get(path)
    assert page.status_code == 200, page.text
    assert shown in words(page.text)
    assert scripts(page.text) == 1
    assert " style=" not in page.text


@pytest.mark.parametrize("client", [(True, "code")], indirect=True)
def test_all_of_a_long_history_can_be_reached(client: TestClient[Any]):
    here = "/console/instances/order/a?runNumber=1"
    text = unescape(client.get(f"{here}&logsCursor=a").text)
    for more in ("stepsCursor=more", "eventsCursor=more-events"):
        assert f'href="{here}&logsCursor=a&{more}" rel="next"' in text
    assert f'href="{here}&logsCursor=more-lines" rel="next"' in text
    assert f'href="{here}">First logs' in text
    assert f'href="{here}&order=desc">Newest first' in text
    assert f'href="{here}">Oldest first' in unescape(client.get(f"{here}&order=desc").text)


def test_all_dead_letters_are_put_back_page_by_page(client: TestClient[Any]):
    def button(page: str) -> Form:
        (result,) = (form for form in forms(page) if form.action.endswith("/dead-letters/replay"))
        return result

    asking = client.get("/console/dead-letters/replay?reason=no_user").text
    assert "At least 1000 dead letters with the reason no_user" in words(asking)
    first = client.post("/console/dead-letters/replay", data=button(asking).fields).text
    assert "1000 reprocessed, 0 failed." in words(first)
    last = client.post("/console/dead-letters/replay", data=button(first).fields).text
    assert "1 reprocessed, 0 failed." in words(last)
    assert "Continue" not in last


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ((False, "code"), "Needs attention Nothing. No run is errored"),
        ((True, "code"), f"Needs attention errored 3 1 new {HOSTILE} dead 2 no_user"),
    ],
    indirect=["client"],
)
def test_the_overview_says_what_needs_attention(client: TestClient[Any], said: str):
    assert said in words(client.get("/console").text)


@pytest.mark.parametrize("client", [(True, "code")], indirect=True)
def test_failures_are_grouped_and_lead_to_what_repairs_them(client: TestClient[Any]):
    page = unescape(client.get("/console/failures").text)
    error = "%3Cscript%3Ealert%281%29%3C%2Fscript%3E"
    assert f'href="/console/failures/retry?workflow=order&error={error}"' in page
    assert f'href="/console/instances?workflow=order&status=errored&errorName={error}"' in page
    assert 'href="/console/dead-letters/replay?reason=no_user"' in page


@pytest.mark.parametrize("client", [(True, "code")], indirect=True)
def test_the_list_of_instances_says_what_the_command_line_says(client: TestClient[Any]):
    body = msgspec.json.encode(listed(full=True))
    (row,) = msgspec.json.decode(body, type=InstancePage).instances
    text = state_text(row, AT, 120)
    assert text == f"ValueError: {HOSTILE}"
    assert text in words(client.get("/console/instances?workflow=order").text)


@pytest.mark.parametrize("client", [(False, "code"), (True, "code")], indirect=True)
def test_a_form_that_is_refused_is_shown_again_with_what_was_entered(client: TestClient[Any]):
    at = "/console/instances/order/a"
    (form,) = (form for form in forms(client.get(at).text) if form.action == f"{at}/events")
    answer = client.post(f"{at}/events", data=form.fields | {"type": "go", "payload": '{"a": <'})
    assert answer.status_code == 400
    text = unescape(answer.text)
    assert 'aria-invalid="true">{"a": <</textarea>' in text
    assert '<span class="mistake" role="alert">payload: expected JSON' in text
    assert re.search(r'<details class="\w*" open>', text)
    (again,) = (one for one in forms(answer.text) if one.action == f"{at}/events")
    assert again.fields["type"] == "go"
    assert again.fields["key"] == form.fields["key"]
    assert f'href="{at}?order=desc"' in text


@pytest.mark.parametrize("client", [(False, "code")], indirect=True)
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "No dead letters."),
        ("?state=parked", "No parked deliveries."),
        ("?state=all", "No dead letters and no parked deliveries."),
    ],
)
def test_of_what_is_not_there_no_more_is_said(client: TestClient[Any], query: str, said: str):
    result = words(client.get(f"/console/dead-letters{query}").text)
    assert f"{said} To list refused requests" in result


@pytest.mark.parametrize("client", [(True, "code")], indirect=True)
def test_a_user_is_shown_by_source_with_what_can_be_done(client: TestClient[Any]):
    page = client.get("/console/users", params={"user_id": "user_1"})
    assert HOSTILE not in page.text
    assert "3, last 2026-07-01 08:00:00" in words(page.text)
    assert "silent whoop: newest day 2026-07-01, last delivery 2026-07-01" in words(page.text)
    buttons = ("Import", "Compare with Terra", "Disconnect all")
    assert all(any(button in form.labels for form in forms(page.text)) for button in buttons)


@pytest.mark.parametrize("client", [(True, "code")], indirect=True)
def test_connections_without_new_data_are_listed(client: TestClient[Any]):
    page = client.get("/console/quality")
    assert HOSTILE not in page.text
    assert "Connections without new data" in words(page.text)
    assert "whoop silent 9 2026-07-01" in words(page.text)


@pytest.mark.parametrize("client", [(False, "code")], indirect=True)
def test_commands_to_copy_hold_what_others_have_chosen_as_one_word(client: TestClient[Any]):
    page = client.get("/console/users", params={"user_id": "user_1; $(reboot)"})
    assert "headwater doctor user 'user_1; $(reboot)'" in words(page.text)


def test_how_far_a_projection_is_is_said_of_all_of_its_partitions():
    def at(projection: str, offset: int, applied: str | None) -> dict[str, Any]:
        return {"projection": projection, "next_offset": offset, "applied_at": applied}

    positions = [
        at("headwater", 3, "2026-07-01T08:00:00.5Z"),
        at("headwater", 4, "2026-07-01T08:00:00Z"),
        at("headwater", 0, None),
        at("audit", 0, None),
    ]
    assert projections_of(positions) == [
        {"name": "headwater", "records": 7, "applied_at": "2026-07-01T08:00:00.5Z"},
        {"name": "audit", "records": 0, "applied_at": None},
    ]
    assert projections_of([]) == []


def test_failures_are_added_up_by_state_the_most_urgent_first():
    def runs(state: str, error: str, number: int, new: int = 0) -> dict[str, Any]:
        return {"state": state, "error": error, "runs": number, "new": new}

    groups = [
        runs("retrying", "A", 1),
        {"state": "dead", "reason": "no_user", "deliveries": 4, "new": 2},
        runs("errored", "A", 2, new=1),
        runs("errored", "B", 5),
        runs("stuck", "", 1),
    ]
    assert attention_of(groups) == [
        ("errored", 7, 1, ("B", "A")),
        ("stuck", 1, 0, ()),
        ("retrying", 1, 0, ("A",)),
        ("dead", 4, 2, ("no_user",)),
    ]


def test_metrics_at_a_glance():
    text = """# HELP x y
headwater_webhook_received_total{source="terra",outcome="accepted"} 1254.0
headwater_webhook_received_total{source="shop",outcome="duplicate"} 46.0 1785000000
headwater_webhook_append_seconds_bucket{le="0.0025"} 900.0
headwater_webhook_append_seconds_bucket{le="0.005"} 1250.0
headwater_webhook_append_seconds_bucket{le="+Inf"} 1254.0 # {trace_id="a"} 0.004
# EOF
"""
    shown = dict(glance_of([*samples_of(text)]))
    assert shown["Requests to sources"] == "1,300"
    assert shown["Append to Kafka, 95 %"] == "at most 5 ms"
    assert "Event loop late, 95 %" not in shown


def test_how_far_consumers_are_behind():
    text = """
headwater_lag_records{group="intake",topic="webhooks",partition="0"} 0.0
headwater_lag_records{group="projector",topic="days",partition="0"} 3.0
headwater_lag_records{group="projector",topic="days",partition="1"} 4.0
headwater_lag_seconds{group="projector",topic="days",partition="0"} 1.5
headwater_lag_seconds{group="projector",topic="days",partition="1"} 0.5
headwater_lag_records{group="projector",topic="we}ird\\"",partition="0"} 1.0
"""
    lags = lags_of([*samples_of(text)])
    assert lags[0] == Lag("projector", "days", 7, 1.5)
    assert furthest_behind(lags) == [Lag("projector", "", 8, 1.5), Lag("intake", "", 0, 0.0)]
    assert lags_of([]) == []


def test_stuck_instances_are_a_group_of_each_workflow():
    stuck = [
        StuckInstance("order", "a", 0, 1_000),
        StuckInstance("order", "b", 0, 3_000),
        StuckInstance("day", "c", 0, 2_000),
    ]
    since = datetime.fromtimestamp(2, UTC)
    order, day = of_stuck(stuck, since)
    assert (order.workflow, order.state, order.runs, order.new) == ("order", "stuck", 2, 1)
    assert (order.instance_id, order.last_at.timestamp()) == ("b", 3)
    assert (day.runs, day.new) == (1, 1)
    assert [group.new for group in of_stuck(stuck, None)] == [0, 0]


def test_what_brings_an_instance_on_comes_first():
    assert [action.name for action in actions_of("errored")] == ["retry", "restart"]
    assert actions_of("paused")[0].name == "resume"
    assert actions_of("waiting")[-1].name == "terminate"
    assert awaited_event({"currentStep": {"waitEventType": ["yes", "no"]}}) == "yes"
    assert awaited_event({"currentStep": {"waitEventType": "go"}}) == "go"
    assert awaited_event({"currentStep": None}) == ""
    assert awaited_event({}) == ""
