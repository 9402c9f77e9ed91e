"""Instances of the house's own workflows, as operators' routes begin them and look at them."""

import asyncio
from typing import Final, TypeVar

import msgspec

from headwater.gateway.http.problems import Problem
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.answers import Instance
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import StartRun
from headwater.streams.workflows.client import Addressed, Commands, OutcomeUnknown

P = TypeVar("P", bound=msgspec.Struct)

#: A new instance can be read after some tens of milliseconds.
_LOOK_EVERY_S: Final = 0.05
_LOOKS: Final = 60


async def started(
    commands: Commands,
    workflows: Workflows,
    workflow: str,
    instance_id: str,
    params: msgspec.Struct,
) -> None:
    """Starts an instance, and waits, not for long, until it can be looked at.

    Errors: Problem.
    """
    if not commands.ready:
        raise Problem("broker_unavailable", "expected Kafka, found no connection; nothing sent")
    start = StartRun(msgspec.json.encode(params).decode())
    try:
        await commands.send_many([Addressed(workflow, instance_id, start)])
    except OutcomeUnknown:
        pass  # It is in the log: a worker that serves the house's workflows begins it.
    except BrokerUnavailable as error:
        raise Problem("broker_unavailable", error.message) from error
    for _ in range(_LOOKS):
        if await workflows.instance(workflow, instance_id) is not None:
            return
        await asyncio.sleep(_LOOK_EVERY_S)


async def looked_at(
    workflows: Workflows, workflow: str, instance_id: str, kind: type[P]
) -> tuple[Instance, P]:
    """An instance and its params.

    Errors: Problem, if there is none that was begun by `started`.
    """
    found = await workflows.instance(workflow, instance_id)
    what, shown = workflow.removeprefix("headwater-"), instance_id[:64]
    if found is None:
        raise Problem("not_found", f"There is no {what} {shown} (yet).")
    try:
        return found.instance, msgspec.json.decode(found.instance.meta.params, type=kind)
    except msgspec.DecodeError:
        detail = f"{shown} is an instance of {workflow} that was not begun as a {what}."
        raise Problem("not_found", detail) from None
