"""Whose request to Terra is sent next, by a clock of the test's own."""

import pytest

from headwater.gateway.builtin.terra.scheduler import (
    ACCOUNT,
    CONCURRENT,
    FairQueue,
    Lane,
    Party,
    QueueFull,
)

AMARA = Party(Lane.DATA, "user", "amara")
BO = Party(Lane.DATA, "user", "bo")
LAB = Party(Lane.LABS, "user", "amara")


class Requests:
    """Requests whose answers come at once, and when each was sent."""

    def __init__(self, rate: float) -> None:
        self.turns = FairQueue(rate)
        self.now_s = 100.0
        self.sent: list[tuple[Party, float]] = []
        self.parties: dict[int, Party] = {}

    def enqueue(self, party: Party, count: int = 1) -> list[int]:
        numbers = [self.turns.enqueue(party) for _ in range(count)]
        self.parties |= dict.fromkeys(numbers, party)
        return numbers

    def run(self) -> None:
        """Sends until nothing may be sent any more, however long that takes."""
        for _ in range(10_000):
            for number in self.turns.grant(self.now_s):
                self.sent.append((self.parties[number], self.now_s - 100.0))
                self.turns.end(self.parties[number])
            next_s = self.turns.next_s(self.now_s)
            if next_s is None:
                return
            self.now_s = next_s
        raise AssertionError("it does not end")

    def times(self, party: Party) -> list[float]:
        return [at_s for sender, at_s in self.sent if sender == party]


def parties(count: int) -> list[Party]:
    return [Party(Lane.DATA, "connection", str(number)) for number in range(count)]


def test_all_together_send_a_burst_and_then_at_the_rate():
    requests = Requests(4.0)
    for party in parties(8):
        requests.enqueue(party)
    requests.run()
    times = [at_s for _, at_s in requests.sent]
    assert times == pytest.approx([0, 0, 0, 0, 0.25, 0.5, 0.75, 1.0])


def test_a_rate_below_one_a_second_is_kept_too():
    requests = Requests(0.5)
    for party in parties(3):
        requests.enqueue(party)
    requests.run()
    assert [at_s for _, at_s in requests.sent] == pytest.approx([0, 2, 4])


def test_one_party_has_a_quarter_of_the_rate_after_its_burst():
    requests = Requests(100.0)
    requests.enqueue(AMARA, 12)
    requests.run()
    assert requests.times(AMARA) == pytest.approx([0] * 8 + [0.04, 0.08, 0.12, 0.16])


def test_a_party_with_many_requests_makes_another_wait_for_one_of_them_at_most():
    requests = Requests(10.0)
    requests.enqueue(AMARA, 60)
    requests.enqueue(BO, 4)
    requests.run()
    assert requests.times(BO) == pytest.approx([0, 0, 0, 0])
    assert len(requests.times(AMARA)) == 60


def test_what_is_cancelled_while_it_waits_costs_nobody_anything():
    requests = Requests(10.0)
    for party in parties(200):
        for number in requests.enqueue(party):
            requests.turns.cancel(number)
    requests.enqueue(BO)
    requests.run()
    assert requests.times(BO) == [0.0]
    assert requests.turns.waiting == 0


def test_a_turn_that_is_given_back_is_the_next_ones():
    requests = Requests(1.0)
    (number,) = requests.enqueue(AMARA)
    assert [*requests.turns.grant(requests.now_s)] == [number]
    requests.turns.return_turn(AMARA)
    requests.enqueue(BO)
    requests.run()
    assert requests.times(BO) == [0.0]


def test_a_party_that_is_held_holds_nobody_else():
    requests = Requests(10.0)
    requests.turns.block(AMARA, 130.0, 100.0)
    assert requests.turns.blocked_s(AMARA, 100.0) == 30.0
    requests.enqueue(AMARA)
    requests.enqueue(BO)
    requests.enqueue(LAB)
    requests.run()
    assert (requests.times(BO), requests.times(LAB)) == ([0.0], [0.0])
    assert requests.times(AMARA) == [30.0]


def test_the_account_holds_all_but_lab_reports():
    requests = Requests(10.0)
    requests.turns.block(ACCOUNT, 130.0, 100.0)
    for party in (AMARA, BO, LAB):
        requests.enqueue(party)
    requests.run()
    assert requests.times(LAB) == [0.0]
    assert [requests.times(party) for party in (AMARA, BO)] == [[30.0], [30.0]]


def test_lab_reports_go_before_all_else():
    requests = Requests(1.0)
    for party in parties(50):
        requests.enqueue(party)
    requests.enqueue(LAB)
    requests.run()
    assert requests.sent[0] == (LAB, 0.0)


def test_slow_answers_to_one_party_leave_connections_to_others():
    turns = FairQueue(1_000.0)
    for _ in range(64):
        turns.enqueue(AMARA)
    assert len([*turns.grant(1.0)]) < CONCURRENT[Lane.DATA]
    number = turns.enqueue(BO)
    assert [*turns.grant(1.0)] == [number]


def test_so_many_requests_of_a_party_wait_and_no_more():
    turns = FairQueue(1.0)
    for _ in range(64):
        turns.enqueue(AMARA)
    with pytest.raises(QueueFull):
        turns.enqueue(AMARA)
    turns.enqueue(BO)
    assert turns.waiting == 65


def test_nothing_is_remembered_of_parties_that_are_done():
    requests = Requests(100.0)
    for party in parties(500):
        requests.enqueue(party)
        requests.turns.block(party, 101.0, 100.0)
    requests.run()
    requests.now_s += 60.0
    requests.run()
    assert requests.turns.remembered == 0


def test_holds_are_bounded():
    turns = FairQueue(100.0)
    for party in parties(20_000):
        turns.block(party, 1e9, 0.0)
    assert turns.remembered <= 10_000
    assert turns.blocked_s(parties(20_000)[-1], 0.0) == 3_600.0
