"""Owning a partition: what counts, what is ours, and what lies between."""

import pytest

from headwater.processors.runs.claims import UNCLAIMED, Claims, epoch_after
from headwater.schemas.epochs import EPOCH
from headwater.schemas.topics import OUTCOMES, WAITING
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.ownership.leases import Gap, PartitionLost
from headwater.streams.pipeline.partition_lease import (
    Fold,
    PipelineLease,
    claim,
)
from headwater.streams.pipeline.partition_state import PartitionState
from tests.fakes.memory_store import MemoryStore


def lease_of(claims: dict[str, int]) -> PipelineLease:
    return PipelineLease(PartitionState(0, MemoryStore()), 5, claims)


def written(key: bytes, epoch: int | None, offset: int) -> Incoming:
    headers = () if epoch is None else ((EPOCH, b"%d" % epoch),)
    return Incoming(WAITING, 0, offset, 0, 0, key, b"v", None, 1, 1, headers)


def claimed(epoch: int, offset: int, unseen: tuple[int, int] | None = None) -> Incoming:
    record: Outgoing = claim(WAITING, 0, "somebody", epoch, unseen)
    headers = tuple(record.headers or ())
    return Incoming(WAITING, 0, offset, 0, 0, record.key, record.value, None, 1, 0, headers)


def test_a_record_is_void_when_a_newer_owner_came_before_it_and_no_owner_is_always_heard():
    claims = Claims()
    assert [claims.admit_epoch(epoch) for epoch in (3, 3, 7, 3, None, 7)] == [
        True, True, True, False, True, True,
    ]  # fmt: skip


def test_an_epoch_is_an_offset_and_greater_where_offsets_began_again():
    assert epoch_after(9, UNCLAIMED) == 9
    assert epoch_after(9, 8) == 9
    assert epoch_after(2, 8) == 11


def test_a_fold_knows_which_keys_end_in_a_void_record():
    fold = Fold()
    result = [
        fold.admit(record)
        for record in (
            written(b"a", 1, 0),
            written(b"b", 1, 1),
            claimed(5, 2),
            written(b"a", 1, 3),
            written(b"b", 1, 4),
            written(b"b", 5, 5),
        )
    ]
    assert result == [True, True, False, False, False, True]
    assert list(fold.hidden[WAITING]) == [b"a"]
    assert (fold.epoch, fold.positions) == (5, {WAITING: 6})


def test_the_last_claim_that_counts_says_where_outcomes_were_not_looked_at():
    fold = Fold()
    for record in (claimed(5, 0, (40, 5)), claimed(3, 1, (10, 3)), claimed(8, 2)):
        fold.admit(record)
    assert fold.unseen == (40, 5)


def test_offsets_that_follow_each_other_are_ours_and_others_are_a_gap():
    tenure = lease_of({WAITING: 10, OUTCOMES: 3})
    assert tenure.appended(WAITING, 0, 11, 4) is None
    assert tenure.appended(WAITING, 0, 17, 1) == Gap(WAITING, 15, 17)
    assert tenure.reached(WAITING, 18) is None
    assert tenure.reached(WAITING, 20) == Gap(WAITING, 18, 20)
    assert tenure.appended(WAITING, 1, 99, 1) is None  # A hop is no business of this partition.
    assert tenure.unseen == (4, 5)


def test_a_batch_that_lies_before_what_was_appended_ends_the_tenure():
    with pytest.raises(PartitionLost, match="at 11 or later, found it at -1"):
        lease_of({WAITING: 10}).appended(WAITING, 0, -1, 1)


def test_of_a_gap_void_records_are_hidden_and_a_newer_owner_ends_the_tenure():
    tenure = lease_of({WAITING: 10})
    counting, hidden = tenure.classify(
        [written(b"a", 4, 11), written(b"b", None, 12), written(b"c", 5, 13), claimed(4, 14)]
    )
    assert [record.key for record in counting] == [b"b"]
    assert list(hidden[WAITING]) == [b"a"]
    with pytest.raises(PartitionLost, match="claimed as 5, found epoch 6 at offset 15"):
        tenure.classify([claimed(6, 15)])
