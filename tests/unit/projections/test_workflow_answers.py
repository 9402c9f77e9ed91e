"""Rows as answers: names in camelCase, times in UTC, and the values of authors as they came."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from headwater.processors.rows.answers import event_of, log_line_of, status_of, step_of
from headwater.projections.workflows.answers import instance_of, listed_of, paged_instance_of
from headwater.schemas.answers import Answer, InstancePage
from tests.unit.gateway.workflow_fakes import AT, row

TEXT = '{"b": 1.0, "a" : [1, "\\u0000"]}'
OF_RUN = {"workflow_name": "order", "instance_id": "a", "run_number": 1}
OF_RUN_SHOWN = {"workflowName": "order", "instanceId": "a", "runNumber": 1}


def shown(answer: Answer) -> Any:  # noqa: ANN401 (JSON)
    return json.loads(msgspec.json.encode(answer))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, {"status": "active"}),
        ({"status": "complete", "output": "null"}, {"status": "complete", "output": None}),
        (
            {"status": "errored", "error_name": "ValueError", "error_message": "no"},
            {"status": "errored", "error": {"name": "ValueError", "message": "no"}},
        ),
        (
            {
                "status": "errored",
                "error_name": "ValueError",
                "error_message": "no",
                "error_detail": r'"line 1\nValueError: \ud800"',
            },
            {
                "status": "errored",
                "error": {
                    "name": "ValueError",
                    "message": "no",
                    "traceback": "line 1\nValueError: \\ud800",
                },
            },
        ),
        (
            {
                "status": "errored",
                "error_name": "JoinError",
                "error_message": "no",
                "error_detail": '{"a": "of a branch"}',
            },
            {"status": "errored", "error": {"name": "JoinError", "message": "no"}},
        ),
    ],
)
def test_a_status_has_an_output_or_an_error_only_if_there_is_one(
    changes: dict[str, Any], status: dict[str, Any]
) -> None:
    assert shown(listed_of(row(**changes))) == {"id": "a", "details": status}
    assert shown(status_of(row(**changes))) == {**status, "runNumber": 0}


def test_values_of_authors_are_not_written_anew() -> None:
    whole = instance_of(row(params=TEXT, status="complete", output=TEXT))
    assert msgspec.json.encode(whole.instance).count(TEXT.encode()) == 2


STEP = {
    "step_key": "pages/~3/fetch",
    "name": "fetch",
    "type": "do",
    "status": "errored",
    "attempts": 2,
    "max_attempts": None,
    "timeout_ms": 600_000,
    "next_retry_at": AT + timedelta(microseconds=1_500),
    "wake_at": None,
    "wait_event_type": None,
    "last_attempt_at": AT,
    "error_name": "OSError",
    "error_message": "gone",
}
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
    "lastAttemptAt": "2026-07-01T08:00:00Z",
    "error": {"name": "OSError", "message": "gone"},
}


def test_an_instance_is_answered_whole() -> None:
    result = instance_of(
        row(
            current_step=STEP,
            parent_workflow_name="p",
            parent_instance_id="p-1",
            parent_run_number=2,
            parent_step_key="bill",
        )
    )
    assert (result.partition, result.offset) == (1, 7)
    assert shown(result.instance) == {
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
    assert "currentStep" not in shown(instance_of(row()).instance)["meta"]


def test_a_step_has_all_its_columns() -> None:
    columns = {
        **STEP,
        **OF_RUN,
        "child_workflow_name": "bill",
        "child_instance_id": "b-1",
        "result": TEXT,
        "error_detail": None,
        "ordinal": 3,
        "sequence": 4,
        "trimmed_before": 7,
        "created_at": AT,
        "updated_at": "2026-07-01T08:00:00Z",
        "completed_at": AT,
        "rolled_back_at": None,
        "rollback_failed_at": None,
    }
    assert shown(step_of(columns)) == STANDING | OF_RUN_SHOWN | {
        "id": "pages/~3/fetch",
        "result": json.loads(TEXT),
        "errorName": "OSError",
        "errorMessage": "gone",
        "childWorkflowName": "bill",
        "childInstanceId": "b-1",
        "trimmedBefore": 7,
        "createdAt": "2026-07-01T08:00:00Z",
        "updatedAt": "2026-07-01T08:00:00Z",
        "completedAt": "2026-07-01T08:00:00Z",
        "rolledBackAt": None,
        "rollbackFailedAt": None,
    }


@pytest.mark.parametrize(
    ("stored", "answered"), [(None, None), ("go", "go"), ('["yes","no"]', ["yes", "no"])]
)
def test_a_wait_for_several_types_answers_a_list(stored: str | None, answered: object) -> None:
    result = instance_of(row(current_step=STEP | {"wait_event_type": stored}))
    assert shown(result.instance)["meta"]["currentStep"]["waitEventType"] == answered


def test_events_and_lines_have_all_their_columns() -> None:
    event = {
        **OF_RUN,
        "id": "e",
        "type": "go",
        "payload": None,
        "sequence": 1,
        "created_at": AT,
        "delivered_at": AT,
        "consumed_by_step_key": "wait",
    }
    assert shown(event_of(event)) == OF_RUN_SHOWN | {
        "id": "e",
        "type": "go",
        "payload": None,
        "createdAt": "2026-07-01T08:00:00Z",
        "deliveredAt": "2026-07-01T08:00:00Z",
        "consumedByStepKey": "wait",
    }
    line = {
        **OF_RUN,
        "id": "l",
        "step_key": "s",
        "attempt": 1,
        "level": "warn",
        "category": "system",
        "message": "m",
        "data": "[1]",
        "is_replay": True,
        "created_at": AT,
    }
    assert shown(log_line_of(line)) == OF_RUN_SHOWN | {
        "id": "l",
        "stepKey": "s",
        "attempt": 1,
        "level": "warn",
        "category": "system",
        "message": "m",
        "data": [1],
        "isReplay": True,
        "createdAt": "2026-07-01T08:00:00Z",
    }


@pytest.mark.parametrize("cursor", ["next", None])
def test_a_page_has_a_cursor_if_there_is_more(cursor: str | None) -> None:
    step = {
        "step_key": "ok?", "name": "ok?", "type": "wait_for_event", "status": "waiting",
        "attempts": 0, "max_attempts": None, "timeout_ms": None, "next_retry_at": None,
        "wake_at": None, "wait_event_type": "yes", "last_attempt_at": None,
        "error_name": None, "error_message": None, "error_detail": None,
    }  # fmt: skip
    result = paged_instance_of(row(current_step=step))
    assert result.current_step is not None
    assert result.current_step.wait_event_type == "yes"
    page = InstancePage(
        instances=[paged_instance_of(row())], has_next_page=cursor is not None, cursor=cursor
    )
    assert shown(page) == {
        "instances": [
            {
                "id": "a",
                "details": {"status": "active"},
                "workflowName": "order",
                "createdAt": "2026-07-01T08:00:00Z",
                "updatedAt": "2026-07-01T08:00:00Z",
            }
        ],
        "hasNextPage": cursor is not None,
        **({"cursor": cursor} if cursor else {}),
    }
