"""Instances of the house's own workflows, as operators' routes begin them and look at them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from headwater.gateway.http.problems import Problem
from headwater.gateway.http.sending import send_all
from headwater.projections.workflows.queries import RunKey, Workflows
from headwater.schemas.answers import Instance, Step
from headwater.schemas.history import StartRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.workflows.client import Addressed, Commands, OutcomeUnknown

P = TypeVar("P", bound=msgspec.Struct)

#: A new instance can be read after some tens of milliseconds.
_LOOK_EVERY_S: Final = 0.05
_LOOKS: Final = 60
#: Entries that are looked through for the last page that ended.
_LATEST: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnInstances:
    """Begins instances, and looks at them.

    Shape:  new_id gives ids that nobody else has; clock, Unix milliseconds.
    """

    commands: Commands
    workflows: Workflows
    new_id: Callable[[], str]
    clock: Callable[[], int]

    def now(self) -> str:
        """The time, as selections have it."""
        return datetime.fromtimestamp(self.clock() / 1000, UTC).isoformat()

    async def begin(self, workflow: str, params: msgspec.Struct) -> str:
        """Starts an instance, and waits, not for long, until it can be looked at; gives its id.

        Errors: Problem; Overloaded, NotYetReadable.
        """
        instance_id = self.new_id()
        start = StartRun(msgspec.json.encode(params).decode())
        with suppress(OutcomeUnknown):  # It is in the log: a worker of the house's begins it.
            await send_all(self.commands, [Addressed(workflow, instance_id, start)])
        for _ in range(_LOOKS):
            if await self.workflows.instance(workflow, instance_id) is not None:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        return instance_id

    async def find(self, workflow: str, instance_id: str, kind: type[P]) -> tuple[Instance, P]:
        """An instance and its params.

        Errors: Problem, if there is none that was begun by `begin`.
        """
        found = await self.workflows.instance(workflow, instance_id)
        what, shown = workflow.removeprefix("headwater-"), instance_id[:64]
        if found is None:
            raise Problem("not_found", f"There is no {what} {shown} (yet).")
        try:
            return found.instance, msgspec.json.decode(found.instance.meta.params, type=kind)
        except msgspec.DecodeError:
            detail = f"{shown} is an instance of {workflow} that was not begun as a {what}."
            raise Problem("not_found", detail) from None

    async def latest_entries(self, workflow: str, instance: Instance) -> Sequence[Step]:
        """Some entries of its run, the latest first."""
        run = RunKey(workflow, instance.id, instance.meta.run_number)
        return (await self.workflows.steps(run, order="desc", limit=_LATEST)).rows


def result_of_last(name: str, entries: Sequence[Step], kind: type[P]) -> P | None:
    """What the last of these entries with a name has returned, if one has."""
    results = (each.result for each in entries if each.name == name and each.result is not None)
    last = next(results, None)
    return None if last is None else msgspec.json.decode(last, type=kind)


def state_of(instance: Instance, under_way: str) -> str:
    """How an instance stands, for operators: done, failed, or what it is doing."""
    if instance.details.status is RunStatus.COMPLETE:
        return "done"
    return "failed" if instance.details.ended else under_way
