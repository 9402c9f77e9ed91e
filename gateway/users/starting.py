"""Starting the house's own workflows for a user, and hearing what became of one."""

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from headwater.gateway.http.problems import Problem
from headwater.gateway.users.ports import ListsInstances
from headwater.processors.runs.labels import labels_of
from headwater.schemas.answers import InstanceStatus
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import INSTANCE_EXISTS, is_refused
from headwater.schemas.history import StartRun
from headwater.streams.workflows.client import Addressed, Commands

_LOOK_EVERY_S: Final = 0.2

R = TypeVar("R", bound=msgspec.Struct)


async def begin(
    commands: Commands,
    workflow: str,
    instance_id: str,
    params: object,
    labels: Mapping[str, str],
) -> bool:
    """Start an instance; when it returns, that is in the log.

    Returns:
        Whether the instance was started; False if there is one of that id already.

    Raises:
        OutcomeUnknown: Nobody knows whether it was started, here and below.
        BrokerUnavailable: Kafka did not take the command.
        Overloaded: Too many commands wait.
        Problem: No worker has the workflow.
    """
    command = StartRun(msgspec.json.encode(params).decode(), labels=labels_of(labels))
    (reply,) = await commands.send_many([Addressed(workflow, instance_id, command)])
    if reply.code == INSTANCE_EXISTS:
        return False
    if is_refused(reply.code):
        raise Problem(
            "worker_unavailable",
            f"expected a worker with the workflow {workflow}, found none: {reply.message}",
        )
    return True


async def status_of(
    instances: ListsInstances, workflow: str, instance_id: str, within_s: float
) -> InstanceStatus | None:
    """How an instance has ended; None if it has not within some seconds, or nobody can say."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                found = await _status(instances, workflow, instance_id)
                if found is not None and found.ended:
                    return found
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        return None


async def _status(
    instances: ListsInstances, workflow: str, instance_id: str
) -> InstanceStatus | None:
    try:
        found = await instances.instance(workflow, instance_id)
    except StoreUnavailable:
        return None
    return None if found is None else found.instance.details


def output_of(status: InstanceStatus | None, kind: type[R]) -> R | None:
    """What an instance has given; None if it has given nothing of the kind."""
    if status is None or status.output is None:
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(status.output), type=kind)
    except msgspec.DecodeError:
        return None
