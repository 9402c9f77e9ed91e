"""An owner, its log in memory, and real host processes, one after the other."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self

import uvloop

from headwater.processors.code.host_messages import FromHost, ToHost
from headwater.processors.code.state import CodeRun
from headwater.processors.runs.claims import Claims
from headwater.schemas.history import (
    CommandSent,
    HistoryAppended,
    LogWritten,
    StartRun,
    instance_key,
)
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.values import decode, encode
from headwater.streams.clock import now_ms
from headwater.streams.engine.code import Code
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.owner import Owner, Queued
from headwater.streams.workflows.host_process import HostCode, HostExit, HostOptions, HostProcess
from tests.fakes.engines import ENGINES

APPS: Final = Path(__file__).resolve().parents[1] / "apps"
PATIENCE_S: Final = 60
#: The owner's clock runs so much faster than the child's, so that no test waits for a retry.
HASTE: Final = 20
#: The watch's patience where nothing is to stand still.
STALL_S: Final = 5.0


class World:
    """What a worker is, without Kafka: `async with World("app") as world: ...`."""

    def __init__(self, app: str, stall_s: float = STALL_S) -> None:
        self._app = app
        self._stall_s = stall_s
        self._began = time.monotonic()
        self._numbers = itertools.count(1)
        self._offsets = itertools.count(0)
        self._sent_by_host: list[FromHost] = []
        self._wake_up = asyncio.Event()
        self._keys: list[str] = []
        self.history: list[HistoryAppended] = []
        self.gone: list[HostExit] = []
        self._unreported: list[HostExit] = []
        self.hosts: list[HostProcess] = []

    async def __aenter__(self) -> Self:
        names = await self._begin_host()
        self.owner = Owner(
            0,
            Claims(),
            LiveInstances(ENGINES),
            code=Code(names),
            number_activations=lambda _: next(self._numbers),
            draw_seed=lambda: "seed",
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.host.stop()

    @property
    def host(self) -> HostProcess:
        return self.hosts[-1]

    def now_ms(self) -> int:
        return now_ms() + round((time.monotonic() - self._began) * 1_000 * HASTE)

    async def _begin_host(self) -> dict[str, str]:
        host = HostProcess(
            self._app,
            received=self._heard,
            exited=self._host_lost,
            options=HostOptions(stall_s=self._stall_s),
            code=HostCode(APPS),
        )
        names = (await host.start()).kinds
        self.hosts.append(host)
        return names

    def _heard(self, messages: list[FromHost]) -> None:
        self._sent_by_host += messages
        self._wake_up.set()

    def _host_lost(self, gone: HostExit) -> None:
        self.gone.append(gone)
        self._unreported.append(gone)
        self._wake_up.set()

    def create(self, workflow: str, params: object = None) -> str:
        """Creates an instance and gives its key."""
        offset = next(self._offsets)
        instance_id = f"i{offset}"
        command = CommandSent(
            command_id=instance_id,
            workflow=workflow,
            instance_id=instance_id,
            sent_at_ms=self.now_ms(),
            reply_to=-1,
            command=StartRun(encode(params, "params")),
        )
        self.owner.receive(offset, command, self.now_ms())
        key = instance_key(workflow, instance_id)
        self._keys.append(key)
        return key

    def turn(self) -> None:
        """Decides what came, appends, and lets what follows happen."""
        owner, now = self.owner, self.now_ms()
        sent, self._sent_by_host = self._sent_by_host, []
        owner.handle(sent, now)
        owner.wake(now)
        owner.dispatch(now)
        batch = owner.take_batch()
        self.history += batch.records
        to_host: list[ToHost] = []
        for effect in batch.effects:
            match effect:
                case Queued():
                    owner.posts_sent(effect.key, effect.posts[-1].number, now)
                case _ if hasattr(effect, "activation"):
                    to_host.append(effect)
        self.host.send(to_host)

    async def run_until(self, done: Callable[[], bool]) -> None:
        """Turns until something holds; hosts that are gone are followed by others."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {self.state()}"
            self._wake_up.clear()
            self.turn()
            for removed in self._unreported:
                self.owner.handle(self._sent_by_host, self.now_ms())
                self._sent_by_host = []
                self.owner.host_lost(removed.reason, self.now_ms(), turn=removed.turn)
                await self._begin_host()
            self._unreported.clear()
            if not done() and not self.owner.has_work():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._due_s()):
                        await self._wake_up.wait()

    def _due_s(self) -> float:
        due_ms = self.owner.next_due_ms()
        return 1.0 if due_ms is None else max(0.001, (due_ms - self.now_ms()) / 1_000 / HASTE)

    async def run_to_the_end(self, *keys: str) -> None:
        """Turns until these instances have ended."""
        await self.run_until(lambda: all(self.run(key).ended for key in keys))

    def run(self, key: str) -> CodeRun:
        """The state of an instance."""
        hand = self.owner.instances.find(key)
        assert hand is not None
        return hand.run

    def state(self) -> dict[str, str]:
        return {key: self.run(key).status.value for key in self._keys}

    def output(self, key: str) -> object:
        """What a complete instance gave."""
        run = self.run(key)
        assert run.status is RunStatus.COMPLETE, (run.status, run.failure)
        return decode(run.output)

    def failure(self, key: str) -> tuple[str, str]:
        run = self.run(key)
        assert run.status is RunStatus.ERRORED, (run.status, run.output)
        return run.failure.name, run.failure.message

    def logs(self, key: str) -> list[str]:
        """The lines in the log of an instance."""
        return [
            event.message
            for record in self.history
            if instance_key(record.workflow, record.instance_id) == key
            for event in record.events
            if isinstance(event, LogWritten)
        ]


def drive(scenario: Callable[[World], Awaitable[None]], stall_s: float = STALL_S) -> None:
    """Runs a scenario in a world of the misbehaving app."""

    async def run() -> None:
        async with World("misbehaving", stall_s) as world:
            await scenario(world)

    uvloop.run(run())
