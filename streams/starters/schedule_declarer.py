"""Sees that every schedule of an app has its instance, and that it knows what it is now."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from headwater.processors.runs.decide import INSTANCE_EXISTS, INSTANCE_TERMINAL
from headwater.processors.runs.state import RunStatus
from headwater.schemas.errors import BrokerUnavailable, Overloaded
from headwater.schemas.history import Command, ReplySent, RestartRun, SendEvent, StartRun
from headwater.streams.authoring.values import encode
from headwater.streams.code_host.schedule_runner import DECLARED, RUNNER
from headwater.streams.code_host.schedules import Declared
from headwater.streams.workflows.client import OutcomeUnknown

log = logging.getLogger(__name__)

#: Soon at first, because the worker that is to answer may be just about to start.
_RETRY_FIRST_S: Final = 1.0
_RETRY_MAX_S: Final = 30.0


class Sends(Protocol):
    """Who carries commands, and tells what became of them."""

    def send(self, workflow: str, instance_id: str, command: Command) -> Awaitable[ReplySent]:
        """Sends a command.

        Errors: OutcomeUnknown, BrokerUnavailable.
        """


async def declare(
    client: Sends,
    schedules: Sequence[Declared],
    *,
    new_id: Callable[[], str],
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
) -> None:
    """Declares schedules, each until it is known to the log.

    Saying the same again changes nothing, so every worker says it when it starts. An instance that
    an operator has terminated stays so; one that has ended for another reason begins anew.
    """
    await asyncio.gather(*(_declare(client, each, new_id, sleep) for each in schedules))


async def _declare(
    client: Sends,
    declared: Declared,
    new_id: Callable[[], str],
    sleep: Callable[[float], Awaitable[Any]],
) -> None:
    wait_s = _RETRY_FIRST_S
    told = False
    while True:
        try:
            reply = await _say(client, declared, new_id)
        except (OutcomeUnknown, BrokerUnavailable, Overloaded) as error:
            why = error.message
        else:
            if not reply.code:
                return
            if reply.code == INSTANCE_TERMINAL:
                log.warning(
                    "the schedule %s was terminated and stays so; restart starts it again",
                    declared.schedule,
                )
                return
            # No worker with this app has its partition yet, or its mailbox is full.
            why = f"{reply.code}: {reply.message}"
        if not told:
            log.warning("the schedule %s cannot be declared yet: %s", declared.schedule, why)
        told = True
        await sleep(wait_s)
        wait_s = min(2 * wait_s, _RETRY_MAX_S)


async def _say(client: Sends, declared: Declared, new_id: Callable[[], str]) -> ReplySent:
    """Creates the instance of a schedule, or tells the one there is."""
    name = declared.schedule
    params = encode(msgspec.to_builtins(declared), f"the schedule {name}")
    reply = await client.send(RUNNER, name, StartRun(params))
    if reply.code != INSTANCE_EXISTS:
        return reply
    reply = await client.send(RUNNER, name, SendEvent(new_id(), DECLARED, params))
    if reply.code != INSTANCE_TERMINAL or reply.status == RunStatus.TERMINATED:
        return reply
    reply = await client.send(RUNNER, name, RestartRun())
    if reply.code:
        return reply
    # It began with the params of its first run.
    return await client.send(RUNNER, name, SendEvent(new_id(), DECLARED, params))
