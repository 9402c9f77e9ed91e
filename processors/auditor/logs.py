"""Offsets only grow: the ends of all partitions, and the last record that was read of each."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from headwater.processors.auditor.findings import Violation
from headwater.schemas.auditor import Law

#: How long a cut is a finding, although the rest of the log was verified again.
_CUT_SHOWN_MS: Final = 60 * 60 * 1000


class ReadPosition(msgspec.Struct, frozen=True, array_like=True):
    """Up to where a partition was read.

    Attributes:
        next_offset: The next offset.
        leader_epoch: Leader epoch of the record before, or -1.
    """

    next_offset: int
    leader_epoch: int = -1


class Cut(NamedTuple):
    """A partition that lacks what was read of it.

    Attributes:
        topic: The topic.
        partition: The partition.
        end: Its end, or where the log was cut.
        known: The offset up to which it had records.
    """

    topic: str
    partition: int
    end: int
    known: int


class CutNoted(msgspec.Struct, frozen=True, array_like=True):
    """When a cut was noted, Unix milliseconds, and its details."""

    at_ms: int
    detail: str


class LogState(msgspec.Struct):
    """State of `LogFold`, which is stored.

    Attributes:
        ends: Greatest known end offsets, by topic and partition.
        cut: Cuts by partition, as topic/partition.
    """

    ends: dict[str, dict[int, int]] = {}
    cut: dict[str, CutNoted] = {}


class LogFold:
    """Applies the end offsets of partitions.

    Args:
        state: State after the ends that were applied before.
    """

    def __init__(self, state: LogState) -> None:
        self.state = state

    def apply_ends(self, topic: str, ends: Iterable[int]) -> list[Cut]:
        """Apply the current ends of all partitions of a topic; return those that were cut."""
        known = self.state.ends.setdefault(topic, {})
        cuts = []
        for partition, end in enumerate(ends):
            before = known.get(partition, 0)
            if end < before:
                cuts.append(Cut(topic, partition, end, before))
            known[partition] = end
        return cuts

    def apply_missing(self, topics: Iterable[str]) -> list[Cut]:
        """Apply that topics no longer exist; return their partitions that had records."""
        cuts = []
        for topic in topics:
            known = self.state.ends.pop(topic, {})
            cuts += [Cut(topic, partition, 0, end) for partition, end in known.items() if end]
        return cuts

    def note(self, cut: Cut, now_ms: int) -> None:
        """Note that a partition was cut."""
        detail = (
            f"expected records up to offset {cut.known - 1}, found that the log ends before offset "
            f"{cut.end}, or is another one: records were lost, or the topic was created again"
        )
        self.state.cut[f"{cut.topic}/{cut.partition}"] = CutNoted(now_ms, detail)

    def verified(self, now_ms: int) -> None:
        """Forget cuts of some time ago: what is left of all topics was verified since."""
        self.state.cut = {
            partition: noted
            for partition, noted in self.state.cut.items()
            if noted.at_ms > now_ms - _CUT_SHOWN_MS
        }

    def violations(self) -> Iterator[Violation]:
        """Yield the partitions that were cut."""
        for partition, noted in self.state.cut.items():
            yield Violation(Law.LOG_CUT, partition, noted.detail)
