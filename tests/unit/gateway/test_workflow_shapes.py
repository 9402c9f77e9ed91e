"""Rows as answers: names in camelCase, times in UTC, and the values of authors as they came."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from headwater.gateway.http.problems import CODES
from headwater.gateway.workflows import shapes
from headwater.gateway.workflows.refusals import refusal
from headwater.projections.workflows.queries import CurrentStep, Event, LogLine, Page, Step
from headwater.schemas.failures import REFUSALS
from tests.unit.gateway.workflow_fakes import AT, instance, listed, reply

TEXT = '{"b": 1.0, "a" : [1, "\\u0000"]}'


def shown(shape: msgspec.Struct) -> Any:  # noqa: ANN401 (JSON)
    return json.loads(msgspec.json.encode(shape))


@pytest.mark.parametrize(
    ("row", "status"),
    [
        (instance(), {"status": "active"}),
        (listed(status="complete", output="null"), {"status": "complete", "output": None}),
        (
            instance(status="errored", error_name="ValueError", error_message="no"),
            {"status": "errored", "error": {"name": "ValueError", "message": "no"}},
        ),
    ],
)
def test_a_status_has_an_output_or_an_error_only_if_there_is_one(row: Any, status: Any) -> None:  # noqa: ANN401
    assert shown(shapes.status_shown(row)) == status


def test_values_of_authors_are_not_written_anew() -> None:
    text = TEXT.encode()
    whole = instance(params=TEXT, status="complete", output=TEXT)
    assert msgspec.json.encode(shapes.instance_whole(whole)).count(text) == 2


STEP = CurrentStep(
    step_key="pages/~3/fetch",
    name="fetch",
    type="do",
    status="errored",
    attempts=2,
    max_attempts=None,
    timeout_ms=600_000,
    next_retry_at=AT + timedelta(microseconds=1_500),
    wake_at=None,
    wait_event_type=None,
    error_name="OSError",
    error_message="gone",
)
STANDING = {
    "stepKey": "pages/~3/fetch",
    "name": "fetch",
    "type": "do",
    "status": "errored",
    "attempts": 2,
    "maxAttempts": None,
    "timeoutMs": 600_000,
    "nextRetryAt": "2026-07-01T08:00:00.001500Z",
    "wakeAt": None,
    "waitEventType": None,
    "error": {"name": "OSError", "message": "gone"},
}


def test_an_instance_is_told_whole() -> None:
    row = instance(
        current_step=STEP,
        parent_workflow_name="p",
        parent_instance_id="p-1",
        parent_run_number=2,
        parent_step_key="bill",
    )
    assert shown(shapes.instance_whole(row)) == {
        "id": "a",
        "details": {"status": "active"},
        "meta": {
            "workflowName": "order",
            "runNumber": 0,
            "params": None,
            "createdAt": "2026-07-01T08:00:00Z",
            "updatedAt": "2026-07-01T08:00:00Z",
            "startedAt": "2026-07-01T08:00:00Z",
            "completedAt": None,
            "currentStep": STANDING,
            "parent": {
                "workflowName": "p",
                "instanceId": "p-1",
                "runNumber": 2,
                "stepKey": "bill",
            },
        },
    }
    assert "currentStep" not in shown(shapes.instance_whole(instance()))["meta"]


def test_a_step_has_all_its_columns() -> None:
    row = Step(
        **msgspec.structs.asdict(STEP),
        run_number=1,
        child_workflow_name="bill",
        child_instance_id="b-1",
        result=TEXT,
        error_detail=None,
        ordinal=3,
        sequence=4,
        trimmed_before=7,
        created_at=AT,
        updated_at=AT,
        rolled_back_at=None,
    )
    assert shown(shapes.step_shown(row, "order", "a")) == STANDING | {
        "id": "pages/~3/fetch",
        "workflowName": "order",
        "instanceId": "a",
        "runNumber": 1,
        "result": json.loads(TEXT),
        "errorName": "OSError",
        "errorMessage": "gone",
        "childWorkflowName": "bill",
        "childInstanceId": "b-1",
        "trimmedBefore": 7,
        "createdAt": "2026-07-01T08:00:00Z",
        "updatedAt": "2026-07-01T08:00:00Z",
        "rolledBackAt": None,
    }


@pytest.mark.parametrize(
    ("stored", "told"), [(None, None), ("go", "go"), ('["yes","no"]', ["yes", "no"])]
)
def test_a_wait_for_several_types_tells_a_list(stored: str | None, told: Any) -> None:  # noqa: ANN401
    step = msgspec.structs.replace(STEP, wait_event_type=stored)
    row = shapes.instance_whole(instance(current_step=step))
    assert shown(row)["meta"]["currentStep"]["waitEventType"] == told


def test_events_and_lines_have_all_their_columns() -> None:
    event = Event(
        run_number=0,
        id="e",
        type="go",
        payload=None,
        sequence=1,
        created_at=AT,
        delivered_at=AT,
        consumed_by_step_key="wait",
    )
    assert shown(shapes.event_shown(event, "order", "a")) == {
        "id": "e",
        "workflowName": "order",
        "instanceId": "a",
        "runNumber": 0,
        "type": "go",
        "payload": None,
        "createdAt": "2026-07-01T08:00:00Z",
        "deliveredAt": "2026-07-01T08:00:00Z",
        "consumedByStepKey": "wait",
    }
    line = LogLine(
        run_number=0,
        id="l",
        step_key="s",
        attempt=1,
        level="warn",
        category="system",
        message="m",
        data="[1]",
        is_replay=True,
        created_at=AT,
    )
    assert shown(shapes.log_shown(line, "order", "a")) == {
        "id": "l",
        "workflowName": "order",
        "instanceId": "a",
        "runNumber": 0,
        "stepKey": "s",
        "attempt": 1,
        "level": "warn",
        "category": "system",
        "message": "m",
        "data": [1],
        "isReplay": True,
        "createdAt": "2026-07-01T08:00:00Z",
    }


def test_a_page_has_a_cursor_if_there_is_more() -> None:
    page = Page(rows=(listed(),), cursor="next")
    assert shown(shapes.page_shown(page)) == {
        "instances": [{"id": "a", "details": {"status": "active"}}],
        "hasNextPage": True,
        "cursor": "next",
    }
    assert shown(shapes.page_shown(Page(rows=(), cursor=None))) == {
        "instances": [],
        "hasNextPage": False,
    }


# -- refusals


@pytest.mark.parametrize("code", REFUSALS)
def test_every_refusal_is_a_problem(code: str) -> None:
    problem = refusal(reply(code=code, message="why"))
    assert (problem.code, problem.detail) == (code, "why")
    assert CODES[code][0] in (400, 404, 409)
    assert problem.headers == {"headwater-position": "workflow-history/1@7"}


def test_a_code_of_a_newer_owner_is_a_conflict() -> None:
    problem = refusal(reply(code="NEW_CODE", message="why"))
    assert (problem.code, problem.detail) == ("COMMAND_REFUSED", "NEW_CODE: why")
