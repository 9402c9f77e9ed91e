"""Ports of the user routes, and built-in workflows that are started for a user."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.tokens.verifier import Verifier
from headwater.gateway.builtin.blobs.store import Blobs
from headwater.gateway.builtin.instances import InstanceNamed
from headwater.gateway.builtin.terra.client import Terra
from headwater.processors.runs.limits import labels_of
from headwater.projections.deliveries.imports import Import
from headwater.projections.deliveries.quality import ConnectionActivity
from headwater.projections.deliveries.users import Connection
from headwater.projections.workflows.queries import RunKey, Workflows
from headwater.schemas.errors import StoreUnavailable
from headwater.schemas.failures import INSTANCE_EXISTS, is_refused
from headwater.schemas.history import StartRun
from headwater.streams.pipeline.webhook_log import WebhookLog
from headwater.streams.workflows.client import Addressed, WorkflowClient


@dataclass(frozen=True, slots=True, kw_only=True)
class UserServices:
    """Services that only the user routes use. Without a verifier, no tokens are accepted."""

    tokens: Verifier | None
    terra: Terra
    blobs: Blobs

    async def close(self) -> None:
        """Close connections."""
        await self.terra.close()
        await self.blobs.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPorts:
    """Dependencies of the user routes.

    Attributes:
        services: Services that only these routes use.
        log: Topic `webhooks`.
        commands: Sends commands to workflows.
        instances: Queries of workflow instances.
        connections: Returns the connections of a user; raises StoreUnavailable.
        activity: Returns what came last of the active ones; raises StoreUnavailable.
        imports: Returns the imports of a user, by id and label; raises StoreUnavailable.
        clock: Returns Unix milliseconds.
        new_id: Returns unique ids.
    """

    services: UserServices
    log: WebhookLog
    commands: WorkflowClient
    instances: Workflows
    connections: Callable[[str], Awaitable[Sequence[Connection]]]
    activity: Callable[[str], Awaitable[Sequence[ConnectionActivity]]]
    imports: Callable[[str, str], Awaitable[list[Import]]]
    clock: Callable[[], int]
    new_id: Callable[[], str]

    @property
    def terra(self) -> Terra:
        """Terra's API."""
        return self.services.terra

    @property
    def blobs(self) -> Blobs:
        """Store of uploaded files."""
        return self.services.blobs


# -- built-in workflows

_POLL_EVERY_S: Final = 0.2

R = TypeVar("R", bound=msgspec.Struct)


async def begin(
    commands: WorkflowClient,
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


async def step_result(
    instances: Workflows, instance: InstanceNamed, step: str, kind: type[R], within_s: float
) -> R | None:
    """Wait for the result of a step of an instance.

    Returns:
        The result; None if there is none within `within_s` seconds, or none of this type.
    """
    try:
        async with asyncio.timeout(within_s):
            while True:
                with suppress(StoreUnavailable):
                    ended, result = await _step_result(instances, instance, step)
                    if ended or result is not None:
                        return None if result is None else msgspec.json.decode(result, type=kind)
                await asyncio.sleep(_POLL_EVERY_S)
    except (TimeoutError, msgspec.DecodeError):
        return None


async def _step_result(
    instances: Workflows, instance: InstanceNamed, step: str
) -> tuple[bool, str | None]:
    """Return whether an instance has ended, and the result of its first entry if it is the step."""
    row = await instances.instance(instance.workflow, instance.id)
    if row is None:
        return False, None
    located = row.instance
    run = RunKey(instance.workflow, instance.id, located.meta.run_number)
    entries = (await instances.steps(run, limit=1)).rows
    result = next((entry.result for entry in entries if entry.name == step), None)
    return located.details.ended, result
