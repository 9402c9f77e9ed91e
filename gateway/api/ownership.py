"""Detect callbacks that ask the gateway to execute runs, which workers execute.

An app host that runs its own workflows is called back by its queue at
`/.well-known/workflow/v1/flow` and `/step`. While workers execute the runs, such a callback means
that a queue or a webhook is misconfigured, and that a run might be executed twice.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NoReturn

import msgspec
from litestar import Router, get, post
from litestar.exceptions import NotFoundException

from headwater.gateway.api.key_guards import OPERATORS, KeyGuard
from headwater.gateway.api.openapi import ADMIN_KEY, problem_responses, responses_of
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.request_parameters import with_checked_parameters
from headwater.gateway.settings.workflows import EXPECTED_WORLD, OwnershipSettings
from headwater.processors.api_keys import Scope
from headwater.projections.gateway_state import Hits, hits_of, record_hits
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.errors import StoreUnavailable

_LOG: Final = logging.getLogger("headwater.gateway")

#: Statements of one request: for its own hit, and for those that came meanwhile. Without a limit, a
#: flood of callbacks would delay the first one indefinitely.
_STATEMENTS_MAX: Final = 2

CALLBACKS: Final = "/.well-known/workflow/v1"


class Status(StrEnum):
    """Whether another executor of runs was detected."""

    PASS = "pass"  # noqa: S105 (no password)
    WARN = "warn"
    FAIL = "fail"


class Ownership(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who executes runs, and how many unexpected callbacks there were."""

    remote_mode_enabled: bool
    strict_mode: bool
    target_world: str
    expected_target_world: str
    status: Status
    lifetime_unexpected_hits: int
    #: Named explicitly: renaming to camel case would give 15M.
    unexpected_hits_last_15m: int = msgspec.field(name="unexpectedHitsLast15m")
    last_unexpected_hit_at: datetime | None


def ownership(settings: OwnershipSettings, hits: Hits) -> Ownership:
    """Assess the settings and the recorded hits."""
    wrong = settings.target_world != EXPECTED_WORLD or hits.last_15m > 0
    status = Status.FAIL if settings.strict_ownership else Status.WARN
    return Ownership(
        remote_mode_enabled=settings.remote_mode,
        strict_mode=settings.strict_ownership,
        target_world=settings.target_world,
        expected_target_world=EXPECTED_WORLD,
        status=status if settings.remote_mode and wrong else Status.PASS,
        lifetime_unexpected_hits=hits.lifetime,
        unexpected_hits_last_15m=hits.last_15m,
        last_unexpected_hit_at=hits.last_at,
    )


class UnexpectedHits:
    """Records hits in Postgres with one statement at a time."""

    def __init__(self, reader: PooledReader, project: str, clock: Callable[[], int]) -> None:
        self._reader = reader
        self._project = project
        self._clock = clock
        self._unwritten = 0
        self._writing = False

    def now(self) -> datetime:
        """Return the current time."""
        return datetime.fromtimestamp(self._clock() / 1000, UTC)

    async def record(self) -> None:
        """Record a hit. While Postgres is down, it is kept in memory and written later."""
        self._unwritten += 1
        await self._write()

    async def _write(self) -> None:
        if self._writing:
            return  # The request that is writing, or a later one, writes this hit, too.
        self._writing = True
        try:
            for _ in range(_STATEMENTS_MAX):
                if not self._unwritten:
                    return
                hits, self._unwritten = self._unwritten, 0
                try:
                    await record_hits(self._reader, self._project, hits, self.now())
                except BaseException:
                    self._unwritten += hits
                    raise
        except StoreUnavailable as error:
            _LOG.warning("%d unexpected callbacks are not recorded: %s", self._unwritten, error)
        finally:
            self._writing = False

    async def recorded(self) -> Hits:
        """Return the recorded hits.

        Raises:
            StoreUnavailable: Postgres did not answer.
        """
        await self._write()
        return await hits_of(self._reader, self._project, self.now())


def ownership_routers(
    settings: OwnershipSettings, hits: UnexpectedHits, keys: KeyGuard
) -> list[Router]:
    """Return the diagnostics route of operators, and the routes that count callbacks."""

    @get(
        "/ownership",
        scope=Scope.SYSTEM_READ,
        operation_id="getOwnership",
        summary="Check that only workers execute runs",
        responses=problem_responses("store_unavailable"),
    )
    async def diagnose() -> Ownership:
        return ownership(settings, await hits.recorded())

    @post(
        ["/flow", "/step"],
        summary="Callback of an app host's queue; unexpected while workers execute runs",
        responses=responses_of("remote_execution", "not_found"),
        tags=["watch"],
    )
    async def astray() -> NoReturn:
        if not settings.remote_mode:
            raise NotFoundException
        await hits.record()
        raise Problem(
            "remote_execution",
            "expected no callbacks, because workers execute the runs; check the target of the app "
            f"host's queue or webhook, and that its World is {EXPECTED_WORLD}",
        )

    diagnostics = Router(
        "/v1/diagnostics",
        route_handlers=[diagnose],
        guards=[with_checked_parameters(keys.requires(OPERATORS))],
        security=[{ADMIN_KEY: []}],
        tags=["watch"],
    )
    return [diagnostics, Router(CALLBACKS, route_handlers=[astray])]
