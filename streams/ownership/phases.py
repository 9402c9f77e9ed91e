"""The phases of a worker's partitions, without I/O.

The consumer group assigns and revokes partitions. An assigned partition is acquired: its owner
claims it, and restores its state up to the claim. Only then is it owned. Every change of a phase is
in one table, `TRANSITIONS`; any other change is a bug.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from headwater.monitoring.catalog import PARTITIONS, TAKEOVERS
from headwater.monitoring.monitor import OK, Monitor
from headwater.schemas.errors import InvariantViolation
from headwater.schemas.newer import Waiting
from headwater.streams.ownership.watchdog import Watchdog


class Phase(StrEnum):
    """What a worker may do with a partition."""

    #: Nothing: another worker may own it.
    UNASSIGNED = "unassigned"
    #: Claim and restore it, or check that a claim from before a rebalance is still the latest.
    ACQUIRING = "acquiring"
    #: Read, decide and append.
    OWNED = "owned"
    #: Read no further: a record needs another release to be read or written.
    WAITING = "waiting"


class Change(StrEnum):
    """What happens to a partition."""

    ASSIGNED = "assigned"
    #: Its claim is the latest, and its state is that of the log.
    ACQUIRED = "acquired"
    #: A record needs another release.
    BLOCKED = "blocked"
    #: Its state may differ from the log, and was discarded.
    DISCARDED = "discarded"
    #: It was revoked, or is no longer decided for.
    RELEASED = "released"


#: The next phase, by phase and change. Only a partition that is being acquired can be acquired. One
#: that waits cannot be restored any further, so it waits until it is released.
TRANSITIONS: Final[Mapping[tuple[Phase, Change], Phase]] = MappingProxyType(
    {
        (Phase.UNASSIGNED, Change.ASSIGNED): Phase.ACQUIRING,
        (Phase.ACQUIRING, Change.ASSIGNED): Phase.ACQUIRING,
        (Phase.OWNED, Change.ASSIGNED): Phase.OWNED,
        (Phase.WAITING, Change.ASSIGNED): Phase.WAITING,
        (Phase.ACQUIRING, Change.ACQUIRED): Phase.OWNED,
        (Phase.UNASSIGNED, Change.BLOCKED): Phase.UNASSIGNED,
        (Phase.ACQUIRING, Change.BLOCKED): Phase.WAITING,
        (Phase.OWNED, Change.BLOCKED): Phase.WAITING,
        (Phase.WAITING, Change.BLOCKED): Phase.WAITING,
        (Phase.UNASSIGNED, Change.DISCARDED): Phase.UNASSIGNED,
        (Phase.ACQUIRING, Change.DISCARDED): Phase.ACQUIRING,
        (Phase.OWNED, Change.DISCARDED): Phase.ACQUIRING,
        (Phase.WAITING, Change.DISCARDED): Phase.WAITING,
        (Phase.UNASSIGNED, Change.RELEASED): Phase.UNASSIGNED,
        (Phase.ACQUIRING, Change.RELEASED): Phase.UNASSIGNED,
        (Phase.OWNED, Change.RELEASED): Phase.UNASSIGNED,
        (Phase.WAITING, Change.RELEASED): Phase.UNASSIGNED,
    }
)


class OwnedPartitions:
    """The phases of the partitions of one worker.

    Args:
        watchdog: Watches the progress of assigned partitions, if they are watched.

    Attributes:
        rebalances: Number of assignments and revocations. A task that has waited compares it,
            because a partition may have been revoked and assigned again meanwhile.
        waiting: Why partitions wait, as messages to log.
    """

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self._watchdog = watchdog
        #: Of assigned partitions.
        self._phases: dict[int, Phase] = {}
        self.rebalances = 0
        self._is_revoked = True
        self._is_reported = False
        self.waiting = Waiting()

    def phase(self, number: int) -> Phase:
        """Return the phase of a partition."""
        return self._phases.get(number, Phase.UNASSIGNED)

    def assigned(self) -> list[int]:
        """Return the assigned partitions, in order."""
        return sorted(self._phases)

    def assign(self, numbers: Collection[int]) -> None:
        """Record which partitions are assigned from now on."""
        self.rebalances += 1
        self._is_revoked = False
        for number in self._phases.keys() - numbers:
            self.change(number, Change.RELEASED)
        for number in numbers:
            self.change(number, Change.ASSIGNED)

    def revoke(self) -> None:
        """Record that all partitions were revoked."""
        self.assign(())
        self._is_revoked = True

    def report_to(self, monitor: Monitor) -> None:
        """Let the process be ready when it owns all partitions that are assigned to it."""
        self._is_reported = True
        monitor.ready_when(self._readiness)
        monitor.measure(self._measure)

    def _readiness(self) -> dict[str, str]:
        if self._is_revoked:
            return {"partitions": "waiting for an assignment"}
        phases = self._phases.copy()
        pending = [f"{n} {phase}" for n, phase in sorted(phases.items()) if phase != Phase.OWNED]
        return {"partitions": ", ".join(pending) or OK}

    def _measure(self) -> None:
        counts = Counter(self._phases.copy().values())
        PARTITIONS.replace(
            {(phase.value,): counts[phase] for phase in Phase if phase is not Phase.UNASSIGNED}
        )

    def progress(self, number: int, what: str) -> None:
        """Record progress of a partition, or that it has nothing to do, while it is assigned."""
        if self._watchdog is not None and number in self._phases:
            self._watchdog.record_progress(f"partition {number}", what)

    def block(self, number: int, message: str) -> None:
        """Record that a partition waits for another release, unless it was revoked."""
        self.change(number, Change.BLOCKED)
        if self.phase(number) is Phase.WAITING:
            self.waiting.begin(number, message)

    def change(self, number: int, change: Change) -> None:
        """Apply a change to a partition.

        Raises:
            InvariantViolation: The change is impossible in its phase, which is a bug.
        """
        phase = self.phase(number)
        following = TRANSITIONS.get((phase, change))
        if following is None:
            raise InvariantViolation(
                f"expected partition {number} in a phase in which it can be {change}, found it "
                f"{phase}"
            )
        self._phases[number] = following
        if change is Change.ACQUIRED and self._is_reported:
            TAKEOVERS.add()
        if change is Change.ASSIGNED:
            self.progress(number, "it was assigned")
        if following is Phase.UNASSIGNED:
            del self._phases[number]
            if self._watchdog is not None:
                self._watchdog.leave(f"partition {number}")
        if following is not Phase.WAITING:
            self.waiting.end(number)
