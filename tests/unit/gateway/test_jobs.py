"""Giving jobs away: what Postgres says is asked for, and what the owners say counts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import pytest

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.job_requests import Activation, read_key
from headwater.gateway.api.workflows.jobs import WAITING_MAX, JobService
from headwater.gateway.api.workflows.positions import Freshness
from headwater.projections.workflows.answers import OpenJob
from headwater.schemas.answers import Job
from headwater.schemas.history import ReplySent
from headwater.streams.workflows.client import Addressed, OutcomeUnknown
from tests.unit.gateway.workflow_fakes import LEASE_UNTIL_MS, MemoryCommands, reply


def job(name: str, attempt: int = 1) -> OpenJob:
    return OpenJob(
        workflow_name="order",
        instance_id=name,
        run_number=0,
        token_id="4",
        node_ref="pay",
        type="charge",
        attempt=attempt,
        input='{"n": 1.0}',
        idempotency_token="token",
    )


class Rows:
    """Postgres: jobs that it says are open, and how far it has come."""

    def __init__(self, *names: str) -> None:
        self.open = [job(name) for name in names]
        self.offset = 1
        self.asked = 0

    async def open_jobs(
        self, types: Sequence[str], reserved: Sequence[str], *, limit: int
    ) -> list[OpenJob]:
        self.asked += 1
        await asyncio.sleep(0)
        left = [item for item in self.open if f"order.{item.instance_id}.0.4.1" not in reserved]
        return left[:limit] if "charge" in types else []

    async def next_offsets(self) -> dict[int, int]:
        return {0: self.offset}


class Losing(MemoryCommands):
    """The outcomes of some commands are not heard of."""

    async def send_many(self, commands: Sequence[Addressed]) -> list[ReplySent]:
        self.sent += commands
        known = {command.command_id or "": self.answer(command) for command in commands[:1]}
        raise OutcomeUnknown("not heard of", ["lost"], known)


def play(
    act: Callable[[JobService, Rows, MemoryCommands], Awaitable[None]],
    rows: Rows,
    commands: MemoryCommands | None = None,
) -> None:
    async def acts() -> None:
        sent_to = commands or MemoryCommands()
        sent_to.ready = True
        freshness = Freshness(rows.next_offsets)
        numbers = count(1)
        provided: Any = rows
        jobs = JobService(sent_to, provided, freshness, new_id=lambda: f"c-{next(numbers)}")
        await freshness.start()
        try:
            await act(jobs, rows, sent_to)
        finally:
            await freshness.stop()

    asyncio.run(acts())


async def stays() -> None:
    await asyncio.Event().wait()


async def take(jobs: JobService, wait_ms: int = 0, most: int = 5) -> list[Job]:
    expected = Activation(types=("charge",), worker="me", max=most, lease_ms=5_000, wait_ms=wait_ms)
    return await jobs.activate(expected, stays)


def named(found: list[Job]) -> list[str]:
    return [item.instance_id for item in found]


def test_a_job_is_given_with_its_input_as_it_came_and_a_key_that_names_its_attempt() -> None:
    async def act(jobs: JobService, _: Rows, commands: MemoryCommands) -> None:
        (result,) = await take(jobs)
        assert (result.key, bytes(result.input)) == ("order.a.0.4.1", b'{"n": 1.0}')
        assert result.lease_until.timestamp() * 1000 == LEASE_UNTIL_MS
        assert read_key(result.key).attempt == commands.sent[0].command.attempt  # type: ignore[union-attr]

    play(act, Rows("a"))


def test_what_the_owner_refuses_is_not_given_and_not_asked_for_again_at_once() -> None:
    async def act(jobs: JobService, rows: Rows, commands: MemoryCommands) -> None:
        commands.answer = lambda item: reply(
            code="" if item.instance_id == "b" else "JOB_NOT_AVAILABLE"
        )
        assert named(await take(jobs)) == ["b"]
        rows.open.append(job("c"))
        assert named(await take(jobs)) == []
        assert [item.instance_id for item in commands.sent] == ["a", "b", "c"]

    play(act, Rows("a", "b"))


def test_two_who_ask_at_once_are_not_offered_the_same() -> None:
    async def act(jobs: JobService, _: Rows, commands: MemoryCommands) -> None:
        result = await asyncio.gather(take(jobs), take(jobs))
        assert sorted(map(named, result)) == [[], ["a", "b"]]
        assert len(commands.sent) == 2

    play(act, Rows("a", "b"))


def test_jobs_that_were_won_are_given_though_the_outcome_of_others_is_not_known() -> None:
    async def act(jobs: JobService, rows: Rows, _: MemoryCommands) -> None:
        assert named(await take(jobs)) == ["a"]
        rows.open = []
        assert await take(jobs) == []

    play(act, Rows("a", "b"), Losing())


def test_an_activation_of_which_nothing_is_known_says_so() -> None:
    async def act(jobs: JobService, _: Rows, commands: MemoryCommands) -> None:
        commands.answer = lambda _: reply(code="JOB_NOT_AVAILABLE")
        with pytest.raises(OutcomeUnknown):
            await take(jobs)

    play(act, Rows("a", "b"), Losing())


def test_whoever_waits_is_given_what_comes_and_looks_only_when_something_has_moved() -> None:
    async def act(jobs: JobService, rows: Rows, _: MemoryCommands) -> None:
        waits = asyncio.create_task(take(jobs, wait_ms=20_000))
        await asyncio.sleep(0.3)
        assert rows.asked == 1
        rows.open = [job("a")]
        rows.offset += 1
        assert named(await waits) == ["a"]
        assert (rows.asked, jobs.waiting) == (2, 0)

    play(act, Rows())


def test_all_who_wait_are_let_go_when_the_gateway_ends() -> None:
    async def act(jobs: JobService, _: Rows, __: MemoryCommands) -> None:
        waits = asyncio.create_task(take(jobs, wait_ms=20_000))
        await asyncio.sleep(0.1)
        jobs.close()
        assert await waits == []

    play(act, Rows())


def test_no_more_wait_than_there_is_room_for() -> None:
    async def act(jobs: JobService, _: Rows, __: MemoryCommands) -> None:
        jobs.waiting = WAITING_MAX
        with pytest.raises(Problem) as caught:
            await take(jobs)
        assert caught.value.code == "overloaded"

    play(act, Rows())


@pytest.mark.parametrize("text", ["", "order", "a.b.0.1", "a.b.0.1.x", "a.b.0.1.-1", "a b.c.0.1.1"])
def test_what_is_no_key_of_a_job_is_not_found(text: str) -> None:
    with pytest.raises(Problem) as caught:
        read_key(text)
    assert caught.value.code == "JOB_NOT_FOUND"
