"""Sees that every schedule has its instance, and that it knows what it is now.

Those of apps are declared when their worker starts, those of the active deployment whenever one is
activated, and all of them from time to time. Every worker does that: to declare the same again
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
from headwater.streams.code_host.schedule_runner import DECLARED, RUNNER
from headwater.streams.code_host.schedules import Declared, FromDeployment
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.client import Addressed, Commands, OutcomeUnknown

log = logging.getLogger(__name__)

#: How often schedules are declared again: one that was terminated and restarted knows nothing of
#: what is declared now, however long ago it was told, and one that was deleted is not there.
AGAIN_S: Final = 300.0
#: After 1, 3 and 7 seconds.
_STARTING_ATTEMPTS: Final = 3


async def declare(
    client: Commands,
    schedules: Sequence[Declared | FromDeployment],
    *,
    new_id: Callable[[], str],
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    again_s: float | None = None,
) -> None:
    """Declares schedules, each until it is known to the log.

    An instance that an operator has terminated stays so; one that ended for another reason begins
    anew.

    Units:  again_s, after how many seconds those that are there are declared again, until it is
            cancelled.
    """
    await asyncio.gather(*(_declare(client, each, new_id, sleep, again_s) for each in schedules))


async def declare_activated(
    client: Commands,
    activated: Callable[[int], Awaitable[Deployments]],
    *,
    new_id: Callable[[], str],
) -> None:
    """Declares the schedules of the active deployment, again after each activation.

    Shape:  activated waits until there were more activations than so many.
    """
    deployments = await activated(0)
    while True:
        declaring = asyncio.ensure_future(
            declare(client, schedules_of(deployments), new_id=new_id, again_s=AGAIN_S)
        )
        newer = asyncio.ensure_future(activated(deployments.moves))
        try:
            await asyncio.wait({declaring, newer}, return_when=asyncio.FIRST_COMPLETED)
            if declaring.done():
                declaring.result()
            deployments = await newer
        finally:
            # What is declared after another activation is what that has.
            declaring.cancel()
            newer.cancel()
            await asyncio.gather(declaring, newer, return_exceptions=True)


def schedules_of(deployments: Deployments) -> list[FromDeployment]:
    """What the active deployment says of schedules, also of those that it does not have."""
    active = deployments.active
    if active is None:
        return []
    found: list[FromDeployment] = []
    for name, schedule in deployments.schedules().items():
        try:
            declared = None if schedule is None else _declared(schedule)
        except ValueError:
            # Deployed by a release with other rules; the others are declared all the same.
            log.exception("the schedule %s of %s cannot be read", name, active.id)
            continue
        found.append(
            FromDeployment(
                schedule=name,
                deployment=artifact_of(active),
                move=deployments.moves,
                since_ms=deployments.activated_at_ms[active.id],
                declared=declared,
            )
        )
    return found


def _declared(found: DeployedSchedule) -> Declared:
    return msgspec.json.decode(found.declared, type=Declared)


async def _declare(
    client: Commands,
    declared: Declared | FromDeployment,
    new_id: Callable[[], str],
    sleep: Callable[[float], Awaitable[Any]],
    again_s: float | None,
) -> None:
    what = f"the schedule {declared.schedule} cannot be declared yet"
    # Soon at first, because the worker that is to answer may be just about to start: it often is
    # this one. So what lasts no longer than a start does is not told.
    retrying = Retrying(log, what, first_s=1.0, longest_s=30.0, sleep=sleep)
    quiet = _STARTING_ATTEMPTS
    warned = False
    while True:
        try:
            reply = await _tell(client, declared, new_id)
        except (OutcomeUnknown, BrokerUnavailable, NotYetReadable, Overloaded) as error:
            await retrying.failed(error, quiet=quiet)
            continue
        except Exception as error:
            # One schedule costs no worker: the others are declared all the same.
            log.exception("%s", what)
            await retrying.failed(error, quiet=quiet)
            continue
        if not reply.code or _is_over(declared, reply):
            warned = False
        elif reply.code != INSTANCE_TERMINAL:
            # No worker with this app has its partition yet, or its mailbox is full.
            await retrying.failed(f"{reply.code}: {reply.message}", quiet=quiet)
            continue
        elif not warned:
            warned = True
            log.warning(
                "the schedule %s was terminated and stays so; restart starts it again",
                declared.schedule,
            )
        retrying.succeeded()
        if again_s is None or not _is_there(declared):
            return
        declared = msgspec.structs.replace(declared, again=True)
        await sleep(again_s)


async def _tell(
    client: Commands, declared: Declared | FromDeployment, new_id: Callable[[], str]
) -> ReplySent:
    """Creates the instance of a schedule, or sends the declaration to the one there is."""
    name = declared.schedule
    params = encode(msgspec.to_builtins(declared), f"the schedule {name}")
    if _is_there(declared):
        reply = await _send(client, name, StartRun(params))
        if reply.code != INSTANCE_EXISTS:
            return reply
    reply = await _send(client, name, SendEvent(new_id(), DECLARED, params))
    stays = reply.code != INSTANCE_TERMINAL or reply.status == RunStatus.TERMINATED
    if stays or not _is_there(declared):
        return reply
    reply = await _send(client, name, RestartRun())
    if reply.code:
        return reply
    # It began with the params of its first run.
    return await _send(client, name, SendEvent(new_id(), DECLARED, params))


def _is_there(declared: Declared | FromDeployment) -> bool:
    return isinstance(declared, Declared) or declared.declared is not None


def _is_over(declared: Declared | FromDeployment, reply: ReplySent) -> bool:
    """Whether what is not there any more was not known to be there."""
    return not _is_there(declared) and reply.code in {INSTANCE_NOT_FOUND, INSTANCE_TERMINAL}


async def _send(client: Commands, name: str, command: Command) -> ReplySent:
    (reply,) = await client.send_many([Addressed(RUNNER, name, command)])
    return reply
