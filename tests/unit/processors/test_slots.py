"""Slots as they are counted: in order, never too many, and with the limit as it is now."""

from typing import TYPE_CHECKING

import pytest

from headwater.processors.runs.decisions import Decision, Facts, Rejection, Wake
from headwater.processors.runs.slot_keys import slot_scope
from headwater.processors.runs.slots import Concurrency
from headwater.processors.slots.engine import SlotsEngine
from headwater.processors.slots.queue import WAITING_MAX
from headwater.schemas.history import AskSlot, GrantSlot, PostsQueued, ReturnSlot, RunCommand
from tests.fakes.engines import fold
from tests.fakes.records import appended

if TYPE_CHECKING:
    from headwater.processors.slots.queue import SlotsRun


class Limit:
    """The slots of one limit, as their owner has them."""

    def __init__(self, limit: int | None) -> None:
        self.engine = SlotsEngine()
        self.declare(limit)
        self.run: SlotsRun | None = None
        self.granted: list[str] = []

    def declare(self, limit: int | None) -> None:
        self.engine.declare({"order": None if limit is None else Concurrency(limit)})

    def tell(self, command: RunCommand) -> Rejection | None:
        return self._take(self.engine.decide_command(self.run, command, Facts("order", "~", 0, 0)))

    def wake(self) -> Rejection | None:
        assert self.run is not None
        return self._take(self.engine.decide(self.run, Wake(0), 0))

    def _take(self, decided: Decision) -> Rejection | None:
        if isinstance(decided, Rejection):
            return decided
        sequence = self.run.sequence if self.run else 0
        record = appended(*decided, instance_id="~", sequence=sequence)
        self.run = fold(self.run, record)
        for event in decided:
            if isinstance(event, PostsQueued):
                commands = [post.command for post in event.posts]
                self.granted += [c.ticket for c in commands if isinstance(c, GrantSlot)]
        assert self.run is not None
        again = self.engine.decode(self.engine.encode(self.run))
        assert again == self.run
        return None

    def ask(self, *names: str) -> None:
        for name in names:
            self.tell(AskSlot(f"{name}#0#seed"))

    def give_back(self, *names: str) -> None:
        for name in names:
            self.tell(ReturnSlot(f"{name}#0#seed"))

    def names(self) -> str:
        return "".join(ticket[0] for ticket in self.granted)


def test_slots_are_given_in_the_order_of_arrival():
    limit = Limit(2)
    limit.ask(*"abcdef")
    assert limit.names() == "ab"
    limit.give_back("b", "d")
    assert limit.names() == "abc"
    limit.give_back("a", "c", "e")
    assert limit.names() == "abcef"
    assert limit.run is not None
    assert not limit.run.is_forgotten
    limit.give_back("f")
    assert limit.run.is_forgotten


def test_what_is_asked_or_returned_twice_changes_nothing():
    limit = Limit(1)
    limit.ask(*"ab")
    for command in (AskSlot("a#0#seed"), AskSlot("b#0#seed"), ReturnSlot("x#0#seed")):
        refused = limit.tell(command)
        assert refused is not None
        assert refused.code == "STALE"
    limit.give_back("a")
    assert limit.tell(ReturnSlot("a#0#seed")) is not None
    assert limit.names() == "ab"


def test_a_larger_limit_gives_more_slots_when_it_is_known():
    limit = Limit(1)
    limit.ask(*"abcd")
    assert limit.run is not None
    assert limit.engine.next_wake_ms(limit.run) is None
    limit.declare(3)
    assert limit.engine.next_wake_ms(limit.run) is not None
    limit.wake()
    assert limit.names() == "abc"
    assert limit.engine.next_wake_ms(limit.run) is None


def test_with_a_smaller_limit_those_that_have_a_slot_finish_first():
    limit = Limit(3)
    limit.ask(*"abcde")
    limit.declare(1)
    limit.give_back("a", "b")
    assert limit.names() == "abc"
    limit.give_back("c")
    assert limit.names() == "abcd"


def test_without_a_limit_all_who_wait_begin():
    limit = Limit(1)
    limit.ask(*"abc")
    limit.declare(None)
    limit.wake()
    assert limit.names() == "abc"


def test_who_leaves_the_queue_before_a_larger_limit_was_counted_with_has_no_slot():
    limit = Limit(1)
    limit.ask(*"abcd")
    limit.declare(2)
    limit.give_back("b")
    assert limit.names() == "ac"


def test_the_limit_is_known_as_it_was_counted_with():
    limit = Limit(3)
    limit.ask("a")
    assert limit.run is not None
    assert limit.run.limit == 3
    limit.declare(2)
    assert limit.engine.next_wake_ms(limit.run) is not None
    limit.wake()
    assert limit.run.limit == 2
    assert limit.engine.next_wake_ms(limit.run) is None
    limit.declare(4)
    limit.ask("b")
    assert limit.run.limit == 4
    limit.declare(None)
    limit.give_back("a")
    assert limit.run.limit is None


@pytest.mark.parametrize("larger", [6, None])
def test_no_more_slots_are_given_at_once_than_a_record_has_room_for(
    monkeypatch: pytest.MonkeyPatch, larger: int | None
):
    monkeypatch.setattr("headwater.processors.slots.queue.GRANTED_MAX", 2)
    limit = Limit(1)
    limit.ask(*"abcdef")
    limit.declare(larger)
    for result in ("abc", "abcde", "abcdef"):
        assert limit.run is not None
        assert limit.engine.next_wake_ms(limit.run) is not None
        limit.wake()
        assert limit.names() == result
    assert limit.engine.next_wake_ms(limit.run) is None


def test_a_new_owner_looks_at_those_for_whom_somebody_waits():
    limit = Limit(1)
    for name, waits in (("a", False), ("b", True)):
        limit.ask(name)
        assert limit.run is not None
        assert limit.engine.is_runnable(limit.run, 0) is waits


def test_a_workflow_that_is_not_known_here_keeps_its_limit():
    limit = Limit(2)
    limit.ask(*"abcd")
    limit.engine.declare({})
    limit.give_back("a")
    assert limit.names() == "abc"


def test_of_a_workflow_that_was_never_known_here_one_run_begins():
    limit = Limit(2)
    limit.engine.declare({})
    limit.ask(*"ab")
    assert limit.names() == "a"


def test_a_queue_has_an_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headwater.processors.slots.queue.WAITING_MAX", 2)
    assert WAITING_MAX == 100_000
    limit = Limit(1)
    limit.ask(*"abc")
    refused = limit.tell(AskSlot("d#0#seed"))
    assert refused is not None
    assert refused.code == "SLOT_QUEUE_FULL"


@pytest.mark.parametrize("key", ["params.n", "params.n * 2", "'n-' + string(params.n)"])
def test_a_key_does_not_depend_on_how_json_wrote_a_number(key: str):
    scopes = {slot_scope(Concurrency(1, key), f'{{"n": {n}}}') for n in ("7", "7.0", "0.7e1")}
    assert len(scopes) == 1
    assert scopes != {slot_scope(Concurrency(1, key), '{"n": 7.5}')}


@pytest.mark.parametrize(
    "region", ['"\\ud800"', "1e400", "9" * 30, "9" * 5_000, "[" * 5_000 + "]" * 5_000]
)
def test_params_of_which_cel_can_make_nothing_are_refused(region: str):
    refused = slot_scope(Concurrency(1, "params.region"), f'{{"region": {region}}}')
    assert isinstance(refused, Rejection), refused
    assert refused.code == "INVALID_PARAMS"
