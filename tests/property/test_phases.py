"""The phases of partitions: no sequence of changes leaves the table, or owns without a claim."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.schemas.errors import InvariantViolation
from headwater.streams.ownership.phases import TRANSITIONS, Change, OwnedPartitions, Phase

NUMBERS = range(3)
CHANGES = st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(Change)), max_size=60)


class Model:
    """What is known of one partition, without phases."""

    def __init__(self) -> None:
        self.is_assigned = False
        self.is_acquired = False
        self.is_blocked = False

    def allows(self, change: Change) -> bool:
        acquiring = self.is_assigned and not self.is_acquired and not self.is_blocked
        return change is not Change.ACQUIRED or acquiring

    def apply(self, change: Change) -> None:
        match change:
            case Change.ASSIGNED:
                self.is_assigned = True
            case Change.RELEASED:
                self.is_assigned = self.is_acquired = self.is_blocked = False
            case Change.ACQUIRED:
                self.is_acquired = True
            case Change.BLOCKED:
                self.is_blocked = self.is_assigned
            case Change.DISCARDED:
                self.is_acquired = False

    @property
    def phase(self) -> Phase:
        if not self.is_assigned:
            return Phase.UNASSIGNED
        if self.is_blocked:
            return Phase.WAITING
        return Phase.OWNED if self.is_acquired else Phase.ACQUIRING


@given(changes=CHANGES)
def test_phases_are_what_the_changes_say_and_an_impossible_change_changes_nothing(
    changes: list[tuple[int, Change]],
):
    partitions, models = OwnedPartitions(), {number: Model() for number in NUMBERS}
    for number, change in changes:
        model = models[number]
        if not model.allows(change):
            with pytest.raises(InvariantViolation, match=f"partition {number} in a phase"):
                partitions.change(number, change)
        elif change is Change.BLOCKED:
            partitions.block(number, "a newer record")
            model.apply(change)
        else:
            partitions.change(number, change)
            model.apply(change)
        for other in NUMBERS:
            assert partitions.phase(other) is models[other].phase
            assert (other in partitions.waiting) == (models[other].phase is Phase.WAITING)
        assert partitions.assigned() == [item for item in NUMBERS if models[item].is_assigned]


@given(assignments=st.lists(st.sets(st.sampled_from(NUMBERS)), max_size=10))
def test_an_assignment_names_all_partitions_of_a_worker(assignments: list[set[int]]):
    partitions = OwnedPartitions()
    for numbers in assignments:
        before = partitions.rebalances
        partitions.assign(numbers)
        assert partitions.assigned() == sorted(numbers)
        assert partitions.rebalances > before
    partitions.revoke()
    assert partitions.assigned() == []


def test_the_table_has_every_change_in_every_phase_except_that_only_acquiring_ends_in_owning():
    missing = set(product(Phase, Change)) - TRANSITIONS.keys()
    assert missing == {(phase, Change.ACQUIRED) for phase in Phase if phase is not Phase.ACQUIRING}
    ways = {before for before in TRANSITIONS if TRANSITIONS[before] is Phase.OWNED}
    assert ways == {(Phase.ACQUIRING, Change.ACQUIRED), (Phase.OWNED, Change.ASSIGNED)}
    assert set(TRANSITIONS.values()) == set(Phase)
