"""The client's jobs: what it asks, how long it waits, and what it repeats."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from headwater.gateway.client.answers import OutcomeUnknownError
from headwater.gateway.client.client import Client
from headwater.gateway.client.jobs import JobHandle
from headwater.schemas.failures import (
    ClientError,
    JobAlreadyEndedError,
    JobCancelledError,
    JobLeaseLostError,
)
from tests.unit.gateway.workflow_network import Network, answer, described, do, problem, queries

KEY = "order.order-1.0.4.1"
UNTIL = "2026-07-01T08:01:00Z"
JOB: dict[str, Any] = {
    "key": KEY,
    "type": "charge",
    "workflow": "order",
    "instanceId": "order-1",
    "runNumber": 0,
    "tokenId": "4",
    "nodeRef": "pay",
    "attempt": 1,
    "input": {"amount": 5},
    "leaseUntil": UNTIL,
    "idempotencyToken": "the-token",
}
LISTED: dict[str, Any] = {
    **{key: JOB[key] for key in JOB if key not in ("key", "input", "idempotencyToken")},
    "status": "taken",
    "worker": "node 7",
    "createdAt": "2026-07-01T08:00:00Z",
    "updatedAt": "2026-07-01T08:00:00Z",
}
OK = {"ok": True}
LOST = httpx2.ReadTimeout("")

Deed = Callable[[JobHandle], Awaitable[object]]
DEEDS: list[tuple[Deed, str, object]] = [
    (lambda job: job.complete({"r": 1}), "complete", {"output": {"r": 1}}),
    (lambda job: job.complete(), "complete", {"output": None}),
    (
        lambda job: job.fail("no"),
        "fail",
        {"error": {"name": "Error", "message": "no"}, "retryable": True},
    ),
    (
        lambda job: job.fail("ü", name="Declined", retry_after="1 minute"),
        "fail",
        {
            "error": {"name": "Declined", "message": "ü"},
            "retryable": True,
            "retryAfterMs": 60_000,
        },
    ),
    (
        lambda job: job.fail("no", retryable=False),
        "fail",
        {"error": {"name": "Error", "message": "no"}, "retryable": False},
    ),
    (lambda job: job.extend("10 seconds"), "extend", {"leaseMs": 10_000}),
]


def test_jobs_are_taken_beside_the_workflows_and_say_what_they_are():
    network = Network(answer({"jobs": [JOB]}))
    (job,) = do(network, lambda client: client.activate_jobs("charge", worker="me", max=3))
    (requested,) = network.asked
    assert (requested.method, requested.url.path) == ("POST", "/api/jobs/activate")
    assert network.body() == {
        "types": ["charge"], "worker": "me", "max": 3, "leaseMs": 60_000, "waitMs": 0,
    }  # fmt: skip
    assert (job.key, job.type, job.node_ref, job.token_id) == (KEY, "charge", "pay", "4")
    assert (job.workflow_name, job.instance_id, job.run_number) == ("order", "order-1", 0)
    assert (job.input, job.attempt) == ({"amount": 5}, 1)
    assert job.lease_until == datetime(2026, 7, 1, 8, 1, tzinfo=UTC)
    assert job.idempotency_token == "the-token"


def test_jobs_are_listed_page_by_page_and_none_is_taken():
    network = Network(answer({"jobs": [LISTED], "hasNextPage": True, "cursor": "c"}))
    page = do(network, lambda client: client.jobs("charge", page_size=1, cursor="b"))
    assert (network.asked[0].method, network.asked[0].url.path) == ("GET", "/api/jobs")
    assert queries(network.asked) == [{"type": "charge", "pageSize": "1", "cursor": "b"}]
    (job,) = page.jobs
    assert (job.status, job.worker, job.instance_id) == ("taken", "node 7", "order-1")
    assert (page.has_next_page, page.cursor) == (True, "c")


def test_whoever_waits_for_jobs_has_patience_for_the_wait_and_for_the_answer():
    network = Network(answer({"jobs": []}), answer({"jobs": []}))

    async def ask(client: Client) -> list[Any]:
        types = ("charge", "ship")
        await client.activate_jobs(types, worker="me", lease="1 hour", wait="20 seconds")
        return await client.activate_jobs(types, worker="me")

    assert do(network, ask, timeout="3 seconds") == []
    assert network.body(0)["waitMs"] == 20_000
    read = [one.extensions["timeout"]["read"] for one in network.asked]
    assert read == [23.0, 3.0]


@pytest.mark.parametrize(("deed", "what", "body"), DEEDS)
def test_what_is_said_of_a_job_is_said_again_until_it_is_answered(
    deed: Deed, what: str, body: object
):
    reported = OK if what != "extend" else {"leaseUntil": UNTIL}
    later = problem(503, "outcome_unknown")
    network = Network(LOST, later, answer(reported))
    do(network, lambda client: deed(client.job(KEY)))
    assert [one.url.path for one in network.asked] == [f"/api/jobs/{KEY}/{what}"] * 3
    assert [network.body(number) for number in range(3)] == [body] * 3
    assert len(network.slept) == 2


def test_an_extension_says_until_when():
    network = Network(answer({"leaseUntil": UNTIL}))
    until = do(network, lambda client: client.job(KEY).extend())
    assert until == datetime(2026, 7, 1, 8, 1, tzinfo=UTC)


def test_an_activation_whose_answer_was_lost_is_repeated():
    network = Network(LOST, answer({"jobs": [JOB]}))
    assert len(do(network, lambda client: client.activate_jobs("charge", worker="me"))) == 1
    with pytest.raises(OutcomeUnknownError):
        do(Network(LOST), lambda client: client.activate_jobs("a", worker="me"), retries=0)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (409, "JOB_LEASE_LOST", JobLeaseLostError),
        (409, "JOB_ALREADY_ENDED", JobAlreadyEndedError),
        (410, "JOB_CANCELLED", JobCancelledError),
    ],
)
def test_a_refusal_is_told_at_once_with_an_error_of_its_own(
    status: int, code: str, error: type[ClientError]
):
    network = Network(problem(status, code, "somebody else has it"))
    with pytest.raises(error, match="somebody else has it"):
        do(network, lambda client: client.job(KEY).complete())
    assert len(network.asked) == 1


def test_reads_of_an_instance_wait_for_the_end_of_its_job():
    network = Network(
        answer({"ok": True, "status": {"status": "active"}}, "workflow-history/3@5"),
        answer({"jobs": [JOB]}),
        answer(OK, "workflow-history/3@7"),
        answer(described("complete")),
    )

    async def work(client: Client) -> None:
        instance = client.workflow("order").get("order-1")
        await instance.pause()
        (job,) = await client.activate_jobs("charge", worker="me")
        await job.complete()
        await instance.status()

    do(network, work)
    assert queries(network.asked)[-1] == {"min_position": "workflow-history/3@7"}


def test_a_key_that_is_nothing_or_would_lead_elsewhere_asks_for_nothing_else():
    with pytest.raises(ValueError, match="expected the key of a job"):
        do(Network(), _handle_of(""))
    network = Network(answer(OK))
    do(network, lambda client: client.job("../workflows").complete())
    assert network.asked[0].url.raw_path == b"/api/jobs/..%2Fworkflows/complete"


def _handle_of(key: str) -> Callable[[Client], Awaitable[object]]:
    return lambda client: client.job(key).complete()
