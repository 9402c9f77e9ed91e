"""One outcome for each delivery: deliveries that have none yet, as a fold of their topics.

Records are applied after those that caused them: a delivery before its outcome, the trace of a
duplicate, a dead letter or a tombstone. The caller reads topics up to ends that it queried in the
opposite order. So only deliveries without an outcome are remembered, however many there are.

Cleanup policies decide what can be proven. Outcomes are compacted, so the log always has the last
one of an event id. Traces of duplicates and dead letters are deleted by age; a duplicate has the
outcome of its event id all the same, except an event that may recur and has an id of its own. When
such a proof is no longer kept, the delivery is unproven, not lost. A duplicate that compaction has
left in place of its original is known by its trace, and proves nothing of the original.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from headwater.processors.auditor.findings import Violation
from headwater.schemas.auditor import Law

#: Value of `Unsettled.proof_until_ms` for an outcome, which is kept indefinitely.
INDEFINITELY: Final = 0
#: A delivery that waits longer is late, in milliseconds.
LATE_AFTER_MS: Final = 15 * 60 * 1000
#: A delivery that is parked for as long after its wait should have ended is late, in milliseconds.
_PARKED_GRACE_MS: Final = 60 * 60 * 1000
#: Deliveries without an outcome that are remembered, of some 250 bytes, and up to 64 in the report.
_UNSETTLED_MAX: Final = 150_000
#: Parked deliveries that are remembered, of some 43 bytes in the report.
_PARKED_MAX: Final = 100_000
#: Outcomes that were removed, or are in two partitions, which are remembered.
_CHANGED_MAX: Final = 1_000
#: Latest outcomes of which the partition is remembered.
_RECENT_MAX: Final = 1_000
_PARKED: Final = "parked"


class Unsettled(msgspec.Struct, frozen=True, array_like=True):
    """A delivery without an outcome.

    Attributes:
        event_id: Its id.
        at_ms: When it was appended, Unix milliseconds.
        proof_until_ms: Until when its end can be proven, Unix milliseconds, or INDEFINITELY.
        replayed: Whether it is another record of an earlier delivery.
    """

    event_id: str
    at_ms: int
    proof_until_ms: int = INDEFINITELY
    replayed: bool = False


class DeliveryState(msgspec.Struct):
    """State of `DeliveryFold`, which is stored.

    Attributes:
        received: Number of deliveries whose first record was read.
        unproven: Number of those of which nothing can be proven any more.
        waiting: Those without an outcome, by partition and offset in `webhooks`.
        parked: When deliveries began to wait for their connection, by event id.
        removed: Positions of tombstones of outcomes that no owner has written, by event id.
        repeated: Positions of outcomes in a second partition, by event id.
        recent: Partitions of the latest outcomes, by event id.
    """

    received: int = 0
    unproven: int = 0
    waiting: dict[int, dict[int, Unsettled]] = {}
    parked: dict[str, int] = {}
    removed: dict[str, str] = {}
    repeated: dict[str, str] = {}
    recent: dict[str, int] = {}


class DeliveryFold:
    """Applies the records of deliveries.

    Args:
        state: State after the records that were applied before.
    """

    def __init__(self, state: DeliveryState) -> None:
        self.state = state
        self._positions: dict[str, set[tuple[int, int]]] = {}
        for partition, waiting in state.waiting.items():
            for offset, delivery in waiting.items():
                self._positions.setdefault(delivery.event_id, set()).add((partition, offset))

    # -- records

    def receive(self, partition: int, offset: int, delivery: Unsettled) -> None:
        """Apply a record of `webhooks`."""
        state = self.state
        state.received += not delivery.replayed
        state.waiting.setdefault(partition, {})[offset] = delivery
        self._positions.setdefault(delivery.event_id, set()).add((partition, offset))
        if len(self._positions) > _UNSETTLED_MAX:
            oldest = next(iter(state.waiting[partition]))
            self._forget(partition, oldest)
            state.unproven += 1

    def settle(
        self,
        event_id: str,
        status: str,
        parked_at_ms: int,
        first: tuple[int, int],
        partition: int | None,
        position: str,
    ) -> None:
        """Apply the outcome of a delivery; it may replace an earlier one.

        Args:
            event_id: The delivery.
            status: Its status.
            parked_at_ms: When it began to wait for its connection, Unix milliseconds.
            first: Partition and offset of its first record; others are copies.
            partition: Partition of the outcome; None if it may differ from that of an earlier one,
                because the delivery was reprocessed.
            position: Position of the outcome.
        """
        state = self.state
        for where in self._positions.pop(event_id, ()):
            delivery = state.waiting[where[0]].pop(where[1])
            state.received -= where != first and not delivery.replayed
        state.removed.pop(event_id, None)
        if status == _PARKED:
            state.parked[event_id] = parked_at_ms
            if len(state.parked) > _PARKED_MAX:
                del state.parked[next(iter(state.parked))]
        else:
            state.parked.pop(event_id, None)
        if partition is None:
            return
        if state.recent.pop(event_id, partition) != partition:
            _remember(state.repeated, event_id, position)
        state.recent[event_id] = partition
        if len(state.recent) > _RECENT_MAX:
            del state.recent[next(iter(state.recent))]

    def drop_copy(self, partition: int, offset: int) -> None:
        """Apply the trace of a duplicate at a position of `webhooks`."""
        delivery = self._forget(partition, offset)
        if delivery is not None:
            self.state.received -= not delivery.replayed

    def refuse(self, partition: int, offset: int) -> None:
        """Apply a dead letter of a record of `webhooks` that is no known delivery."""
        self._forget(partition, offset)

    def wipe(self, event_id: str) -> None:
        """Apply the tombstone of a delivery."""
        state = self.state
        for partition, offset in self._positions.pop(event_id, ()):
            state.waiting[partition].pop(offset, None)
        for positions in (state.parked, state.removed, state.repeated):
            positions.pop(event_id, None)

    def remove_outcome(self, event_id: str, position: str, *, by_owner: bool) -> None:
        """Apply the tombstone of an outcome, which only a wipe writes, by the owner."""
        self.state.parked.pop(event_id, None)
        if not by_owner:
            _remember(self.state.removed, event_id, position)

    def _forget(self, partition: int, offset: int) -> Unsettled | None:
        delivery = self.state.waiting.get(partition, {}).pop(offset, None)
        if delivery is not None:
            positions = self._positions[delivery.event_id]
            positions.discard((partition, offset))
            if not positions:
                del self._positions[delivery.event_id]
        return delivery

    # -- laws

    def lost(self, passed: Mapping[int, int], now_ms: int) -> Iterator[Violation]:
        """Yield deliveries without an outcome that the pipeline has passed.

        Those of which nothing can be proven any more are counted, and forgotten.

        Args:
            passed: Offsets by partition of `webhooks`: the outcomes of all deliveries before them
                were durable before the ends were queried up to which records were applied.
            now_ms: The time, in Unix milliseconds.
        """
        expired: list[tuple[int, int]] = []
        for partition, waiting in self.state.waiting.items():
            end = passed.get(partition, 0)
            for offset, delivery in waiting.items():
                if offset >= end:
                    continue
                if INDEFINITELY < delivery.proof_until_ms < now_ms:
                    expired.append((partition, offset))
                    continue
                yield Violation(
                    Law.DELIVERY_LOST,
                    f"webhooks/{partition}@{offset}",
                    f"expected an outcome of the delivery {delivery.event_id}, found none, though "
                    f"the pipeline has processed the partition up to offset {end - 1}",
                )
        for position in expired:
            self._forget(*position)
        self.state.unproven += len(expired)

    def late(self, passed: Mapping[int, int], now_ms: int, park_for_ms: int) -> Iterator[Violation]:
        """Yield partitions with deliveries that wait for too long.

        Args:
            passed: As for `lost`.
            now_ms: The time, in Unix milliseconds.
            park_for_ms: How long a delivery waits for its connection, in milliseconds.
        """
        for partition, waiting in self.state.waiting.items():
            end = passed.get(partition, 0)
            offsets = [
                offset
                for offset, delivery in waiting.items()
                if offset >= end and delivery.at_ms < now_ms - LATE_AFTER_MS
            ]
            if offsets:
                yield Violation(
                    Law.DELIVERY_LATE,
                    f"webhooks/{partition}",
                    f"expected outcomes within {LATE_AFTER_MS // 60_000} minutes, found none of "
                    f"some deliveries; the first is at offset {min(offsets)}",
                )
        oldest = min(self.state.parked.values(), default=now_ms)
        if oldest < now_ms - park_for_ms - _PARKED_GRACE_MS:
            yield Violation(
                Law.DELIVERY_LATE,
                "waiting",
                f"expected waits for connections to end within {park_for_ms // 1000} s, found a "
                f"delivery that began to wait at {oldest}",
            )

    def changed_outcomes(self) -> Iterator[Violation]:
        """Yield outcomes that were removed by others, or are in two partitions."""
        for event_id, position in self.state.removed.items():
            yield Violation(
                Law.OUTCOME_REMOVED,
                event_id,
                f"expected only a wipe to remove an outcome, found a tombstone at {position} that "
                "no pipeline worker has written",
            )
        for event_id, position in self.state.repeated.items():
            yield Violation(
                Law.OUTCOME_REPEATED,
                event_id,
                f"expected the outcome of a delivery in one partition, found another at {position}",
            )

    def count_waiting(self, passed: Mapping[int, int]) -> int:
        """Return the number of deliveries that the pipeline has not passed."""
        return sum(
            offset >= passed.get(partition, 0)
            for partition, waiting in self.state.waiting.items()
            for offset in waiting
        )


def _remember(positions: dict[str, str], event_id: str, position: str) -> None:
    # The first ones: their findings are open already.
    if event_id in positions or len(positions) < _CHANGED_MAX:
        positions[event_id] = position
