"""What a sender makes of responses, and of instances in Postgres."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec
import pytest

from headwater.gateway.builtin import endpoint_sender
from headwater.gateway.builtin.endpoint_requests import EndpointRequests
from headwater.gateway.builtin.endpoint_sender import (
    WAITING_MAX,
    EndpointSender,
    Sent,
    signed_headers,
)
from headwater.processors.notifications import Notification, ToEndpoint
from headwater.processors.signatures import SCHEMES, Verified, verify
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.endpoints import EndpointCreated, EndpointSecretSet
from headwater.schemas.errors import BrokerUnavailable, Overloaded, StoreUnavailable
from headwater.schemas.records import OperationAudited
from tests.fakes.endpoints import MemoryEndpoints
from tests.fakes.receiver import response

NOW_MS = 1_782_900_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)
ID = "ep_0011"
SECRETS = ("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "whsec_b2xkb2xkb2xkb2xkb2xkb2xk")
NOTICE = Notification(id="msg_00ff", type="dead_letter", at_ms=NOW_MS, data={})
PARAMS = ToEndpoint(endpoint=ID, notification=NOTICE, retries_ms=(), user_id="")


class Postgres(PooledReader):
    """Answers queries in order."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self.prepared = list(answers)

    async def answers(self, query: bytes, **parameters: object) -> list[dict[str, Any]]:
        del query, parameters
        return self.prepared.pop(0)


class Scene:
    def __init__(self, status: int, postgres: Postgres) -> None:
        self.endpoints = MemoryEndpoints()
        self.entries: list[OperationAudited] = []
        self.requests: list[httpx2.Request] = []
        self.refusal: Exception | None = None

        def answer(request: httpx2.Request) -> httpx2.Response:
            self.requests.append(request)
            return response(status)

        async def audit(entry: OperationAudited) -> None:
            if self.refusal is not None:
                raise self.refusal
            self.entries.append(entry)
            await asyncio.sleep(0)

        async def reader() -> PooledReader:
            return postgres

        self.sender = EndpointSender(
            endpoints=self.endpoints,  # type: ignore[arg-type]
            requests=EndpointRequests([], httpx2.MockTransport(answer)),
            reader=reader,
            audit=audit,
            project="shop",
            clock=lambda: NOW_MS,
            new_id=lambda: "entry",
        )

    async def create(self) -> None:
        await self.endpoints.write(
            EndpointSecretSet(
                id=ID, secret=SECRETS[0], previous=SECRETS[1], previous_until_ms=NOW_MS + 1,
                by="admin", at_ms=0,
            )
        )  # fmt: skip
        await self.endpoints.write(
            EndpointCreated(
                id=ID, url="http://127.0.0.1:9/hooks", description="", types=("dead_letter",),
                workflows=(), tables=(), reasons=(), by="admin", at_ms=0,
            )
        )  # fmt: skip

    async def attempt(self, number: int = 1) -> Sent:
        await self.create()
        return await self.sender.attempt(PARAMS, number)

    @property
    def why(self) -> str | None:
        state = self.endpoints.fold.by_id[ID].state_set
        return state and state.why


@pytest.mark.parametrize("secret", SECRETS)
def test_during_a_rotation_both_secrets_sign(secret: str):
    scene = Scene(200, Postgres())
    run_attempt = scene.attempt()
    assert asyncio.run(run_attempt).outcome == "accepted"
    (request,) = scene.requests
    verified = verify(
        SCHEMES["standard-webhooks"], request.headers, request.content, [secret], NOW_MS / 1000
    )
    assert verified == Verified(NOW_MS, "msg_00ff")


def test_one_secret_is_one_signature():
    headers = signed_headers(SECRETS[:1], "msg_1", 5, b"{}")
    assert headers["webhook-signature"].startswith("v1,")
    assert " " not in headers["webhook-signature"]
    assert headers["webhook-timestamp"] == "5"


def test_an_endpoint_that_is_gone_is_disabled():
    scene = Scene(410, Postgres())
    assert asyncio.run(scene.attempt()).outcome == "failed"
    assert scene.why == "its receiver answered 410 (gone)"
    assert scene.entries[0].action == "endpoints.disable"


@pytest.mark.parametrize("refusal", [BrokerUnavailable("away"), Overloaded("full")])
def test_an_attempt_has_an_outcome_although_its_endpoint_could_not_be_disabled(
    refusal: Exception,
):
    """Otherwise the same notification would be posted again and again."""
    scene = Scene(410, Postgres())
    scene.refusal = refusal
    assert asyncio.run(scene.attempt()).outcome == "failed"
    assert scene.why is None
    scene.refusal = None
    assert asyncio.run(scene.attempt(2)).outcome == "failed"
    assert scene.why == "its receiver answered 410 (gone)"


def test_attempts_at_the_same_time_disable_an_endpoint_once():
    scene = Scene(410, Postgres())

    async def attempts() -> None:
        await scene.create()
        await asyncio.gather(*(scene.sender.attempt(PARAMS, 1) for _ in range(5)))

    asyncio.run(attempts())
    assert len(scene.requests) == 5
    assert len(scene.entries) == 1


def test_an_endpoint_with_too_long_a_queue_is_disabled():
    scene = Scene(500, Postgres([{"instances": WAITING_MAX + 1}]))
    assert asyncio.run(scene.attempt(2)).outcome == "failed"
    assert scene.why == f"more than {WAITING_MAX} notifications wait for it"


def test_a_queue_that_is_not_too_long_disables_nothing():
    scene = Scene(500, Postgres([{"instances": WAITING_MAX}]))
    assert asyncio.run(scene.attempt(2)).outcome == "failed"
    assert scene.why is None


def test_a_deleted_endpoint_takes_nothing():
    scene = Scene(200, Postgres())

    async def attempt() -> Sent:
        return await scene.sender.attempt(PARAMS, 1)

    assert asyncio.run(attempt()).outcome == "stopped"
    assert not scene.requests


ENDED = Notification(
    id="msg_1", type="instance_errored", at_ms=NOW_MS, workflow="order", position=(3, 17),
    data={"workflow": "order", "id": "o-1", "run": 1},
)  # fmt: skip


def instance(run_number: int, status: str, **values: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    return {
        "workflow_name": "order", "instance_id": "o-1", "run_number": run_number, "status": status,
        "params": '{"sku": "x"}', "output": None, "error_name": None, "error_message": None,
        "error_detail": None, "labels": {"customer": "c-1"}, "current_step": None,
        "current_tokens": None, "awaited_slot": None, "parent_workflow_name": None,
        "parent_instance_id": None, "parent_run_number": None, "parent_step_key": None,
        "deployment_id": None, "created_at": NOW, "updated_at": NOW, "started_at": NOW,
        "completed_at": NOW, "retention_until": None, "partition": 3, "run_offset": 1, "offset": 17,
        **values,
    }  # fmt: skip


def details(*answers: list[dict[str, Any]]) -> dict[str, Any] | None:
    scene = Scene(200, Postgres(*answers))
    return asyncio.run(scene.sender.details(ENDED))


def offsets(position: int) -> list[dict[str, Any]]:
    return [{"topic": "workflow-history", "partition": 3, "next_offset": position}]


def plain(value: Any) -> Any:  # noqa: ANN401 (JSON)
    return msgspec.json.decode(msgspec.json.encode(value))


def test_params_and_output_come_from_postgres():
    found = details(offsets(18), [instance(1, "complete", output='{"shipped": true}')])
    assert plain(found) == {
        "labels": {"customer": "c-1"}, "params": {"sku": "x"}, "output": {"shipped": True},
    }  # fmt: skip


def test_after_a_retry_the_params_are_still_there():
    found = details(offsets(30), [instance(2, "active")])
    assert plain(found) == {"labels": {"customer": "c-1"}, "params": {"sku": "x"}, "output": None}


def test_an_end_that_does_not_count_is_none():
    """An owner had lost its partition: for Postgres the run goes on."""
    assert details(offsets(18), [instance(1, "waiting")]) is None


def test_a_deleted_instance_has_no_details():
    assert details(offsets(18), []) is None
    assert details(offsets(30), [instance(0, "active")]) is None


def test_large_params_are_left_out():
    found = details(offsets(18), [instance(1, "errored", params=f'"{"x" * 200_000}"')])
    assert plain(found)["params"] is None


def test_postgres_may_be_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint_sender, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(endpoint_sender, "_SHARED_S", 0.0)
    found = details(offsets(17), offsets(18), [instance(1, "errored")])
    assert found is not None
    with pytest.raises(endpoint_sender.NotProjected):
        details(*[offsets(17)] * 8)


class Counting(PooledReader):
    """A Postgres that is behind, and counts its queries."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.queries, self.refusal = 0, refusal

    async def answers(self, query: bytes, **parameters: object) -> list[dict[str, Any]]:
        del query, parameters
        self.queries += 1
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        return offsets(17)


def waiting(postgres: PooledReader) -> list[BaseException | dict[str, Any] | None]:
    async def wait() -> list[BaseException | dict[str, Any] | None]:
        sender = Scene(200, postgres).sender  # type: ignore[arg-type]
        return await asyncio.gather(
            *(sender.details(ENDED) for _ in range(50)), return_exceptions=True
        )

    return asyncio.run(wait())


def test_notifications_that_wait_for_postgres_share_their_queries(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint_sender, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(endpoint_sender, "_SHARED_S", 60.0)
    postgres = Counting()
    results = waiting(postgres)
    assert all(isinstance(result, endpoint_sender.NotProjected) for result in results)
    assert postgres.queries == 1


def test_a_query_that_failed_is_shared_as_well():
    postgres = Counting(StoreUnavailable("away"))
    results = waiting(postgres)
    assert all(isinstance(result, StoreUnavailable) for result in results)
    assert postgres.queries == 1
