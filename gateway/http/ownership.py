"""Who executes runs: workers do, and whoever asks the gateway to is told so, and counted.

A host of an app that runs its own workflows is called back by its queue, at
`/.well-known/workflow/v1/flow` and `/step`. While workers execute the runs, such a callback shows
that a queue or a webhook is set up wrongly: the same run might be executed twice.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NoReturn

import msgspec
from litestar import Router, get, post
from litestar.exceptions import NotFoundException

from headwater.gateway.http.checked_parameters import checked_parameters
from headwater.gateway.http.keys import operators_only
from headwater.gateway.http.openapi import ADMIN_KEY, problem_responses, responses_of
from headwater.gateway.http.problems import Problem
from headwater.gateway.ownership_settings import EXPECTED_WORLD, OwnershipSettings
from headwater.projections.postgres.reader import PooledReader
from headwater.projections.unexpected_hits import Hits, hits_of, record_hits
from headwater.schemas.errors import StoreUnavailable

_LOG: Final = logging.getLogger("headwater.gateway")

#: Statements of one request: its own hit, and those that came meanwhile. Without a limit a flood of
#: callbacks would keep the first of them waiting.
_STATEMENTS_MAX: Final = 2

CALLBACKS: Final = "/.well-known/workflow/v1"


class Status(StrEnum):
    """Whether anybody else is asked to execute runs."""

    PASS = "pass"  # noqa: S105 (no password)
    WARN = "warn"
    FAIL = "fail"


class Ownership(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who executes runs, and what speaks against it."""

    remote_mode_enabled: bool
    strict_mode: bool
    target_world: str
    expected_target_world: str
    status: Status
    lifetime_unexpected_hits: int
    #: A rule of names would make it 15M.
    unexpected_hits_last_15m: int = msgspec.field(name="unexpectedHitsLast15m")
    last_unexpected_hit_at: datetime | None


def ownership(settings: OwnershipSettings, hits: Hits) -> Ownership:
    """What is said of the hits there were."""
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
    """Hits, on their way to Postgres: one statement at a time, however many come at once."""

    def __init__(self, reader: PooledReader, project: str, clock: Callable[[], int]) -> None:
        self._reader = reader
        self._project = project
        self._clock = clock
        self._unwritten = 0
        self._writing = False

    def now(self) -> datetime:
        """Now."""
        return datetime.fromtimestamp(self._clock() / 1000, UTC)

    async def record(self) -> None:
        """Records a hit. While Postgres is away it is held, and written with a later one."""
        self._unwritten += 1
        await self._write()

    async def _write(self) -> None:
        if self._writing:
            return  # The request that writes takes these with it, or a later one does.
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

    async def found(self) -> Hits:
        """What was recorded.

        Errors: StoreUnavailable.
        """
        await self._write()
        return await hits_of(self._reader, self._project, self.now())


def ownership_routers(
    settings: OwnershipSettings, hits: UnexpectedHits, admin_key: str
) -> list[Router]:
    """The routes: what operators ask, and where callbacks go astray."""

    @get(
        "/ownership",
        operation_id="getOwnership",
        summary="Who executes runs, and whether anybody else was asked to",
        responses=problem_responses("store_unavailable"),
    )
    async def diagnose() -> Ownership:
        return ownership(settings, await hits.found())

    @post(
        ["/flow", "/step"],
        summary="Where the queue of an app host calls back, which nobody should do",
        responses=responses_of("remote_execution", "not_found"),
        tags=["watch"],
    )
    async def astray() -> NoReturn:
        if not settings.remote_mode:
            raise NotFoundException
        await hits.record()
        raise Problem(
            "remote_execution",
            "expected no callbacks here, for workers execute the runs; look at where the queue or "
            f"the webhook of the app host leads, and that its World is {EXPECTED_WORLD}",
        )

    diagnostics = Router(
        "/v1/diagnostics",
        route_handlers=[diagnose],
        guards=[operators_only(admin_key), checked_parameters],
        security=[{ADMIN_KEY: []}],
        tags=["watch"],
    )
    return [diagnostics, Router(CALLBACKS, route_handlers=[astray])]
