"""Routes of the auditor's report, and of receipts; its metrics."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.problems import Problem
from headwater.processors.api_keys import Scope
from headwater.processors.auditor.receipts import Receipt, ReceiptOutcome, signed
from headwater.projections.deliveries.lineage import delivery
from headwater.projections.deliveries.queries import Outcome
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.auditor import MEANINGS, AuditorFinding, AuditorReport
from headwater.schemas.errors import UndecodableRecord, UnknownSchema
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.auditor.report_log import Latest
from headwater.streams.pipeline.reprocessing import WEBHOOKS_POSITION
from headwater.streams.pipeline.webhook_log import Stored, WebhookLog

_SHOWN_CHARS: Final = 64


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A violated law; `ended` is null while it is open."""

    law: str
    meaning: str
    subject: str
    detail: str
    first_seen: datetime
    last_seen: datetime
    ended: datetime | None


class AuditorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the auditor has verified; `auditor` is empty if it was stopped."""

    auditor: str
    at: datetime
    since: datetime
    caught_up: bool
    deliveries: int
    lost: int
    waiting: int
    parked: int
    unproven: int
    history_records: int
    step_results: int
    ignored_records: int
    rows: int
    findings: tuple[Finding, ...]
    unlisted: int


#: Returns the latest report.
LatestReport: TypeAlias = Callable[[], Awaitable[Latest]]


def auditor_routes(
    latest: LatestReport,
    reader: PooledReader,
    log: WebhookLog,
    signing: "Signing",
) -> list[HTTPRouteHandler]:
    """Return the routes under /admin.

    Args:
        latest: Returns the latest report of the auditor.
        reader: Reads Postgres.
        log: The topic `webhooks`.
        signing: Signs receipts.
    """

    @get(
        "/auditor",
        scope=Scope.SYSTEM_READ,
        summary="What the auditor has verified, and its findings",
        description="Findings are open, the latest first, or ended within 30 days. 404 if no "
        "auditor has reported yet.",
        responses=problem_responses("not_found", "broker_unavailable"),
    )
    async def status() -> AuditorStatus:
        report = (await latest()).report
        if report is None:
            raise Problem("not_found", "No auditor has reported yet; run `headwater auditor`.")
        return status_of(report)

    @get(
        "/deliveries/{named:str}/receipt",
        scope=Scope.DELIVERIES_READ,
        summary="Get a signed receipt of a delivery",
        description="Accepts what `/admin/deliveries/{named}` accepts. States when the delivery "
        "was received, the SHA-256 of its bytes, its position in the log and its outcome, which "
        "is null until it is known. `signature` is empty without HEADWATER_AUDIT_KEYS.",
        responses=problem_responses("not_found", "broker_unavailable", "store_unavailable"),
    )
    async def receipt(named: FromPath[str]) -> Receipt:
        at, outcome = WEBHOOKS_POSITION.fullmatch(named), None
        position = (int(at[1]), int(at[2])) if at is not None else None
        stored = None if position is None else await _stored(log, position)
        details = await delivery(reader, named if stored is None else stored.delivery.event_id)
        if details is not None:
            outcome = details.outcome
            position = position or (outcome.partition, outcome.offset)
            stored = stored or await _stored(log, position)
        if position is None or stored is None:
            shown = named[:_SHOWN_CHARS]
            raise Problem("not_found", f"The log has no delivery {shown} (any more).")
        return signing.receipt(stored, position, outcome)

    return [status, receipt]


async def _stored(log: WebhookLog, position: tuple[int, int]) -> Stored | None:
    try:
        return await log.read(*position)
    except (UndecodableRecord, UnknownSchema):
        return None


class Signing:
    """Issues receipts.

    Args:
        project: The project.
        key: Key that signs; empty for no signature.
        clock: Returns Unix milliseconds.
    """

    def __init__(self, project: str, key: str, clock: Callable[[], int]) -> None:
        self._project = project
        self._key = key
        self._clock = clock

    def receipt(
        self, stored: Stored, position: tuple[int, int], outcome: Outcome | None
    ) -> Receipt:
        """Return the receipt of a delivery at a position of `webhooks`."""
        received = stored.delivery
        stated = Receipt(
            project=self._project,
            delivery=received.event_id,
            request=received.request_id,
            source=received.source,
            type=received.type,
            received_at_ms=received.received_at_ms,
            sha256=sha256(received.body).hexdigest(),
            bytes=len(received.body),
            topic=WEBHOOKS,
            partition=position[0],
            offset=position[1],
            outcome=None if outcome is None else _outcome(outcome),
            issued_at_ms=self._clock(),
        )
        return signed(stated, self._key)


def _outcome(outcome: Outcome) -> ReceiptOutcome:
    return ReceiptOutcome(
        status=outcome.status,
        reason=outcome.reason,
        rows=outcome.rows,
        at_ms=round(outcome.at.timestamp() * 1000),
        position=outcome.position,
    )


def status_of(report: AuditorReport) -> AuditorStatus:
    """Return a report as it is answered."""
    fields = {
        name: getattr(report, name)
        for name in AuditorStatus.__struct_fields__
        if name not in ("at", "since", "findings")
    }
    return AuditorStatus(
        **fields,
        at=_moment(report.at_ms),
        since=_moment(report.since_ms),
        findings=tuple(map(_finding, report.findings)),
    )


def _finding(finding: AuditorFinding) -> Finding:
    return Finding(
        law=finding.law,
        meaning=MEANINGS.get(finding.law, ""),
        subject=finding.subject,
        detail=finding.detail,
        first_seen=_moment(finding.first_seen_ms),
        last_seen=_moment(finding.last_seen_ms),
        ended=_moment(finding.ended_ms) if finding.ended_ms else None,
    )


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
