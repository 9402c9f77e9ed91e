"""Ensure that every schedule has an instance, and that the instance has the current declaration.

Schedules of apps are declared when their worker starts, those of the active deployment at every
activation, and all of them at intervals. Every worker does that: to declare the same schedule again
changes nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from headwater.processors.deployments import Deployments, artifact_of
from headwater.schemas.deployments import DeployedSchedule
from headwater.schemas.errors import BrokerUnavailable, NotYetReadable, Overloaded
from headwater.schemas.failures import INSTANCE_EXISTS, INSTANCE_NOT_FOUND, INSTANCE_TERMINAL
from headwater.schemas.history import Command, ReplySent, RestartRun, SendEvent, StartRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.values import encode
from headwater.streams.code_host.builtin_app import DECLARED, RUNNER
from headwater.streams.code_host.schedules import Declared, FromDeployment
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.client import Addressed, OutcomeUnknown, WorkflowClient

log = logging.getLogger(__name__)

#: How often schedules are declared again: an instance that was terminated and restarted does not
#: have the current declaration, and one that was deleted does not exist.
REDECLARE_S: Final = 300.0
#: After 1, 3 and 7 seconds.
_STARTING_ATTEMPTS: Final = 3


async def declare(
    client: WorkflowClient,
    schedules: Sequence[Declared | FromDeployment],
    *,
    new_id: Callable[[], str],
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    repeat_s: float | None = None,
) -> None:
    """Declare schedules until their instances have the declaration.

    An instance that an operator has terminated stays terminated; one that ended for another reason
    is restarted.

    Args:
        client: Sends commands.
        schedules: The schedules.
        new_id: Returns a new event id.
        sleep: Replaces `asyncio.sleep` in tests.
        repeat_s: Seconds after which existing schedules are declared again, until the call is
            cancelled; None to declare them once.
    """
    declarations = (_declare(client, schedule, new_id, sleep, repeat_s) for schedule in schedules)
    await asyncio.gather(*declarations)


async def declare_activated(
    client: WorkflowClient,
    activated: Callable[[int], Awaitable[Deployments]],
    *,
    new_id: Callable[[], str],
) -> None:
    """Declare the schedules of the active deployment, again after every activation.

    Args:
        client: Sends commands.
        activated: Waits until there were more activations than its argument.
        new_id: Returns a new event id.
    """
    deployments = await activated(0)
    while True:
        declaring = asyncio.ensure_future(
            declare(client, schedules_of(deployments), new_id=new_id, repeat_s=REDECLARE_S)
        )
        newer = asyncio.ensure_future(activated(deployments.moves))
        try:
            await asyncio.wait({declaring, newer}, return_when=asyncio.FIRST_COMPLETED)
            if declaring.done():
                declaring.result()
            deployments = await newer
        finally:
            # After another activation, its declarations apply.
            declaring.cancel()
            newer.cancel()
            await asyncio.gather(declaring, newer, return_exceptions=True)


def schedules_of(deployments: Deployments) -> list[FromDeployment]:
    """Return the declarations of the active deployment, also that it lacks a schedule."""
    active = deployments.active
    if active is None:
        return []
    schedules: list[FromDeployment] = []
    for name, schedule in deployments.schedules().items():
        try:
            declared = None if schedule is None else _declared(schedule)
        except ValueError:
            # Deployed by a release with other rules; the others are declared nevertheless.
            log.exception("the schedule %s of %s cannot be read", name, active.id)
            continue
        schedules.append(
            FromDeployment(
                schedule=name,
                deployment=artifact_of(active),
                move=deployments.moves,
                since_ms=deployments.activated_at_ms[active.id],
                declared=declared,
            )
        )
    return schedules


def _declared(schedule: DeployedSchedule) -> Declared:
    return msgspec.json.decode(schedule.declared, type=Declared)


async def _declare(
    client: WorkflowClient,
    declared: Declared | FromDeployment,
    new_id: Callable[[], str],
    sleep: Callable[[float], Awaitable[Any]],
    repeat_s: float | None,
) -> None:
    what = f"the schedule {declared.schedule} cannot be declared yet"
    # Retries are fast at first, and the first failures are not logged: the worker that must answer
    # may be just about to start, and often is this one.
    retrying = Retrying(log, what, first_s=1.0, longest_s=30.0, sleep=sleep)
    quiet = _STARTING_ATTEMPTS
    warned = False
    while True:
        try:
            reply = await _declare_once(client, declared, new_id)
        except (OutcomeUnknown, BrokerUnavailable, NotYetReadable, Overloaded) as error:
            await retrying.failed(error, quiet=quiet)
            continue
        except Exception as error:
            # An error of one schedule must not end the worker: the others are declared.
            log.exception("%s", what)
            await retrying.failed(error, quiet=quiet)
            continue
        if not reply.code or _has_ended(declared, reply):
            warned = False
        elif reply.code != INSTANCE_TERMINAL:
            # No worker with this app owns its partition yet, or its mailbox is full.
            await retrying.failed(f"{reply.code}: {reply.message}", quiet=quiet)
            continue
        elif not warned:
            warned = True
            log.warning(
                "the schedule %s was terminated and stays so; restart starts it again",
                declared.schedule,
            )
        retrying.succeeded()
        if repeat_s is None or not _exists(declared):
            return
        declared = msgspec.structs.replace(declared, again=True)
        await sleep(repeat_s)


async def _declare_once(
    client: WorkflowClient, declared: Declared | FromDeployment, new_id: Callable[[], str]
) -> ReplySent:
    """Create the instance of a schedule, or send the declaration to the existing one."""
    name = declared.schedule
    params = encode(msgspec.to_builtins(declared), f"the schedule {name}")
    if _exists(declared):
        reply = await _send(client, name, StartRun(params))
        if reply.code != INSTANCE_EXISTS:
            return reply
    reply = await _send(client, name, SendEvent(new_id(), DECLARED, params))
    stays = reply.code != INSTANCE_TERMINAL or reply.status == RunStatus.TERMINATED
    if stays or not _exists(declared):
        return reply
    reply = await _send(client, name, RestartRun())
    if reply.code:
        return reply
    # The restarted run has the params of the first run.
    return await _send(client, name, SendEvent(new_id(), DECLARED, params))


def _exists(declared: Declared | FromDeployment) -> bool:
    return isinstance(declared, Declared) or declared.declared is not None


def _has_ended(declared: Declared | FromDeployment, reply: ReplySent) -> bool:
    """Return whether a schedule that no longer exists has no running instance either."""
    return not _exists(declared) and reply.code in {INSTANCE_NOT_FOUND, INSTANCE_TERMINAL}


async def _send(client: WorkflowClient, name: str, command: Command) -> ReplySent:
    (reply,) = await client.send_many([Addressed(RUNNER, name, command)])
    return reply
