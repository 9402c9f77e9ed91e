"""The console in front of an API of memory, for browsers: its data change when buttons are pressed.

Answers are made of the structs of the API, so that they have its fields.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State

from headwater.gateway.api.admin import DeadLetterPosition, ReplayAnswer
from headwater.gateway.api.authentication import Caller
from headwater.gateway.api.console.api_client import ConsoleKeys
from headwater.gateway.api.console.routes import Console
from headwater.gateway.api.console.sessions import SignIn
from headwater.gateway.api.endpoint_deliveries import DeliveryListed, DeliveryPage
from headwater.gateway.api.endpoints import EndpointList, EndpointListed
from headwater.gateway.api.request_scope import STATE_NAME
from headwater.gateway.api.server import server_of
from headwater.projections.deliveries.lineage import Deliveries, Delivery
from headwater.projections.deliveries.queries import (
    DeadLetterPage,
    DeadLetterWhole,
    DeadReason,
    OutcomeCount,
    Position,
)
from headwater.projections.workflows.instances import FailedRuns, InstanceCount
from headwater.schemas.answers import (
    CurrentStep,
    Failure,
    HistoryPage,
    Instance,
    InstanceFound,
    InstanceMeta,
    InstancePage,
    InstanceStatus,
    LogLine,
    Managed,
    Step,
    WorkflowList,
    WorkflowListed,
)
from headwater.schemas.statuses import EntryKind, EntryStatus, RunStatus
from headwater.streams.pipeline.reprocessing import ReplayResult

KEY: Final = "the-key"
NOW: Final = datetime(2026, 7, 1, 12, tzinfo=UTC)
#: Entries of the long run.
LONG: Final = 50_000
_WINDOW: Final = 100
_RUN: Final[dict[str, Any]] = {"workflow_name": "order", "run_number": 0}


def before(**spans: float) -> datetime:
    return NOW - timedelta(**spans)


def delivery(number: int, status: str = "processed", **fields: Any) -> Delivery:  # noqa: ANN401
    usual: dict[str, Any] = {
        "received_at": before(seconds=7 * (100 - number)),
        "request_id": f"01K0REQUEST{number:04}",
        "event_id": f"{number:04x}f00dcafe{number:04x}beef",
        "source": "terra",
        "type": ("daily", "sleep", "activity", "body")[number % 4],
        "subject": "subject-1",
        "user_id": ("user_amara", "user_bo")[number % 2],
        "status": status,
        "reason": "",
        "rows": 1 + number % 3,
        "rejected": 0,
    }
    return Delivery(**(usual | fields))


def letter(offset: int, reason: str = "no_user") -> DeadLetterWhole:
    body = b'{"type": "daily", "user": {"user_id": "7b1f"}, "data": []}'
    return DeadLetterWhole(
        partition=3, offset=offset, event_id=f"dead{offset:04}beef", request_id=None,
        original_topic="webhooks", original_partition=3, original_offset=offset, reason=reason,
        message="expected a connection of the Terra user 7b1f within 24 h", stage="intake",
        rule=None, dead_at=before(minutes=5 + offset), replayed_at=None, expired_at=None,
        source="terra", type="daily", subject="7b1f", user_id=None, key=b"7b1f", value=body,
        headers=(("__connect.errors.topic", "webhooks"),),
    )  # fmt: skip


def entry(number: int) -> Step:
    began = before(hours=14) + timedelta(seconds=number)
    waits = number == LONG - 1
    return Step(
        id=f"step {number}", instance_id="o-long", step_key=f"step {number}",
        name=f"charge {number}", type=EntryKind.WAIT if waits else EntryKind.DO,
        status=EntryStatus.WAITING if waits else EntryStatus.COMPLETED, attempts=1,
        max_attempts=3, timeout_ms=None, next_retry_at=None, wake_at=None,
        wait_event_type="approval" if waits else None, last_attempt_at=began,
        result={"charged": number}, error_name=None, error_message=None, child_workflow_name=None,
        child_instance_id=None, trimmed_before=None, created_at=began, updated_at=began,
        completed_at=None if waits else began + timedelta(milliseconds=700 + number % 300),
        rolled_back_at=None, rollback_failed_at=None, **_RUN,
    )  # fmt: skip


WAIT: Final = CurrentStep(
    step_key="approval", name="approval", type=EntryKind.WAIT, status=EntryStatus.WAITING,
    attempts=0, max_attempts=None, timeout_ms=None, next_retry_at=None,
    wake_at=NOW + timedelta(hours=23), wait_event_type="approval", last_attempt_at=None,
)  # fmt: skip
RETRIED: Final = CurrentStep(
    step_key="charge", name="charge", type=EntryKind.DO, status=EntryStatus.WAITING, attempts=4,
    max_attempts=61, timeout_ms=None, next_retry_at=NOW + timedelta(seconds=40), wake_at=None,
    wait_event_type=None, last_attempt_at=before(seconds=20),
    error=Failure(name="ConnectError", message="connection refused"),
)  # fmt: skip
DECLINED: Final = Failure(
    name="CardError", message="declined", traceback='File "orders.py", line 12, in charge'
)


ENDPOINT: Final = EndpointListed(
    id="ep_3f9a2c7d41e05b6a8c1d", url="https://example.com/hooks", description="on call",
    types=["instance_errored", "dead_letter"], workflows=["order"], tables=[], reasons=[],
    state="active", why=None, state_set_at=None, state_set_by=None, created_at=before(hours=30),
    created_by="admin:00000000", rotated_at=None, previous_until=None,
)  # fmt: skip
FAILED_POST: Final = DeliveryListed(
    id="01K0POST", message_id="msg_1", type="dead_letter", state="failed",
    error="503 after 8 attempts", created_at=before(hours=2), updated_at=before(hours=1),
    next_attempt_at=None,
)  # fmt: skip


@dataclass
class MemoryApi:
    """What the API answers, and what it was sent."""

    deliveries: list[Delivery] = field(
        default_factory=lambda: [
            delivery(number, {90: "dead", 93: "skipped"}.get(number, "processed"))
            for number in range(99, 80, -1)
        ]
    )
    letters: list[DeadLetterWhole] = field(default_factory=lambda: [letter(1), letter(2)])
    errored: bool = True
    requests: list[str] = field(default_factory=list)

    def answer(self, path: str, query: dict[str, str]) -> object:
        """The answer to a GET; None if there is no such thing."""
        simple: dict[str, object] = {
            "/health/ready": {"parts": {"kafka": "ok", "postgres": "ok", "keys": "ok"}},
            "/admin/outcomes": {"outcomes": self._outcomes()},
            "/admin/instances/failures": {"groups": self._failed_runs()},
            "/admin/dlq/reasons": {"groups": self._reasons()},
            "/admin/instances": {"instances": self._counts()},
            "/admin/projections": {"positions": self._positions(), "errors": []},
            "/admin/deliveries": Deliveries(
                rows=tuple(row for row in self.deliveries
                           if query.get("type") in (None, row.type)),
                cursor=None,
            ),
            "/admin/dlq": DeadLetterPage(rows=tuple(self.letters), cursor=None),
            "/v1/endpoints": EndpointList(endpoints=[ENDPOINT]),
            f"/v1/endpoints/{ENDPOINT.id}": ENDPOINT,
            f"/v1/endpoints/{ENDPOINT.id}/deliveries": DeliveryPage(
                deliveries=[FAILED_POST], cursor=None
            ),
            "/api/workflows/workflows": WorkflowList(workflows=[WorkflowListed(name="order")]),
            "/api/workflows/instances": self._instances(),
            "/api/workflows/workflows/order/instances": self._instances(),
        }  # fmt: skip
        if path in simple:
            return simple[path]
        if path.startswith("/api/workflows/workflows/order/instances/"):
            name, _, rest = path.removeprefix(
                "/api/workflows/workflows/order/instances/"
            ).partition("/")
            return self._history(name, query) if rest == "history" else self._instance(name)
        if path.startswith("/admin/dlq/"):
            offset = int(path.rpartition("/")[2])
            return next((row for row in self.letters if row.offset == offset), None)
        if path.startswith("/admin/outcomes/"):
            done = not any(row.event_id == path.rpartition("/")[2] for row in self.letters)
            at = NOW if done else before(minutes=6)
            return {"status": "processed" if done else "dead", "reason": "" if done else "no_user",
                    "rows": int(done), "at": at}  # fmt: skip
        return None

    def change(self, path: str, body: dict[str, Any]) -> object:
        """The answer to a POST; None if it is refused."""
        if path == "/admin/dlq/replay":
            offsets = {named["offset"] for named in body.get("positions", ())} or {
                row.offset for row in self.letters
            }
            results = [ReplayResult(3, offset, "webhooks", True, "") for offset in sorted(offsets)]
            if not body.get("dry_run"):
                self.letters = [row for row in self.letters if row.offset not in offsets]
            return ReplayAnswer(
                dry_run=bool(body.get("dry_run")), replayed=len(results), failed=0,
                next=None if results else DeadLetterPosition(0, 0), results=results,
            )  # fmt: skip
        if path.endswith("/retry") and self.errored:
            self.errored = False
            return Managed(ok=True, status=InstanceStatus(status=RunStatus.ACTIVE), run_number=1)
        if path.endswith("/bulk"):
            rows = [{"id": "o-1", "status": "errored"}] if self.errored else []
            self.errored = self.errored and bool(body.get("dryRun"))
            return {"instances": rows, "hasNextPage": False}
        return {"status": {"status": "active"}} if path.endswith("/events") else None

    def _outcomes(self) -> list[OutcomeCount]:
        counts = {"processed": 1240, "skipped": 12, "dead": len(self.letters)}
        return [
            OutcomeCount(status=status, reason="", deliveries=number)
            for status, number in counts.items()
            if number
        ]

    def _failed_runs(self) -> list[FailedRuns]:
        errored = {
            "workflow": "order", "state": "errored", "error": "CardError", "message": "declined",
            "runs": 23, "new": 3, "first_at": before(hours=9), "last_at": before(minutes=2),
            "instance_id": "o-1",
        }  # fmt: skip
        retrying = {
            **errored, "state": "retrying", "error": "ConnectError", "runs": 4, "new": 0,
            "message": "connection refused", "instance_id": "o-2",
        }  # fmt: skip
        return [FailedRuns(**row) for row in ([errored] if self.errored else []) + [retrying]]

    def _reasons(self) -> list[DeadReason]:
        if not self.letters:
            return []
        return [
            DeadReason(
                state="dead", reason="no_user", deliveries=len(self.letters), new=1,
                first_at=before(hours=3), last_at=before(minutes=6),
            )
        ]  # fmt: skip

    def _counts(self) -> list[InstanceCount]:
        counts = {"active": 2, "waiting": 31, "errored": 23 * self.errored, "complete": 804}
        return [
            InstanceCount(workflow="order", status=status, instances=number, built_in=False)
            for status, number in counts.items()
            if number
        ]

    def _positions(self) -> list[Position]:
        return [
            Position(
                projection=name, topic=topic, partition=partition, next_offset=1200 + partition,
                applied_at=before(seconds=seconds),
            )
            for name, topic, seconds in (
                ("headwater", "daily-summary", 3), ("workflows", "workflow-history", 1)
            )
            for partition in range(2)
        ]  # fmt: skip

    def _instances(self) -> InstancePage:
        shown = [("o-long", RunStatus.WAITING, WAIT), ("o-2", RunStatus.WAITING, RETRIED)]
        if self.errored:
            shown.insert(0, ("o-1", RunStatus.ERRORED, None))
        return InstancePage(
            instances=[
                InstanceFound(
                    id=name, workflow_name="order", created_at=before(hours=14),
                    updated_at=before(minutes=2), current_step=step, details=InstanceStatus(
                        status=status, error=DECLINED if status is RunStatus.ERRORED else None
                    ),
                )
                for name, status, step in shown
            ],
            has_next_page=False,
        )  # fmt: skip

    def _instance(self, name: str) -> Instance:
        is_errored = name == "o-1" and self.errored
        waits = name == "o-long"
        status = RunStatus.ERRORED if is_errored else RunStatus.WAITING
        details = InstanceStatus(status=status, error=DECLINED if is_errored else None)
        meta = InstanceMeta(
            workflow_name="order", run_number=0, params={"sku": "tea", "amount": 3},
            created_at=before(hours=14), updated_at=before(minutes=2),
            started_at=before(hours=14), completed_at=None,
            current_step=WAIT if waits else None if is_errored else RETRIED,
        )  # fmt: skip
        return Instance(id=name, details=details, meta=meta, labels={"team": "blue"})

    def _history(self, name: str, query: dict[str, str]) -> HistoryPage:
        number = LONG if name == "o-long" else 3
        first = int(query.get("stepsCursor", 0))
        steps = [entry(at) for at in range(first, min(first + _WINDOW, number))]
        more = first + _WINDOW < number
        line = LogLine(
            id="l", instance_id=name, step_key=None, attempt=None, level="info", category="order",
            message="charging", data=None, is_replay=False, created_at=before(hours=14), **_RUN,
        )  # fmt: skip
        return HistoryPage(
            run_number=0, steps=steps, tokens=[], events=[], steps_has_next_page=more,
            tokens_has_next_page=False, events_has_next_page=False, logs=[line],
            steps_cursor=str(first + _WINDOW) if more else None, logs_has_next_page=False,
        )  # fmt: skip


METRICS: Final = """\
headwater_lag_records{group="headwater-intake",topic="webhooks",partition="0"} 0.0
headwater_lag_records{group="headwater-projector",topic="daily-summary",partition="0"} 12.0
headwater_lag_seconds{group="headwater-projector",topic="daily-summary",partition="0"} 1.5
headwater_webhook_received_total{source="terra",outcome="accepted"} 1254.0
headwater_webhook_verify_failures_total{source="terra",reason="stale"} 2.0
headwater_webhook_append_seconds_bucket{le="0.0025"} 1100.0
headwater_webhook_append_seconds_bucket{le="0.005"} 1250.0
headwater_webhook_append_seconds_bucket{le="+Inf"} 1254.0
"""


def application(api: MemoryApi) -> Litestar:
    """The console of a single operator, in front of the API."""
    operator = Caller("admin:00000000", frozenset({"system:read"}))

    async def find(key: str) -> Caller | None:
        return operator if key == KEY else None

    def answered(answer: object) -> Response[bytes]:
        if answer is None:
            problem = {"title": "Not found", "status": 404, "detail": "no such thing", "code": "x"}
            kind = "application/problem+json"
            return Response(msgspec.json.encode(problem), status_code=404, media_type=kind)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    prefixes = ["/admin/{rest:path}", "/api/{rest:path}", "/health/{rest:path}", "/v1/{rest:path}"]

    @get(prefixes, sync_to_thread=False)
    def read(request: Request[Any, Any, Any]) -> Response[bytes]:
        api.requests.append(request.url.path)
        return answered(api.answer(request.url.path, dict(request.query_params)))

    @post(prefixes, status_code=200)
    async def write(request: Request[Any, Any, Any]) -> Response[bytes]:
        return answered(api.change(request.url.path, await request.json()))

    @get("/metrics", sync_to_thread=False)
    def metrics() -> Response[bytes]:
        return Response(METRICS.encode(), media_type="text/plain")

    console = Console(
        ConsoleKeys(KEY, "another"),
        SignIn(find, lambda *_: operator, "default", [KEY]),
        clock=lambda: int(NOW.timestamp() * 1000),
        record_refusal=lambda _scope, _code: None,
        bodies=lambda app: app,
    )
    return Litestar(
        [console.router(), read, write, metrics],
        state=State({STATE_NAME: lambda: "01K0REQUESTPAGE"}),
        openapi_config=None,
    )


@contextlib.contextmanager
def served(app: Litestar) -> Iterator[str]:
    """Serve an application on a free port of this machine, in a thread; return its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = server_of(app, listening)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve()))
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(server.stop)
        thread.join(60)
        loop.close()
