"""Tokens of graphs in words."""

from datetime import timedelta
from typing import Any

import pytest

from headwater.gateway.cli.instance_formatting import token_rows
from headwater.gateway.client.instance_texts import position_text, tokens_at
from headwater.schemas.answers import InstanceStatus, Token, TokensAt
from headwater.schemas.statuses import RunStatus
from tests.unit.gateway.test_instance_words import ERROR, NOW, ago, answered

SOON = NOW + timedelta(seconds=8)


def token(status: str, **more: object) -> Token:
    provided: dict[str, Any] = {
        "node_ref": "vote",
        "branch_index": 1,
        "branch_total": 3,
        "iteration_counts": {},
    }
    times = {"created_at": ago(seconds=5), "completed_at": None}
    return answered(Token, id="7", path_id="", status=status, **{**provided, **times, **more})


@pytest.mark.parametrize(
    ("shown", "state", "what"),
    [
        (token("executing"), "● executing", None),
        (
            token("executing", worker="node 7", lease_until=SOON),
            "● executing",
            "a job that node 7 holds until 2026-11-21 14:00:08 UTC (in 8 s)",
        ),
        (
            token("pending", next_retry_at=SOON, error=ERROR),
            "● pending",
            "waiting to be tried again in 8 s: CardError: declined",
        ),
        (
            token("waiting_for_siblings", wake_at=SOON),
            "… waiting",
            "waiting for its siblings, until 2026-11-21 14:00:08 UTC (in 8 s)",
        ),
        (
            token("waiting_for_event", event_type="approval", wake_at=SOON),
            "… waiting",
            "waiting for an event of type approval, until 2026-11-21 14:00:08 UTC (in 8 s)",
        ),
        (
            token(
                "waiting_for_subworkflow",
                child_workflow_name="bill",
                child_instance_id="b-1",
            ),
            "… waiting",
            "waiting for bill/b-1",
        ),
        (token("completed", result={"n": 1}), "✓ completed", '{"n": 1}'),
        (token("cancelled", reason="the run has failed"), "⊘ cancelled", "the run has failed"),
        (token("timed_out", error=ERROR), "✗ timed out", "CardError: declined"),
        (token("of a later release"), "? of a later release", None),
    ],
)
def test_what_a_token_is_about(shown: Token, state: str, what: str | None):
    [row] = token_rows([shown], NOW, 60, frames=False)
    assert (row["state"], row["what"]) == (state, what)
    assert (row["token"], row["node"], row["branch"]) == ("7", "vote", "2 of 3")
    assert (row["began"], row["took"]) == ("+0 ms", "5 s")


def test_where_a_graph_stands():
    result = [
        TokensAt(node_ref="vote", status="executing", tokens=3, next_retry_at=None, wake_at=None),
        TokensAt(node_ref="vote", status="pending", tokens=1, next_retry_at=SOON, wake_at=None),
        TokensAt(
            node_ref="tally",
            status="waiting_for_siblings",
            tokens=2,
            next_retry_at=None,
            wake_at=SOON,
        ),
    ]
    words = tokens_at(result, NOW)
    assert words == (
        "vote: 3 executing; vote: pending, tried again in 8 s; "
        "tally: 2 waiting for siblings, until 2026-11-21 14:00:08 UTC (in 8 s)"
    )
    assert tokens_at([], NOW) is None
    active = InstanceStatus(status=RunStatus.ACTIVE)
    assert position_text(active, None, NOW, words) == words
    paused = InstanceStatus(status=RunStatus.PAUSED)
    assert (
        position_text(paused, None, NOW, words) == f"paused until it is resumed; it is at {words}"
    )
