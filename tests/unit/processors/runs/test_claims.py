"""Which records of a partition count."""

import pytest

from headwater.processors.runs.claims import UNCLAIMED, Claims
from headwater.schemas.history import (
    NO_CAUSE,
    NO_LEADER_EPOCH,
    HistoryAppended,
    LeaderEpochNoted,
    LogEvent,
    PartitionClaimed,
    RunPaused,
)
from tests.fakes.records import appended

_CLAIM = PartitionClaimed("me")


def _record(event: LogEvent, epoch: int, cause: int = NO_CAUSE) -> HistoryAppended:
    return appended(event, sequence=1, epoch=epoch, cause=cause)


@pytest.mark.parametrize(
    ("log", "counts"),
    [
        ([], []),
        ([_record(RunPaused(), 0)], [False]),
        ([_record(_CLAIM, -1), _record(RunPaused(), 0)], [False, True]),
        ([_record(_CLAIM, -1), _record(RunPaused(), 1)], [False, False]),
        (
            [_record(_CLAIM, -1), _record(_CLAIM, -1), _record(RunPaused(), 0)],
            [False, False, False],
        ),
        (
            [
                _record(_CLAIM, -1), _record(RunPaused(), 0),
                _record(_CLAIM, -1), _record(RunPaused(), 2),
            ],
            [False, True, False, True],
        ),
    ],
    ids=["empty", "unclaimed", "claimed", "of the future", "superseded", "one after another"],
)  # fmt: skip
def test_a_record_counts_if_it_bears_the_latest_claim(
    log: list[HistoryAppended], counts: list[bool]
):
    claims = Claims()
    assert [claims.admit(offset, record) for offset, record in enumerate(log)] == counts


def test_a_claim_is_known_by_its_offset_and_the_cause_only_grows():
    claims = Claims()
    assert (claims.epoch, claims.cause, claims.owner) == (UNCLAIMED, NO_CAUSE, "")
    claims.admit(4, _record(_CLAIM, -1))
    assert (claims.epoch, claims.owner) == (4, "me")
    for cause, highest in ((3, 3), (NO_CAUSE, 3), (2, 3), (7, 7)):
        claims.admit(9, _record(RunPaused(), 4, cause))
        assert claims.cause == highest


def test_the_cause_of_a_record_that_does_not_count_does_not_either():
    claims = Claims(epoch=4, cause=3)
    assert not claims.admit(9, _record(RunPaused(), 2, cause=8))
    assert claims.cause == 3


def test_commands_at_the_offsets_of_lost_ones_are_new():
    claims = Claims(epoch=4, cause=9)
    assert claims.leader_epoch == NO_LEADER_EPOCH
    assert claims.admit(10, _record(LeaderEpochNoted(2), 4))
    assert (claims.leader_epoch, claims.cause) == (2, 9)
    assert not claims.admit(11, _record(LeaderEpochNoted(3, lost_from=5), 3))
    assert (claims.leader_epoch, claims.cause) == (2, 9), "of a superseded owner"
    assert claims.admit(12, _record(LeaderEpochNoted(2, lost_from=6), 4))
    assert (claims.leader_epoch, claims.cause) == (2, 5)
    assert claims.admit(13, _record(RunPaused(), 4, cause=6))
    assert claims.cause == 6
    assert claims.admit(14, _record(LeaderEpochNoted(2, lost_from=8), 4))
    assert claims.cause == 6, "none of those was decided"
