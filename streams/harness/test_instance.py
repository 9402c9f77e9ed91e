"""Instances under test: what is done to them, and how they are looked at."""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import override

from headwater.processors.graph.past import Past
from headwater.processors.runs.limits import VALUE_BYTES_TOP
from headwater.processors.runs.views import RunView
from headwater.schemas.answers import History, StatusOfRun
from headwater.schemas.failures import (
    RUN_NOT_FOUND,
    CommandRefusedError,
    InstanceFailedError,
    is_refused,
    refused,
)
from headwater.schemas.history import (
    Command,
    HistoryAppended,
    Limits,
    ReplySent,
    RetryRun,
    SendEvent,
)
from headwater.schemas.statuses import OPEN, RunStatus
from headwater.streams.authoring.inspection import InspectableInstance, InspectionQuery
from headwater.streams.authoring.lifecycle import Action, Controllable
from headwater.streams.authoring.request_arguments import checked_event_type
from headwater.streams.authoring.result_types import output_of
from headwater.streams.authoring.values import encode_object
from headwater.streams.authoring.workflow_values import R_co
from headwater.streams.harness.bodies import check_from_step, check_reason
from headwater.streams.harness.histories import error_of, history_of, value_of
from headwater.streams.harness.looking import answered

A = TypeVar("A")


class World(Protocol):
    """What an instance needs of the harness."""

    def views(self, workflow: str, instance_id: str) -> dict[int, RunView]:
        """The runs of an instance, folded from the log."""

    def records(self, workflow: str, instance_id: str) -> Sequence[HistoryAppended]:
        """The records of an instance."""

    async def send(self, workflow: str, instance_id: str, command: Command) -> ReplySent:
        """Sends a command and gives its outcome."""

    async def run_until_idle(self) -> None:
        """Runs until nothing can move without time or an event."""

    def new_id(self, prefix: str) -> str:
        """An id drawn from the seed."""

    @property
    def limits(self) -> Limits:
        """What names and values are held to."""


class TestInstance(Controllable[None], InspectableInstance, Generic[R_co]):
    """An instance under test.

    Shape:  TestInstance[R] is one of a workflow that returns R.
    """

    __test__ = False

    def __init__(
        self, world: World, workflow: str, instance_id: str, declared: object = None
    ) -> None:
        """Make a handle; `declared` is the workflow itself, if its creator has it."""
        self._world = world
        self._declared = declared
        self.workflow_name = workflow
        self.id = instance_id

    async def status(self) -> StatusOfRun:
        """How it stands: `.status`, `.output`, `.error`, `.run_number`."""
        views = self._world.views(self.workflow_name, self.id)
        run = views[max(views)].state
        assert run is not None  # noqa: S101, a view begins with RunStarted
        return StatusOfRun(
            status=run.status,
            output=value_of(run.output),
            error=error_of(run.failure),
            run_number=run.run_number,
        )

    async def result(self) -> R_co:
        """Runs until nothing can move without time or an event, and gives the output.

        Errors: InstanceFailedError if it ended otherwise; TimeoutError if it has not ended, which
                says what it waits at.
        """
        await self._world.run_until_idle()
        status = await self.status()
        where = f"{self.workflow_name}/{self.id}"
        if not status.ended:
            steps = (await self.history()).steps
            at = ", ".join(f"{each.type} {each.step_key}" for each in steps if each.status in OPEN)
            raise TimeoutError(
                f"expected {where} to end, found it {status.status} at {at or 'no entry'}; move "
                "the clock with `test.advance(...)`, or send what it waits for"
            )
        if status.status is RunStatus.COMPLETE:
            output: R_co = output_of(self._declared, status.output)
            return output
        why = status.error
        raise InstanceFailedError(
            where, status.status, why.name if why else "", why.message if why else ""
        )

    async def history(self, run_number: int | None = None) -> History:
        """What happened: `.steps`, `.events`, `.logs`, of the current run or of another."""
        views = self._world.views(self.workflow_name, self.id)
        number = max(views) if run_number is None else run_number
        if number not in views:
            raise _no_run(run_number, max(views))
        return history_of(views[number], self.workflow_name, self.id, number)

    async def send_event(self, type: str, payload: Any = None) -> None:  # noqa: A002, ANN401
        """Sends an event."""
        checked_event_type(type)
        text = encode_object(payload, "an event's payload", VALUE_BYTES_TOP)
        await self._send(SendEvent(self._world.new_id("evt"), type, text))

    @override
    async def perform(self, action: Action, reason: str = "") -> None:
        check_reason(reason)
        await self._send(action.with_reason(reason))

    @override
    async def inspect(self, query: InspectionQuery[A]) -> A:
        records = self._world.records(self.workflow_name, self.id)
        latest = max(each.run_number for each in records)
        asked = query.numbers.get("runNumber")
        number = latest if asked is None else asked
        if not 0 <= number <= latest:
            raise _no_run(number, latest)
        past = Past(self.workflow_name, self.id, number)
        found: A = answered(past, records, query)
        return found

    async def retry(self, from_step: str | None = None) -> None:
        """Begins a new run that keeps what was done before the step that failed, or before another.

        Shape:  from_step is a step's key, as in `history.steps[i].step_key`.
        Errors: InstanceNotErroredError, StepNotFoundError.
        """
        check_from_step(from_step)
        await self._send(RetryRun(from_step))

    async def _send(self, command: Command) -> None:
        reply = await self._world.send(self.workflow_name, self.id, command)
        if is_refused(reply.code):
            raise refused(reply.code, reply.message)


def _no_run(number: object, latest: int) -> CommandRefusedError:
    return refused(RUN_NOT_FOUND, f"expected a run number of 0 to {latest}, found {number!r:.80}")
