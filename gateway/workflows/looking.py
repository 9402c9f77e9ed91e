"""Looking into instances of graphs: their runs, folded from the history for whoever asks."""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final, Protocol, TypeVar

import msgspec
from litestar import Response

from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.positions import HEADER, Positions, stated
from headwater.gateway.workflows.reading import JSON, Reading, own
from headwater.processors.graph.past import Past
from headwater.processors.graph.tracing import Tracing
from headwater.processors.runs.decisions import Rejection
from headwater.projections.workflows.queries import Beginning, Placed, Workflows
from headwater.schemas.failures import INSTANCE_NOT_FOUND, REFUSALS
from headwater.schemas.history import HistoryAppended, instance_key
from headwater.schemas.introspection import AsOf

SVG: Final = "image/svg+xml"
MERMAID: Final = "text/vnd.mermaid"
#: Runs that are folded at a time: each has a reader of Kafka, and a run in memory.
LOOKS_MAX: Final = 8

F = TypeVar("F", Past, Tracing)


class RunLog(Protocol):
    """Where the history of runs is read."""

    def read(self, partition: int, start: int, key: str) -> AsyncGenerator[list[HistoryAppended]]:
        """Yields the records of an instance that count, from one on."""


class Looking:
    """Folds the runs that are asked about."""

    def __init__(self, reading: Reading, workflows: Workflows, log: RunLog) -> None:
        self._reading = reading
        self._workflows = workflows
        self._log = log
        self._count = 0

    async def past(
        self, workflow: str, instance_id: str, wanted: Positions, at: int | None
    ) -> tuple[Past, Positions]:
        """The current run as of an event.

        Errors: Problem; BrokerUnavailable.
        """
        found, begins = await self._find(workflow, instance_id, wanted)
        past = Past(workflow, instance_id, begins.run_number, at)
        await self._fold(past, past, begins)
        return past, own(found, self._reading.applied())

    async def trace(
        self, workflow: str, instance_id: str, wanted: Positions, first: int, last: int | None
    ) -> tuple[Tracing, Positions]:
        """The decisions of the current run from one event to another.

        Errors: Problem; BrokerUnavailable.
        """
        found, begins = await self._find(workflow, instance_id, wanted)
        past = Past(workflow, instance_id, begins.run_number, last)
        tracing = Tracing(past, first)
        await self._fold(tracing, past, begins)
        return tracing, own(found, self._reading.applied())

    async def _find(
        self, workflow: str, instance_id: str, wanted: Positions
    ) -> tuple[Placed, Beginning]:
        applied = await self._reading.fresh(wanted)
        found = await self._reading.find(workflow, instance_id, applied)
        begins = await self._workflows.beginning(workflow, instance_id)
        if begins is None:
            message = f"expected an instance {instance_id!r:.100}, found it deleted"
            raise Problem(INSTANCE_NOT_FOUND, message)
        return found, begins

    async def _fold(self, folded: F, past: Past, begins: Beginning) -> None:
        key = instance_key(past.workflow, past.instance_id)
        with self._room():
            async with aclosing(self._log.read(begins.partition, begins.offset, key)) as batches:
                async for records in batches:
                    for record in records:
                        folded.apply(record)
                    if folded.is_done():
                        break
        refused = past.refused()
        if refused is not None:
            raise problem_of(refused)

    @contextmanager
    def _room(self) -> Iterator[None]:
        if self._count >= LOOKS_MAX:
            message = f"expected at most {LOOKS_MAX} runs to be looked into at a time"
            raise Problem("overloaded", message)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


def problem_of(refused: Rejection) -> Problem:
    """The problem of a question that has no answer."""
    field = REFUSALS[refused.code].field
    if field is None:
        return Problem(refused.code, refused.message)
    return Problem(refused.code, refused.message, field=field)


def shown(found: AsOf | Rejection, positions: Positions) -> Response[bytes]:
    """An answer about a run.

    Errors: Problem.
    """
    if isinstance(found, Rejection):
        raise problem_of(found)
    # Values of authors may have text that msgspec's JSON refuses, and the library's does not.
    body = json.dumps(msgspec.to_builtins(found), separators=(",", ":")).encode()
    position = stated(positions)
    return Response(body, media_type=JSON, headers={HEADER: position} if position else {})


def drawn(picture: str | Rejection, media_type: str, positions: Positions) -> Response[bytes]:
    """A picture of a run.

    Errors: Problem.
    """
    if isinstance(picture, Rejection):
        raise problem_of(picture)
    position = stated(positions)
    headers = {HEADER: position} if position else {}
    return Response(picture.encode(), media_type=media_type, headers=headers)
