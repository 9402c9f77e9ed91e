"""Operator routes: runs and deliveries that may need a person, in groups."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from headwater.gateway.api.background_query import BackgroundQuery
from headwater.gateway.api.openapi import problem_responses
from headwater.gateway.api.request_parameters import moment_of
from headwater.gateway.builtin.watch import STUCK_AFTER_MS
from headwater.processors.api_keys import Scope
from headwater.projections.deliveries.queries import DeadReason, Reader
from headwater.projections.workflows.instances import (
    FAILED_RUNS_MAX,
    FailedRuns,
    StuckInstance,
    failed_runs,
    of_stuck,
    stuck_instances,
)

#: Seconds for which stuck instances are current: finding them reads all unfinished entries.
_STUCK_S: Final = 60.0
#: Seconds that a request waits for them; then those of before are in the answer.
_WITHIN_S: Final = 1.0

Since = Annotated[
    str | None, QueryParameter(description="From when on failures count as new, in RFC 3339.")
]
_PROBLEMS: Final = problem_responses("invalid_parameter", "store_unavailable")


class FailedInstances(msgspec.Struct, frozen=True):
    """Runs that may need a person, by workflow, state and error."""

    groups: list[FailedRuns]


class DeadReasons(msgspec.Struct, frozen=True):
    """Dead letters that were never replayed, and parked deliveries, by reason."""

    groups: list[DeadReason]


class Failures:
    """Reads failures; instances that are stuck are looked for in the background.

    Args:
        reader: Reads Postgres; stuck instances are read over a connection of their own.
        clock: Returns Unix milliseconds.
    """

    def __init__(self, reader: Reader, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._searching = reader.with_own_pool()
        self._stuck: BackgroundQuery[Sequence[StuckInstance]] = BackgroundQuery(
            self._search, (), what="stuck instances", current_s=_STUCK_S
        )
        self.routes: list[HTTPRouteHandler] = [_reasons_route(reader), self._runs_route(reader)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the connection while the context is open."""
        async with self._searching:
            try:
                yield
            finally:
                await self._stuck.stop()

    async def _search(self) -> Sequence[StuckInstance]:
        before_ms = self._clock() - STUCK_AFTER_MS
        return await stuck_instances(self._searching, before_ms, FAILED_RUNS_MAX)

    def _runs_route(self, reader: Reader) -> HTTPRouteHandler:
        @get(
            "/instances/failures",
            scope=Scope.INSTANCES_READ,
            summary="Workflow instances that may need a person, by workflow, state and error",
            description="`errored` ones; `retrying` ones, of which a step has failed at least "
            "twice; and `stuck` ones, which should have continued 15 minutes ago, as of a minute "
            f"ago. The newest {FAILED_RUNS_MAX} of each workflow and state are counted; `new` are "
            "those since `since`.",
            responses=_PROBLEMS,
        )
        async def failures(since: Since = None) -> FailedInstances:
            moment = moment_of("since", since)
            groups = await failed_runs(reader, moment)
            return FailedInstances(groups + of_stuck(await self._stuck.latest(_WITHIN_S), moment))

        return failures


def _reasons_route(reader: Reader) -> HTTPRouteHandler:
    @get(
        "/dlq/reasons",
        scope=Scope.DELIVERIES_READ,
        summary="Number of dead letters and parked deliveries by reason",
        description="Dead letters that were never replayed. Of each state, the newest 1000 are "
        "counted; `new` are those since `since`.",
        responses=_PROBLEMS,
    )
    async def reasons(since: Since = None) -> DeadReasons:
        return DeadReasons(await reader.dead_reasons(moment_of("since", since)))

    return reasons
