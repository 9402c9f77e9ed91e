"""Start built-in workflows for a user, and wait for their results."""

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.users.ports import InstanceQueries
from headwater.processors.runs.labels import labels_of
from headwater.schemas.answers import InstanceStatus
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import INSTANCE_EXISTS, is_refused
from headwater.schemas.history import StartRun
from headwater.streams.workflows.client import Addressed, Commands

_POLL_EVERY_S: Final = 0.2

R = TypeVar("R", bound=msgspec.Struct)


async def begin(
    commands: Commands,
    workflow: str,
    instance_id: str,
    params: object,
    labels: Mapping[str, str],
) -> bool:
    """Start an instance; return when the start is durable.

    Returns:
        Whether the instance was started; False if the id already exists.

    Raises:
        OutcomeUnknown: No reply arrived, so the instance may have been started.
        BrokerUnavailable: Kafka did not acknowledge the command; it may have been started, too.
        Overloaded: Too many commands wait; the instance may have been started, too.
        Problem: No worker has the workflow.
    """
    command = StartRun(msgspec.json.encode(params).decode(), labels=labels_of(labels))
    (reply,) = await commands.send_many([Addressed(workflow, instance_id, command)])
    if reply.code == INSTANCE_EXISTS:
        return False
    if is_refused(reply.code):
        raise Problem(
            "worker_unavailable",
            f"No worker has the workflow {workflow}: {reply.message}",
        )
    return True


async def status_of(
    instances: InstanceQueries, workflow: str, instance_id: str, within_s: float
) -> InstanceStatus | None:
    """Wait until an instance has ended; None if that is not known within `within_s` seconds."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                status = await _status(instances, workflow, instance_id)
                if status is not None and status.ended:
                    return status
                await asyncio.sleep(_POLL_EVERY_S)
    except TimeoutError:
        return None


async def _status(
    instances: InstanceQueries, workflow: str, instance_id: str
) -> InstanceStatus | None:
    try:
        row = await instances.instance(workflow, instance_id)
    except StoreUnavailable:
        return None
    return None if row is None else row.instance.details


def output_of(status: InstanceStatus | None, kind: type[R]) -> R | None:
    """Return the output of an instance; None if it has none of this type."""
    if status is None or status.output is None:
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(status.output), type=kind)
    except msgspec.DecodeError:
        return None
