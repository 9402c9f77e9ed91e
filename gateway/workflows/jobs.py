"""Jobs for workers outside: found in Postgres, given away and ended by their instances' owners.

Postgres may be behind, and others look there, too. So what is found is asked for, all at once, and
the owners say which of it may be had. What was asked for is left out for a while: until Postgres
knows, it would be found again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from msgspec import Raw, structs

from headwater.gateway.http.problems import Problem
from headwater.gateway.http.sending import send_all
from headwater.gateway.workflows.freshness import Freshness
from headwater.gateway.workflows.job_bodies import Activation
from headwater.gateway.workflows.job_keys import JobKey
from headwater.gateway.workflows.refusals import refusal
from headwater.projections.workflows.queries import OpenJob, Workflows
from headwater.schemas.answers import Job
from headwater.schemas.failures import is_refused
from headwater.schemas.history import ActivateJob, Attempt, JobCommand, ReplySent
from headwater.streams.workflows.client import Addressed, Commands, OutcomeUnknown

_AnyFuture: TypeAlias = "asyncio.Future[Any]"

_FIRST: Final = asyncio.FIRST_COMPLETED
#: Activations that wait at once. Each asks Postgres when the history moves, at most every pause.
WAITING_MAX: Final = 200
#: Seconds between two looks of one activation, at first and at most.
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.5
#: Seconds after which an activation looks again though nothing has moved: what is left out, others
#: may not have got.
_LOOK_AGAIN_S: Final = 5.0
#: Seconds for which what was asked for is left out. Postgres lags by some ms, and by more when
#: there is much to do; then the owners refuse what is asked for again.
_LEFT_OUT_S: Final = 5.0
#: What is left out at most: a few seconds' work, and small enough to hand to Postgres.
_LEFT_OUT_MAX: Final = 2_000


class Jobs:
    """The jobs of all workflows, for one gateway."""

    def __init__(
        self,
        commands: Commands,
        workflows: Workflows,
        freshness: Freshness,
        *,
        new_id: Callable[[], str],
    ) -> None:
        self._commands = commands
        self._workflows = workflows
        self._freshness = freshness
        self._new_id = new_id
        self._closing = asyncio.Event()
        #: Keys of what was asked for, in the order of the times until which they are left out.
        self._left_out: dict[str, float] = {}
        self.waiting = 0

    def close(self) -> None:
        """Ends all waits."""
        self._closing.set()

    async def activate(
        self, wanted: Activation, gone: Callable[[], Awaitable[object]]
    ) -> list[Job]:
        """Takes jobs for a worker, and waits for some if there are none.

        Shape:  gone returns when the caller is no longer there: nothing is taken for nobody.
        Errors: Problem; StoreUnavailable, OutcomeUnknown.
        """
        if self.waiting >= WAITING_MAX:
            raise Problem(
                "overloaded",
                f"expected at most {WAITING_MAX} activations at a time, found as many",
            )
        self.waiting += 1
        ends = [asyncio.ensure_future(gone()), asyncio.ensure_future(self._closing.wait())]
        try:
            return await self._activate(wanted, ends)
        finally:
            self.waiting -= 1
            await _cancel(ends)

    async def _activate(self, wanted: Activation, ends: Sequence[_AnyFuture]) -> list[Job]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wanted.wait_ms / 1000
        pause_s = _PAUSE_S
        while True:
            seen = self._freshness.applied() or await self._freshness.look()
            taken = await self._take(wanted)
            left_s = until_s - loop.time()
            if taken or left_s <= 0:
                return taken
            await asyncio.wait(ends, timeout=min(pause_s, left_s), return_when=_FIRST)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)
            moves = asyncio.ensure_future(
                self._freshness.moved(seen, min(until_s - loop.time(), _LOOK_AGAIN_S))
            )
            try:
                await asyncio.wait((moves, *ends), return_when=_FIRST)
                if any(each.done() for each in ends):
                    return []
                moves.result()
            finally:
                await _cancel([moves])

    async def _take(self, wanted: Activation) -> list[Job]:
        """Takes what can be had now."""
        now_s = asyncio.get_running_loop().time()
        self._forget(now_s)
        found = await self._workflows.open_jobs(
            wanted.types, list(self._left_out), limit=wanted.max
        )
        # Nothing is awaited in between: what one activation asks for, no other one does.
        free = {_key_of(job): job for job in found if _key_of(job).text not in self._left_out}
        self._left_out.update({key.text: now_s + _LEFT_OUT_S for key in free})
        replies = await self._won(
            {
                # Known by it if the outcomes of others are not heard of.
                self._new_id(): Addressed(
                    key.workflow,
                    key.instance_id,
                    ActivateJob(key.attempt, wanted.worker, wanted.lease_ms),
                )
                for key in free
            }
        )
        return [
            _answer(key, job, lease_until(reply))
            for (key, job), reply in zip(free.items(), replies, strict=True)
            if reply is not None
        ]

    def _forget(self, now_s: float) -> None:
        """Leaves out no longer what was asked for a while ago."""
        for key, until_s in list(self._left_out.items()):
            if until_s > now_s and len(self._left_out) <= _LEFT_OUT_MAX:
                return
            del self._left_out[key]

    async def _won(self, commands: Mapping[str, Addressed]) -> list[ReplySent | None]:
        """Sends commands by their ids, and gives the replies to those that were accepted.

        Errors: OutcomeUnknown, if that is known of none.
        """
        if not commands:
            return []
        sent = [structs.replace(each, command_id=name) for name, each in commands.items()]
        try:
            return [_accepted(reply) for reply in await send_all(self._commands, sent)]
        except OutcomeUnknown as error:
            known = {name: _accepted(reply) for name, reply in error.known.items()}
            if not any(known.values()):
                raise
            return [known.get(name) for name in commands]

    async def end(self, key: JobKey, command: JobCommand) -> ReplySent:
        """Completes, fails or extends a job.

        Errors: Problem, OutcomeUnknown.
        """
        addressed = Addressed(key.workflow, key.instance_id, command)
        (reply,) = await send_all(self._commands, [addressed])
        if is_refused(reply.code):
            raise refusal(reply)
        return reply


def _accepted(reply: ReplySent) -> ReplySent | None:
    return None if is_refused(reply.code) else reply


def lease_until(reply: ReplySent) -> datetime:
    """Until when a worker has the job that it took or extended, as its owner says."""
    assert reply.lease_until_ms is not None  # noqa: S101, that is what the command came to
    return datetime.fromtimestamp(reply.lease_until_ms / 1000, UTC)


def _key_of(job: OpenJob) -> JobKey:
    attempt = Attempt(job.run_number, int(job.token_id), job.attempt)
    return JobKey(job.workflow_name, job.instance_id, attempt)


def _answer(key: JobKey, job: OpenJob, until: datetime) -> Job:
    return Job(
        key=key.text,
        type=job.type,
        workflow=job.workflow_name,
        instance_id=job.instance_id,
        run_number=job.run_number,
        token_id=job.token_id,
        node_ref=job.node_ref,
        attempt=job.attempt,
        input=Raw((job.input or "null").encode()),
        lease_until=until,
        idempotency_token=job.idempotency_token,
    )


async def _cancel(futures: Sequence[_AnyFuture]) -> None:
    for each in futures:
        each.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
