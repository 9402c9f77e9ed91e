"""The laws of slots, and guests: instances of a limited workflow that come, are ended and deleted.

A run that is under way has a place where slots are counted, and nobody takes it away before it has
ended. No more places are given than there are slots. At the end nobody waits and nobody has one.
"""

import random
from typing import TYPE_CHECKING

from headwater.processors.runs.slots import Concurrency, holder_of, ticket
from headwater.processors.runs.state import Run
from headwater.processors.slots.queue import SlotsRun
from headwater.schemas.history import (
    CancelRequested,
    CancelRun,
    DeleteInstance,
    HistoryAppended,
    PauseRun,
    RestartRun,
    ResumeRun,
    RetryRun,
    SlotGranted,
    SlotReturned,
    SlotsGiven,
    StartRun,
    TerminateRun,
    instance_key,
)
from headwater.schemas.statuses import RunStatus
from headwater.streams.authoring.values import encode as json_of
from headwater.streams.kafka.records import partition_of
from tests.simulation.shapes import Violation

if TYPE_CHECKING:
    from tests.simulation.engine_world import World

GUESTS = 5


class SlotLaws:
    """What is checked of each record that counts; `given` counts what was seen."""

    def __init__(self, world: "World") -> None:
        self._world = world
        #: The tickets of places, by the key of whoever counts them and their number.
        self._tickets: dict[tuple[str, int], str] = {}
        self.given = 0
        self.waited = 0

    def read(self, record: HistoryAppended, after: Run) -> None:
        """To be called once for each record, behind its fold."""
        if isinstance(after, SlotsRun):
            self._counted(record, after)
        elif any(isinstance(event, SlotGranted) for event in record.events):
            cancelled = any(isinstance(event, CancelRequested) for event in record.events)
            if not cancelled and not after.ended:
                self._has_a_place(after)

    def _counted(self, record: HistoryAppended, after: SlotsRun) -> None:
        key = instance_key(record.workflow, record.instance_id)
        self._tickets |= {(key, number): item for number, item in after.tickets.items()}
        gives = any(isinstance(event, SlotsGiven) for event in record.events)
        if gives and after.limit is not None and after.held > after.limit:
            raise Violation(f"{key}: expected {after.limit} slots, found {after.held} given")
        self.given += gives
        self.waited = max(self.waited, after.waiting)
        for event in record.events:
            if isinstance(event, SlotReturned):
                self._is_over(record.workflow, self._tickets[key, event.number])

    def _has_a_place(self, run: Run) -> None:
        assert run.slot is not None
        slots = self._state(run.workflow, run.slot.slots)
        mine = ticket(run.instance_id, run.run_number, run.seed)
        number = slots.places.get(mine) if isinstance(slots, SlotsRun) else None
        if number is None or not isinstance(slots, SlotsRun) or number >= slots.first:
            raise Violation(f"{run.workflow}/{mine} begins without a slot: {slots}")

    def _is_over(self, workflow: str, of: str) -> None:
        instance_id, number = holder_of(of)
        run = self._state(workflow, instance_id)
        if run is None or (run.run_number, run.seed) != (number, of.split("#")[2]):
            return  # It was deleted, or another run has followed.
        if not run.ended:
            raise Violation(f"{workflow}/{of} has lost its slot before its end")

    def _state(self, workflow: str, instance_id: str) -> Run | None:
        key = instance_key(workflow, instance_id)
        partitions = self._world.partitions
        return partitions[partition_of(key.encode(), len(partitions))].reader.states.get(key)


def no_slot_is_left(world: "World") -> None:
    """When all runs have ended, nobody has a slot, nor waits for one."""
    for key, run in world.runs().items():
        if isinstance(run, SlotsRun) and (run.tickets or run.waiting or run.places):
            raise Violation(f"expected {key} to have all its slots back, found {run.tickets}")


class Guests:
    """Clients of a limited workflow, by draws of their own."""

    def __init__(self, world: "World", seed: int | str, workflow: str) -> None:
        self._world = world
        self._workflow = workflow
        self._draw = random.Random(f"guests of {seed}")

    def act(self) -> None:
        """A client does something to a guest, or an operator to all: another limit."""
        draw, world = self._draw, self._world
        if draw.random() > 0.4:
            return
        guest = f"g{draw.randrange(GUESTS)}"
        params = json_of(
            {"room": draw.randrange(2), "n": 1, "falls": draw.random() < 0.3}, "params"
        )
        command = draw.choice(
            [
                *(StartRun(params) for _ in range(4)),
                PauseRun(),
                ResumeRun(),
                RestartRun(),
                RetryRun(),
                TerminateRun("a client"),
                CancelRun("a client"),
                DeleteInstance(),
                DeleteInstance(),
            ]
        )
        world.trace.append(("a client of a guest:", guest, type(command).__name__))
        world.command(self._workflow, guest, command)
        if draw.random() < 0.05:
            self._change_a_limit()

    def _change_a_limit(self) -> None:
        """Whoever takes a partition over from now on knows another limit."""
        world, draw = self._world, self._draw
        name = draw.choice(sorted(item for item, limit in world.limits.items() if limit))
        limit = world.limits[name]
        assert limit is not None
        world.limits[name] = Concurrency(draw.randint(1, 3), limit.key)
        world.trace.append(("another limit", name, world.limits[name]))

    def nudge(self) -> bool:
        """Nobody stays paused."""
        paused = [run for run in self._world.runs().values() if self._is_paused(run)]
        for run in paused:
            self._world.command(run.workflow, run.instance_id, ResumeRun())
        return bool(paused)

    def _is_paused(self, run: Run) -> bool:
        return run.workflow == self._workflow and run.status is RunStatus.PAUSED
