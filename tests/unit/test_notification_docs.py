"""docs/notifications.md: its bodies are those that are sent, and its example verifies them."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from headwater.gateway.builtin.endpoint_sender import signed_headers
from headwater.processors.notifications import (
    Notification,
    NotificationType,
    of_dead_letter,
    of_finding,
    of_history,
    of_lag,
    of_row,
    of_stuck,
)
from headwater.processors.triggers.rules import read_rules
from headwater.schemas.auditor import AuditorFinding
from headwater.schemas.history import Failure, HistoryAppended, LogEvent, RunCompleted, RunErrored
from headwater.schemas.row_states import RowState
from headwater.schemas.tables import TERRA_LAB_UPLOADS, Row

PAGE = (Path(__file__).parents[2] / "docs/notifications.md").read_text()
AT_MS = 1_782_900_000_000
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


def block(language: str, name: str) -> str:
    match = re.search(rf"```{language} {name}\n(.*?)```", PAGE, re.DOTALL)
    assert match is not None, f"{language} {name}"
    return match[1]


def ended(event: LogEvent) -> Notification:
    record = HistoryAppended(
        workflow="order", instance_id="order-17", run_number=0, sequence=1, epoch=0, cause=-1,
        at_ms=AT_MS, events=(event,),
    )  # fmt: skip
    return next(of_history(record, 0, 1))


def row(state: RowState | None, user: str | None, upload: str | None, offset: int) -> Notification:
    return of_row(
        TERRA_LAB_UPLOADS, Row(("t-1",), (user, upload), (None, None), state), 2, offset, AT_MS
    )


LETTER = of_dead_letter(
    {
        "topic": "events", "partition": "3", "offset": "4711", "stage": "intake",
        "reason": "rule_failed", "event_id": "5b1c7a", "request_id": "01J1",
        "detail": "rule night: expected id to give text, found: no such key",
    },
    3, 17, AT_MS,
)  # fmt: skip
FINDING = of_finding(
    AuditorFinding(
        law="delivery_lost", subject="webhooks/3@17", detail="expected an outcome, found none",
        first_seen_ms=AT_MS, last_seen_ms=AT_MS,
    ),
    0, 5,
)  # fmt: skip
assert FINDING is not None
EXAMPLES: list[tuple[Notification, dict[str, Any]]] = [
    (
        ended(RunErrored(Failure("PaymentDeclined", "card 4 was declined"))),
        {"labels": {"customer": "c-1"}, "params": {"sku": "x"}, "output": None},
    ),
    (
        ended(RunCompleted("")),
        {"labels": {"customer": "c-1"}, "params": {"sku": "x"}, "output": {"shipped": True}},
    ),
    (LETTER, {}),
    (row(None, "user_amara", "u-1", 99), {}),
    (row(RowState(), None, None, 100), {}),
    (of_stuck("order", "order-17", 0, AT_MS - 20 * 60_000, AT_MS), {}),
    (FINDING, {}),
    (of_lag("headwater", "webhooks", records=4711, seconds=312, now_ms=AT_MS), {}),
]


@pytest.mark.parametrize(("notification", "more"), EXAMPLES)
def test_the_bodies_of_the_page_are_those_that_are_sent(
    notification: Notification, more: dict[str, Any]
):
    assert json.loads(block("json", notification.type)) == json.loads(notification.body(more))


def test_every_type_is_in_the_table():
    for type_ in NotificationType:
        assert f"| `{type_}` |" in PAGE


def test_the_example_verifies_what_is_sent():
    example: dict[str, Any] = {}
    exec(block("python", "verify"), example)  # noqa: S102, the page's own
    verify, body, now_s = example["verify"], b'{"type": "test"}', int(time.time())
    headers = signed_headers((SECRET,), "msg_1", now_s, body)
    verify(body, headers, SECRET)
    verify(body, signed_headers(("whsec_b2xk", SECRET), "msg_1", now_s, body), SECRET)
    for wrong in (
        (body + b" ", headers),
        (body, {**headers, "webhook-id": "msg_2"}),
        (body, signed_headers((SECRET,), "msg_1", now_s - 3_600, body)),
        (body, signed_headers(("whsec_b2xk",), "msg_1", now_s, body)),
    ):
        with pytest.raises(ValueError, match=r"too old|another secret"):
            verify(*wrong, SECRET)


def test_the_rule_of_the_page_is_valid():
    (rule,) = read_rules(block("toml", "rules.toml"), {"headwater"})
    assert rule.concerns("headwater", "instance_errored")
