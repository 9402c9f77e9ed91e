"""Start and query instances of the built-in workflows, for operator routes."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.sending import send_all
from headwater.projections.workflows.queries import RunKey, Workflows
from headwater.schemas.answers import Instance, Step
from headwater.schemas.history import StartRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.workflows.client import Addressed, Commands, OutcomeUnknown

P = TypeVar("P", bound=msgspec.Struct)

#: A new instance becomes readable after some tens of milliseconds.
_POLL_EVERY_S: Final = 0.05
_POLLS: Final = 60
#: Entries that are searched for the last completed page.
_LATEST: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinInstances:
    """Starts and queries instances of the built-in workflows.

    Attributes:
        commands: Sends commands to workflows.
        workflows: Reads instances from Postgres.
        new_id: Returns unique ids.
        clock: Returns Unix milliseconds.
    """

    commands: Commands
    workflows: Workflows
    new_id: Callable[[], str]
    clock: Callable[[], int]

    def now(self) -> str:
        """Return the current time in ISO 8601."""
        return datetime.fromtimestamp(self.clock() / 1000, UTC).isoformat()

    async def begin(self, workflow: str, params: msgspec.Struct) -> str:
        """Start an instance and wait up to three seconds until it is readable.

        Returns:
            The id of the instance.

        Raises:
            Problem: Kafka is not connected.
            Overloaded: Too many commands wait.
            NotYetReadable: Some members run a release that cannot read the command.
        """
        instance_id = self.new_id()
        start = StartRun(msgspec.json.encode(params).decode())
        with suppress(OutcomeUnknown):  # The command is in the log, so a worker will start it.
            await send_all(self.commands, [Addressed(workflow, instance_id, start)])
        for _ in range(_POLLS):
            if await self.workflows.instance(workflow, instance_id) is not None:
                break
            await asyncio.sleep(_POLL_EVERY_S)
        return instance_id

    async def find(self, workflow: str, instance_id: str, kind: type[P]) -> tuple[Instance, P]:
        """Return an instance and its params.

        Raises:
            Problem: There is no instance of this id that `begin` started.
        """
        row = await self.workflows.instance(workflow, instance_id)
        what, shown = workflow.removeprefix("headwater-"), instance_id[:64]
        if row is None:
            raise Problem("not_found", f"There is no {what} {shown} (yet).")
        try:
            return row.instance, msgspec.json.decode(row.instance.meta.params, type=kind)
        except msgspec.DecodeError:
            detail = f"{shown} is an instance of {workflow} that was not started as a {what}."
            raise Problem("not_found", detail) from None

    async def latest_entries(self, workflow: str, instance: Instance) -> Sequence[Step]:
        """Return the latest entries of an instance's run, newest first."""
        run = RunKey(workflow, instance.id, instance.meta.run_number)
        return (await self.workflows.steps(run, order="desc", limit=_LATEST)).rows


def result_of_last(name: str, entries: Sequence[Step], kind: type[P]) -> P | None:
    """Return the first result among entries with a name; None if there is none."""
    results = (entry.result for entry in entries if entry.name == name and entry.result is not None)
    last = next(results, None)
    return None if last is None else msgspec.json.decode(last, type=kind)


def state_of(instance: Instance, running: str) -> str:
    """Return the state of an instance for operators: done, failed, or `running`."""
    if instance.details.status is RunStatus.COMPLETE:
        return "done"
    return "failed" if instance.details.ended else running
