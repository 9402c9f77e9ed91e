"""Limits of concurrency as owners keep them: who waits rests, and who counts none is forgotten."""

from headwater.processors.runs.slots import Concurrency
from headwater.schemas.history import AskSlot, RestartRun, ReturnSlot, StartRun
from headwater.streams.engine.instance_store import MemoryStore
from tests.fakes.counter import CounterEngine
from tests.unit.streams.test_instance_stores import KEYS, Log, Owned

LIMIT = Concurrency(1)


def acknowledged(owned: Owned, key: str, now_ms: int) -> None:
    """All that an instance had to send is in Kafka."""
    owned.owner.posts_sent(key, 0, now_ms)
    owned.log.history += owned.owner.take_batch().records


def test_a_run_that_waits_for_its_slot_is_not_kept_in_memory():
    owned = Owned(Log(), MemoryStore(), limit=LIMIT)
    owned.tell(StartRun("1"), KEYS[0])
    acknowledged(owned, KEYS[0], now_ms=1)
    assert owned.evict() == 1
    result = owned.owner.instances.find(KEYS[0])
    assert result is not None
    assert result.run.waits_for_slot


def test_whoever_counts_for_nobody_is_forgotten_also_by_the_next_owner():
    log, slots = Log(), "order/~"
    first = Owned(log, MemoryStore(), limit=LIMIT)
    first.tell(AskSlot("a#0#seed"), slots)
    first.tell(ReturnSlot("a#0#seed"), slots)
    acknowledged(first, slots, now_ms=0)
    first.checkpoint()
    second = Owned(log, MemoryStore(), limit=LIMIT)
    second.evict()
    assert second.owner.instances.find(slots) is None


def test_an_instance_that_began_when_its_workflow_was_of_another_kind_has_no_limit():
    log = Log()
    Owned(log, MemoryStore(), kind=CounterEngine.kind).tell(StartRun('{"to": 5}'), KEYS[0])
    second = Owned(log, MemoryStore(), limit=LIMIT)
    second.tell(RestartRun(), KEYS[0])
    result = second.owner.instances.find(KEYS[0])
    assert result is not None
    assert (result.run.run_number, result.run.slot) == (1, None)
