"""Looking into instances of graphs: their runs, folded from the history for whoever asks."""

import json
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from litestar import Response

from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows.folding import Folds
from headwater.gateway.workflows.parameters import RunAsked
from headwater.gateway.workflows.positions import HEADER, Positions, stated
from headwater.gateway.workflows.reading import JSON, Reading, own, run_number_of
from headwater.processors.evaluations import Evaluator
from headwater.processors.graph.past import Past
from headwater.processors.graph.tracing import Tracing
from headwater.processors.runs.decisions import Rejection
from headwater.projections.workflows.queries import Beginning, LocatedInstance, Workflows
from headwater.schemas.failures import INSTANCE_NOT_FOUND, REFUSALS
from headwater.schemas.history import instance_key
from headwater.schemas.introspection import AsOf

SVG: Final = "image/svg+xml"
MERMAID: Final = "text/vnd.mermaid"

#: What is said of a run: an answer, a picture, or why there is none.
Said: TypeAlias = AsOf | str | Rejection


class Looking:
    """Folds the runs that are asked about."""

    def __init__(
        self, reading: Reading, workflows: Workflows, folds: Folds, evaluator: Evaluator
    ) -> None:
        self._evaluator = evaluator
        self._reading = reading
        self._workflows = workflows
        self._folds = folds

    async def tell(
        self,
        run: RunAsked,
        wanted: Positions,
        at: int | None,
        say: Callable[[Past], Said],
        media_type: str = JSON,
    ) -> Response[bytes]:
        """Says something of a run as of an event.

        Errors: Problem; BrokerUnavailable.
        """
        found, begins = await self._find(run, wanted)
        past = Past(run.workflow, run.instance_id, begins.run_number, at, self._evaluator)
        body, headers = await self._answer(past, found, begins, past, lambda: say(past))
        return Response(body, media_type=media_type, headers=headers)

    async def trace(
        self, run: RunAsked, wanted: Positions, first: int, last: int | None
    ) -> Response[bytes]:
        """Says how the decisions of a run came about, from one event to another.

        Errors: Problem; BrokerUnavailable.
        """
        found, begins = await self._find(run, wanted)
        past = Past(run.workflow, run.instance_id, begins.run_number, last, self._evaluator)
        tracing = Tracing(past, first)
        body, headers = await self._answer(past, found, begins, tracing, tracing.page)
        return Response(body, media_type=JSON, headers=headers)

    async def _find(self, run: RunAsked, wanted: Positions) -> tuple[LocatedInstance, Beginning]:
        applied = await self._reading.fresh(wanted)
        found = await self._reading.find(run.workflow, run.instance_id, applied)
        number = run_number_of(found, run.run_number, applied)
        begins = await self._workflows.beginning(run.workflow, run.instance_id, number)
        if begins is None:
            message = f"expected an instance {run.instance_id!r:.100}, found it deleted"
            raise Problem(INSTANCE_NOT_FOUND, message)
        return found, begins

    async def _answer(
        self,
        past: Past,
        found: LocatedInstance,
        begins: Beginning,
        folded: Past | Tracing,
        say: Callable[[], Said],
    ) -> tuple[bytes, dict[str, str]]:
        key = instance_key(past.workflow, past.instance_id)
        body = await self._folds.fold(
            key, begins.partition, begins.offset, folded, lambda: _said(past, say)
        )
        if isinstance(body, Rejection):
            raise problem_of(body)
        position = stated(own(found, self._reading.applied()))
        return body, {HEADER: position} if position else {}


def problem_of(refused: Rejection) -> Problem:
    """The problem of a question that has no answer."""
    field = REFUSALS[refused.code].field
    if field is None:
        return Problem(refused.code, refused.message)
    return Problem(refused.code, refused.message, field=field)


def _said(past: Past, say: Callable[[], Said]) -> bytes | Rejection:
    found = past.refused() or say()
    if isinstance(found, Rejection):
        return found
    if isinstance(found, str):
        return found.encode()
    # Values of authors may have text that msgspec's JSON refuses, and the library's does not.
    return json.dumps(msgspec.to_builtins(found), separators=(",", ":")).encode()
