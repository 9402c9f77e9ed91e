"""Sees that every schedule of an app has its instance, and that it knows what it is now."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from headwater.schemas.errors import BrokerUnavailable, NotYetReadable, Overloaded
from headwater.schemas.failures import INSTANCE_EXISTS, INSTANCE_TERMINAL
from headwater.schemas.history import Command, ReplySent, RestartRun, SendEvent, StartRun
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.values import encode
from headwater.streams.code_host.schedule_runner import DECLARED, RUNNER
from headwater.streams.code_host.schedules import Declared
from headwater.streams.kafka.retrying import Retrying
from headwater.streams.workflows.client import Addressed, Commands, OutcomeUnknown

log = logging.getLogger(__name__)


async def declare(
    client: Commands,
    schedules: Sequence[Declared],
    *,
    new_id: Callable[[], str],
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
) -> None:
    """Declares schedules, each until it is known to the log.

    Declaring the same again changes nothing, so every worker does it when it starts. An instance
    that an operator has terminated stays so; one that ended for another reason begins anew.
    """
    await asyncio.gather(*(_declare(client, each, new_id, sleep) for each in schedules))


async def _declare(
    client: Commands,
    declared: Declared,
    new_id: Callable[[], str],
    sleep: Callable[[float], Awaitable[Any]],
) -> None:
    what = f"the schedule {declared.schedule} cannot be declared yet"
    # Soon at first, because the worker that is to answer may be just about to start.
    retrying = Retrying(log, what, first_s=1.0, longest_s=30.0, sleep=sleep)
    while True:
        try:
            reply = await _tell(client, declared, new_id)
        except (OutcomeUnknown, BrokerUnavailable, NotYetReadable, Overloaded) as error:
            await retrying.failed(error)
            continue
        if not reply.code:
            retrying.succeeded()
            return
        if reply.code == INSTANCE_TERMINAL:
            log.warning(
                "the schedule %s was terminated and stays so; restart starts it again",
                declared.schedule,
            )
            return
        # No worker with this app has its partition yet, or its mailbox is full.
        await retrying.failed(f"{reply.code}: {reply.message}")


async def _tell(client: Commands, declared: Declared, new_id: Callable[[], str]) -> ReplySent:
    """Creates the instance of a schedule, or sends the declaration to the one there is."""
    name = declared.schedule
    params = encode(msgspec.to_builtins(declared), f"the schedule {name}")
    reply = await _send(client, name, StartRun(params))
    if reply.code != INSTANCE_EXISTS:
        return reply
    reply = await _send(client, name, SendEvent(new_id(), DECLARED, params))
    if reply.code != INSTANCE_TERMINAL or reply.status == RunStatus.TERMINATED:
        return reply
    reply = await _send(client, name, RestartRun())
    if reply.code:
        return reply
    # It began with the params of its first run.
    return await _send(client, name, SendEvent(new_id(), DECLARED, params))


async def _send(client: Commands, name: str, command: Command) -> ReplySent:
    (reply,) = await client.send_many([Addressed(RUNNER, name, command)])
    return reply
