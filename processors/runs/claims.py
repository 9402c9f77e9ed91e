"""Decide which records of a partition count: claims in histories, epochs in compacted topics.

A partition of `workflow-history` has one writer at a time, its owner, but Kafka does not enforce
that: a process that was suspended may wake up and append what it still holds in memory. So a new
owner first appends a claim. The offset of the latest claim is the epoch, every record carries its
writer's epoch, and a record with another epoch than the latest claim before it is void: for the
owner, for the projector, for every reader alike, because all of them fold the same bytes in the
same order. A new owner reads up to its own claim before it appends, so no record that it has not
seen can count. ADR 0006 has the full argument.

An owner of compacted topics claims its partition in all of them, too. But compaction may remove a
claim, so the greatest epoch that was seen replaces the latest claim: a record with a lower epoch
than an earlier record is from a superseded owner.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headwater.processors.runs.slots import Concurrency
from headwater.schemas.history import (
    NO_CAUSE,
    NO_LEADER_EPOCH,
    ClaimedWorkflow,
    HistoryAppended,
    LeaderEpochNoted,
    PartitionClaimed,
)

#: Epoch of a partition that has not been claimed yet.
UNCLAIMED = -1
#: For workflows that declare no types of their params.
NO_PARAMS: Final[Mapping[str, str]] = MappingProxyType({})
#: For workflows without concurrency limits.
NO_LIMITS: Final[Mapping[str, Concurrency]] = MappingProxyType({})


@dataclass(slots=True)
class Claims:
    """The claims of one partition, up to the position that was read.

    Attributes:
        epoch: Offset of the latest claim, or UNCLAIMED; in compacted topics, the greatest epoch.
        cause: Highest offset of a command with an outcome, or NO_CAUSE.
        owner: Owner of the latest claim.
        leader_epoch: Leader epoch of the partition of `workflow-commands` until which all commands
            up to the cause were appended, or NO_LEADER_EPOCH.
    """

    epoch: int = UNCLAIMED
    cause: int = NO_CAUSE
    owner: str = ""
    leader_epoch: int = NO_LEADER_EPOCH

    def admit(self, offset: int, record: HistoryAppended) -> bool:
        """Process the record at an offset of a history, and return whether its events count.

        Must be called once for every record of the partition, in order.

        Returns:
            False for claims, which no run applies, and for records of a superseded owner.
        """
        first = record.events[0]
        if isinstance(first, PartitionClaimed):
            self.epoch, self.owner = offset, first.owner
            return False
        if record.epoch != self.epoch:
            return False
        self.cause = max(self.cause, record.cause)
        if isinstance(first, LeaderEpochNoted):
            self.note(first)
        return True

    def admit_epoch(self, epoch: int | None) -> bool:
        """Process a record of a compacted topic, and return whether it counts.

        Must be called for every record of the partition, in order. A record without an epoch, which
        no owner has written (an operator's tombstone), counts.
        """
        if epoch is None:
            return True
        if epoch < self.epoch:
            return False
        self.epoch = epoch
        return True

    def note(self, noted: LeaderEpochNoted) -> None:
        """Record a leader epoch of the command partition, and that later commands were lost.

        New commands at the offsets of lost ones are executed.
        """
        self.leader_epoch = noted.leader_epoch
        if noted.lost_from >= 0:
            self.cause = min(self.cause, noted.lost_from - 1)


def claim_of(
    owner: str,
    workflows: Mapping[str, str],
    at_ms: int,
    params: Mapping[str, str] = NO_PARAMS,
    limits: Mapping[str, Concurrency] = NO_LIMITS,
) -> HistoryAppended:
    """Return the record by which an owner claims a partition.

    Args:
        owner: Name of the owner.
        workflows: The kinds of the workflows that it can run, by name.
        at_ms: The time, in ms since the epoch.
        params: JSON Schemas of params, for workflows that declare a type.
        limits: Limits of concurrency, by workflow.
    """
    claimed = tuple(
        _claimed(name, kind, params.get(name), limits.get(name))
        for name, kind in sorted(workflows.items())
    )
    return HistoryAppended(
        workflow="",
        instance_id="",
        run_number=0,
        sequence=0,
        epoch=UNCLAIMED,
        cause=NO_CAUSE,
        at_ms=at_ms,
        events=(PartitionClaimed(owner, claimed),),
    )


def _claimed(
    name: str, kind: str, params: str | None, limit: Concurrency | None
) -> ClaimedWorkflow:
    most, key = (None, None) if limit is None else (limit.limit, limit.key)
    return ClaimedWorkflow(name, kind, params=params, limit=most, limit_key=key)


def epoch_after(offset: int, newest: int) -> int:
    """Return the epoch of a claim at an offset of `admissions`.

    It is the offset, or greater than `newest` if the topic was created again and its offsets
    restarted.
    """
    return offset if offset > newest else newest + 1 + offset
