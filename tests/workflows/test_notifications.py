"""Notifications in the harness: attempts, pauses, endpoints that accept nothing, and reactions."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import httpx2

from headwater import Step, WorkflowEvent, WorkflowTest, workflow
from headwater.gateway.builtin.endpoint_requests import EndpointRequests
from headwater.gateway.builtin.endpoint_sender import BY, EndpointSender
from headwater.gateway.builtin.notification_workflows import (
    notification_workflow,
    reaction_workflow,
)
from headwater.processors.endpoints import EndpointState
from headwater.processors.notifications import (
    NOTIFY,
    REACT,
    Notification,
    instance_id,
    of_history,
    reacting,
    sending,
)
from headwater.processors.signatures import SCHEMES, Verified, verify
from headwater.processors.triggers.rules import read_rules
from headwater.schemas.endpoints import EndpointCreated, EndpointSecretSet, EndpointStateSet
from headwater.schemas.history import Failure, HistoryAppended, RunErrored
from headwater.schemas.records import OperationAudited
from tests.fakes.endpoints import MemoryEndpoints
from tests.fakes.receiver import response

NOW_MS = 1_782_900_000_000
ID = "ep_0011"
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
HOUR_MS = 3_600_000
RETRIES_MS = (5_000, HOUR_MS)
NOTICE = Notification(
    id="msg_00ff", type="dead_letter", at_ms=NOW_MS, reason="rule_failed", data={"reason": "x"}
)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Sender(EndpointSender):
    """With instances in memory in place of those in Postgres."""

    def __init__(self, endpoints: MemoryEndpoints, requests: EndpointRequests) -> None:
        self.entries: list[OperationAudited] = []
        self.instances: dict[str, Any] = {}
        self.accepted = False
        self.now_ms = NOW_MS

        async def audit(entry: OperationAudited) -> None:
            self.entries.append(entry)

        super().__init__(
            endpoints=endpoints,  # type: ignore[arg-type]
            requests=requests,
            reader=None,  # type: ignore[arg-type]
            audit=audit,
            project="shop",
            clock=lambda: self.now_ms,
            new_id=lambda: "entry",
        )

    async def details(self, notification: Notification) -> dict[str, Any] | None:
        if notification.position is None:
            return {}
        return self.instances.get(notification.data["id"])

    async def _waiting(self, endpoint_id: str) -> int:
        return 0

    async def _has_accepted(self, endpoint_id: str, since_ms: int) -> bool:
        return self.accepted


class Scene:
    """An endpoint, and a receiver that answers with the next status, the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.requests: list[httpx2.Request] = []
        self.endpoints = MemoryEndpoints()
        self.sender = Sender(
            self.endpoints, EndpointRequests([], httpx2.MockTransport(self._answer))
        )

    async def create(self) -> None:
        await self.endpoints.write(
            EndpointSecretSet(
                id=ID, secret=SECRET, previous="", previous_until_ms=0, by="admin", at_ms=0
            )
        )
        await self.endpoints.write(
            EndpointCreated(
                id=ID, url="http://127.0.0.1:9/hooks", description="", types=("dead_letter",),
                workflows=(), tables=(), reasons=(), by="admin", at_ms=0,
            )
        )  # fmt: skip

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return response(status)

    async def get_sender(self) -> EndpointSender:
        return self.sender

    def workflow(self) -> Any:  # noqa: ANN401 (JSON)
        return notification_workflow(self.get_sender)

    @property
    def is_active(self) -> bool:
        return self.endpoints.fold.by_id[ID].is_active


async def sent(
    test: WorkflowTest,
    notification: Notification = NOTICE,
    retries_ms: tuple[int, ...] = RETRIES_MS,
) -> Any:  # noqa: ANN401 (a handle)
    params = json.loads(sending(notification, ID, retries_ms).params)
    instance = await test.create(NOTIFY, id=instance_id(notification, ID), params=params)
    await test.run_until_idle()
    return instance


@in_loop
async def test_a_notification_is_signed_and_sent_once():
    scene = Scene(204)
    await scene.create()
    async with WorkflowTest([scene.workflow()]) as test:
        instance = await sent(test)
        status = await instance.status()
        assert status.output == {"outcome": "accepted", "attempts": 1, "status": 204}
    (request,) = scene.requests
    assert json.loads(request.content) == {
        "type": "dead_letter", "timestamp": "2026-07-01T10:00:00.000Z", "data": {"reason": "x"},
    }  # fmt: skip
    verified = verify(
        SCHEMES["standard-webhooks"], request.headers, request.content, [SECRET], NOW_MS / 1000
    )
    assert verified == Verified(NOW_MS, "msg_00ff")


@in_loop
async def test_all_attempts_have_one_id():
    scene = Scene(500, 302, 200)
    await scene.create()
    async with WorkflowTest([scene.workflow()]) as test:
        instance = await sent(test)
        await test.advance("6 seconds")
        assert len(scene.requests) == 2
        await test.crash()
        await test.advance("67 minutes")
        assert (await instance.status()).output["attempts"] == 3
    assert [request.headers["webhook-id"] for request in scene.requests] == ["msg_00ff"] * 3
    assert len({request.content for request in scene.requests}) == 1
    assert scene.is_active


@in_loop
async def test_what_is_not_accepted_is_repeated_and_fails_in_the_end():
    scene = Scene(503)
    scene.sender.accepted = True
    await scene.create()
    async with WorkflowTest([scene.workflow()]) as test:
        instance = await sent(test)
        for attempts, pause in ((1, "4 seconds"), (2, "2 seconds"), (3, "2 hours")):
            del pause
            assert len(scene.requests) == attempts
            await test.advance("2 hours" if attempts > 1 else "6 seconds")
        status = await instance.status()
        assert status.status == "errored"
        assert status.error.name == "NotDelivered"
        assert "none of 3 attempts was accepted; the last: status 503" in status.error.message
    assert scene.is_active, "another notification was accepted meanwhile"


@in_loop
async def test_an_endpoint_that_accepts_nothing_is_disabled():
    scene = Scene(503)
    await scene.create()
    async with WorkflowTest([scene.workflow()]) as test:
        await sent(test)
        await test.advance("1 day")
        assert not scene.is_active
        later = await sent(test, Notification(id="msg_01", type="dead_letter", at_ms=0, data={}))
        assert "disabled" in (await later.status()).error.message
    assert len(scene.requests) == 3
    (entry,) = scene.sender.entries
    assert (entry.action, entry.key_id, entry.project_id) == ("endpoints.disable", BY, "shop")
    assert entry.resource == f"/v1/endpoints/{ID}"
    state = scene.endpoints.fold.by_id[ID].state_set
    assert state is not None
    assert "was not accepted" in state.why


@in_loop
async def test_a_failed_test_disables_nothing():
    scene = Scene(503)
    await scene.create()
    async with WorkflowTest([scene.workflow()]) as test:
        instance = await sent(test, retries_ms=())
        assert (await instance.status()).status == "errored"
    assert len(scene.requests) == 1
    assert scene.is_active


@in_loop
async def test_nothing_is_sent_to_a_disabled_endpoint_but_tests():
    scene = Scene(200)
    await scene.create()
    await scene.endpoints.write(
        EndpointStateSet(id=ID, state=EndpointState.DISABLED, why="", by="admin", at_ms=1)
    )
    async with WorkflowTest([scene.workflow()]) as test:
        assert (await (await sent(test)).status()).status == "errored"
        assert not scene.requests
        notice = Notification(id="msg_02", type="test", at_ms=0, data={})
        assert (await (await sent(test, notice)).status()).status == "complete"


@in_loop
async def test_an_outage_of_kafka_is_no_attempt():
    scene = Scene(200)
    await scene.create()
    scene.endpoints.away = True
    async with WorkflowTest([scene.workflow()]) as test:
        instance = await sent(test, retries_ms=())
        await test.advance("1 minute")
        assert (await instance.status()).status in {"active", "waiting"}
        scene.endpoints.away = False
        await test.advance("1 minute")
        assert (await instance.status()).output["attempts"] == 1


@in_loop
async def test_a_receiver_can_ask_for_a_longer_pause():
    scene = Scene(200)
    await scene.create()
    scene.sender._requests = EndpointRequests(
        [], httpx2.MockTransport(lambda _: response(429, headers={"retry-after": "600"}))
    )
    async with WorkflowTest([scene.workflow()]) as test:
        instance = await sent(test)
        await test.advance("9 minutes")
        steps = await instance.history()
        assert [step.name for step in steps.steps] == ["attempt 1", "pause 1"]


@in_loop
async def test_an_end_of_a_deleted_instance_is_not_sent():
    scene = Scene(200)
    await scene.create()
    async with WorkflowTest([scene.workflow()]) as test:
        instance = await sent(test, errored("gone"))
        assert (await instance.status()).output["outcome"] == "skipped"
    assert not scene.requests


# -- reactions

RULES = """
[[rule]]
name = "on-failure"
source = "headwater"
type = "instance_errored"
workflow = "support"
mode = "start"
when = 'event.body.workflow == "order"'
params = '{"order": event.body.id, "error": event.body.error, "params": event.body.params}'

[[rule]]
name = "dead"
source = "headwater"
type = "dead_letter"
workflow = "support"
mode = "start"
id = 'event.body.nothing'
"""


def errored(name: str) -> Notification:
    record = HistoryAppended(
        workflow="order", instance_id=name, run_number=0, sequence=1, epoch=0, cause=-1,
        at_ms=NOW_MS, events=(RunErrored(Failure("Boom", "it broke")),),
    )  # fmt: skip
    return next(of_history(record, 0, 1))


@workflow("support")
async def support(event: WorkflowEvent, step: Step) -> object:
    return dict(event.payload)


async def reacted(test: WorkflowTest, notification: Notification) -> Any:  # noqa: ANN401 (JSON)
    params = json.loads(reacting(notification).params)
    instance = await test.create(REACT, id=notification.id, params=params)
    await test.run_until_idle()
    return await instance.status()


@in_loop
async def test_a_rule_starts_a_workflow_when_an_instance_has_failed():
    scene = Scene(200)
    scene.sender.instances["o-1"] = {"params": {"sku": "x"}, "labels": {}, "output": None}
    reaction = reaction_workflow(scene.get_sender, lambda: read_rules(RULES), None)
    async with WorkflowTest([reaction, support]) as test:
        notification = errored("o-1")
        status = await reacted(test, notification)
        assert status.output == {"sent": [f"support/{notification.id}"], "rejected": []}
        assert (await test.get("support", notification.id).status()).output == {
            "order": "o-1", "error": {"name": "Boom", "message": "it broke"},
            "params": {"sku": "x"},
        }  # fmt: skip


@in_loop
async def test_a_rule_that_cannot_be_applied_is_an_errored_instance():
    scene = Scene(200)
    reaction = reaction_workflow(scene.get_sender, lambda: read_rules(RULES), None)
    async with WorkflowTest([reaction, support]) as test:
        status = await reacted(test, NOTICE)
        assert status.status == "errored"
        assert status.error.name == "ReactionFailed"
        assert "rule dead: expected id" in status.error.message
