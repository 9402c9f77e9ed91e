"""Goal: of equal requests under a key, one run is created, and all get one answer.

Method: worlds, each from one seed. Two gateways, with the product's code, share a Postgres and an
owner in memory. Every call waits until the world lets it go on, is lost before or after it took
effect, or its gateway is killed; clients send their request again until it is answered. One gateway
has a clock that is a day ahead. Then worlds in which one rule is left out: some must fail.

In some worlds the first requests are refused, in others another request uses the key. Not in one
world: a request that is refused frees the key for another (ADR 0059), and if a copy of the refused
one is still on its way and is accepted later, both have a run (ADR 0090).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.command_service import CommandResult
from headwater.gateway.api.workflows.runs.run_service import (
    CreateRun,
    IdempotentRequest,
    IdempotentRequests,
    RunResult,
)
from headwater.processors.idempotency_keys import (
    REMEMBERED_MS,
    IdempotencyKey,
    RequestState,
    StoredRequest,
)
from headwater.schemas.errors import StoreUnavailable

SEEDS: Final = range(150)
KEY: Final = IdempotencyKey("default", "key", "runs.create")
_REQUESTS: Final = 12


@dataclass(frozen=True)
class Rules:
    """What holds in a world; each is left out once."""

    database_time: bool = True
    join_reservations: bool = True
    owner_creates_once: bool = True
    first_answer_is_kept: bool = True


@dataclass
class World:
    """Postgres, the owner, and who waits for them."""

    seed: int
    rules: Rules
    row: tuple[StoredRequest, int] | None = None
    runs: dict[str, str] = field(default_factory=dict)
    created: list[tuple[str, str]] = field(default_factory=list)
    deployed: bool = False
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    tasks: dict[int, set[asyncio.Task[Any]]] = field(default_factory=lambda: {0: set(), 1: set()})

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now_ms = 10 * REMEMBERED_MS

    async def call(self, act: Callable[[], Any], lost: Callable[[], Exception]) -> Any:  # noqa: ANN401
        """A call that the world delays, and may lose before or after its effect."""
        gate = asyncio.get_running_loop().create_future()
        self.waiting.append(gate)
        await gate
        fate = self.random.random()
        if fate < 0.1:
            raise lost()
        result = act()
        gate = asyncio.get_running_loop().create_future()
        self.waiting.append(gate)
        await gate
        if fate > 0.9:
            raise lost()
        return result

    async def create(self, run_id: str, request_hash: str) -> RunResult:
        """The owner: it creates the run of an id once, if it has the workflow."""

        def act() -> RunResult:
            if not self.deployed and run_id not in self.runs:
                raise Problem("WORKFLOW_NOT_FOUND", "none")
            before = self.runs.get(run_id)
            if before is None or not self.rules.owner_creates_once:
                self.runs[run_id] = request_hash
                self.created.append((run_id, request_hash))
            elif before != request_hash:
                raise Problem("idempotency_conflict", "another request")
            status = self.random.choice(("pending", "running", "completed"))
            sent = CommandResult((), applied=True)
            return RunResult(run_id, 201, f"{run_id} {status}", before is not None, sent)

        result: RunResult = await self.call(act, _lost)
        return result


class Keys:
    """The table, as the statements of `idempotency.sql` use it, for one gateway."""

    def __init__(self, world: World, ahead_ms: int) -> None:
        self._world = world
        self._ahead_ms = 0 if world.rules.database_time else ahead_ms

    async def reserve(self, _: IdempotencyKey, new: StoredRequest) -> StoredRequest:
        def act() -> StoredRequest:
            world, now_ms = self._world, self._world.now_ms + self._ahead_ms
            if world.row is not None:
                stored, created_ms = world.row
                expired = created_ms <= now_ms - REMEMBERED_MS
                other = stored.request_hash != new.request_hash
                free = stored.state is RequestState.REFUSED and other
                if not (expired or free) and world.rules.join_reservations:
                    return stored
            world.row = (new, now_ms)
            return new

        result: StoredRequest = await self._world.call(act, _lost)
        return result

    async def complete(
        self, _: IdempotencyKey, run_id: str, status: int, body: str
    ) -> StoredRequest | None:
        def act() -> StoredRequest | None:
            assert self._world.row is not None
            stored, created_ms = self._world.row
            if stored.response_run_id != run_id:
                return None
            if stored.state is RequestState.COMPLETED and self._world.rules.first_answer_is_kept:
                return stored
            done = {"state": RequestState.COMPLETED, "status_code": status, "body": body}
            self._world.row = (msgspec.structs.replace(stored, **done), created_ms)
            return self._world.row[0]

        result: StoredRequest | None = await self._world.call(act, _lost)
        return result

    async def refuse(self, _: IdempotencyKey, run_id: str) -> None:
        def act() -> None:
            assert self._world.row is not None
            stored, created_ms = self._world.row
            if stored.response_run_id == run_id and stored.state is RequestState.IN_PROGRESS:
                refused = msgspec.structs.replace(stored, state=RequestState.REFUSED)
                self._world.row = (refused, created_ms)

        await self._world.call(act, _lost)


def _lost() -> StoreUnavailable:
    return StoreUnavailable("lost")


class Answer(NamedTuple):
    """What a client was answered; the body of a conflict is empty."""

    request_hash: str
    body: str
    replayed: bool


async def client(world: World, number: int, request_hash: str, answers: list[Answer]) -> None:
    """Sends a request again, through either gateway, until it is answered for good."""
    for attempt in range(1_000):
        gateway = (number + attempt) % 2
        requests = IdempotentRequests(Keys(world, gateway * REMEMBERED_MS))  # type: ignore[arg-type]
        task = asyncio.ensure_future(
            requests.execute(_request(world, f"run-{number}-{attempt}", request_hash))
        )
        world.tasks[gateway].add(task)
        try:
            result = await task
        except (StoreUnavailable, asyncio.CancelledError):
            continue
        except Problem as problem:
            if problem.code != "idempotency_conflict":
                continue
            answers.append(Answer(request_hash, "", replayed=False))
            return
        finally:
            world.tasks[gateway].discard(task)
        answers.append(Answer(request_hash, result.body, replayed=result.command is None))
        return
    raise AssertionError("no answer")


def _request(world: World, run_id: str, request_hash: str) -> IdempotentRequest:
    async def prepare() -> CreateRun:
        def create(run: str) -> Awaitable[RunResult]:
            return world.create(run, request_hash)

        return create

    return IdempotentRequest(KEY, request_hash, run_id, prepare)


async def play(seed: int, rules: Rules) -> tuple[World, list[Answer]]:
    world, answers = World(seed, rules), list[Answer]()
    hashes = ["same"] * (_REQUESTS - 1) + [world.random.choice(("same", "other"))]
    world.deployed = "other" in hashes
    clients = [
        asyncio.ensure_future(client(world, number, request_hash, answers))
        for number, request_hash in enumerate(hashes)
    ]
    while not all(one.done() for one in clients):
        for _ in range(4):
            await asyncio.sleep(0)
        world.now_ms += world.random.randrange(1_000)
        world.deployed = world.deployed or world.random.random() < 0.05
        world.waiting = [gate for gate in world.waiting if not gate.done()]
        if world.random.random() < 0.02:
            for task in world.tasks[world.random.randrange(2)]:
                task.cancel()
        elif world.waiting:
            world.waiting.pop(world.random.randrange(len(world.waiting))).set_result(None)
    for one in clients:
        one.result()
    return world, answers


def broken(seed: int, rules: Rules) -> str:
    """What is wrong with the answers of a world; empty if nothing is."""
    world, answers = asyncio.run(play(seed, rules))
    for request_hash in {answer.request_hash for answer in answers}:
        own = [answer for answer in answers if answer.request_hash == request_hash]
        runs = [run_id for run_id, of in world.created if of == request_hash]
        if len(runs) > 1:
            return f"seed {seed}: {request_hash} was created {len(runs)} times"
        if {answer.body.partition(" ")[0] for answer in own} - {"", *runs}:
            return f"seed {seed}: answers about other runs than {runs}"
        replays = {answer.body for answer in own if answer.replayed}
        if len(replays) > 1:
            return f"seed {seed}: the answer was repeated as {replays}"
    return ""


def failing(seeds: Iterable[int], rules: Rules) -> list[str]:
    return [problem for seed in seeds if (problem := broken(seed, rules))]


@pytest.mark.parametrize("block", range(3))
def test_of_equal_requests_one_run_comes_and_one_answer_is_repeated(block: int):
    assert not failing(SEEDS[block::3], Rules())


@pytest.mark.parametrize("rule", [rule.name for rule in fields(Rules)])
def test_each_rule_is_needed(rule: str):
    assert failing(SEEDS, Rules(**{rule: False}))
