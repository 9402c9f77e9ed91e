"""Goal: whatever goes wrong, nothing is left of a user who was wiped, and all of everybody else.

Method: worlds as in `test_pipeline`, in which an order to wipe comes among the deliveries of two
users, with copies, replays and new deliveries after it. Half of them are quiet when it comes.
"""

import random
from typing import NamedTuple, TypeAlias

import msgspec
import pytest

from headwater.processors.wipes import SKIPPED_MS, is_before
from headwater.schemas.records import WebhookReceived
from headwater.schemas.tables import CONNECTIONS, Row
from headwater.schemas.topics import WEBHOOKS
from headwater.streams.kafka.dead_letters import REPLAY_OF
from tests.oracle import fold
from tests.simulation.pipeline import USER_PREFIX
from tests.simulation.test_pipeline import delivery
from tests.simulation.wiping import WipingWorld

SEEDS = range(200)
USER = "user_1"
#: Subjects of the user who is wiped; `t2` is the other's.
THEIRS = ("t1", "o1")
KINDS = ("auth", "daily", "daily", "sleep", "deauth", "user_reauth", "nutrition", "odd")
Rows: TypeAlias = dict[str, dict[tuple[str, ...], Row]]
Values: TypeAlias = dict[str, dict[tuple[str, ...], tuple[object, ...]]]
REPLAYED = [(REPLAY_OF, b"a replay")]


class Ended(NamedTuple):
    """A world that has come to rest.

    Shape:  covered are deliveries of which nothing may be left, counted those that rows come from;
            amid are the rows of a rebuild while the wipe is under way; exact if nothing new came
            before all partitions had read the order.
    """

    world: WipingWorld
    covered: list[WebhookReceived]
    counted: list[tuple[int, int, WebhookReceived]]
    amid: Rows
    is_exact: bool
    comes_back: bool

    @property
    def told(self) -> str:
        return "\n".join(self.world.trace)


def is_theirs(one: WebhookReceived) -> bool:
    return one.reference == USER or one.subject in THEIRS


def drawn(draw: random.Random, numbers: range, *, named: bool) -> list[WebhookReceived]:
    made = []
    for number in numbers:
        subject = draw.choice(["t1", "t1", "t1", "o1", "t2"])
        one = delivery(draw, draw.choice(KINDS), subject, number)
        if named and subject in THEIRS:
            one = msgspec.structs.replace(one, reference=USER)
        made.append(one)
    return made


def run(seed: int, *, searches: bool = True) -> Ended:
    draw = random.Random(seed)
    is_quiet, is_prompt, returns = (draw.random() < 0.5 for _ in range(3))
    world = WipingWorld(seed, [], searches=searches)
    early = drawn(draw, range(draw.randint(1, 15)), named=not is_quiet)
    before = [(*world.deliver(one), one) for one in early]
    for _ in range(draw.randint(0, 40)):
        world.step(faults=True)
    if is_quiet:
        world.drain()
    connected = {
        subject
        for (subject,), row in world.rows()[CONNECTIONS.name].items()
        if row.values[CONNECTIONS.index["user_id"]] == USER
    }
    between = [one for one in drawn(draw, range(50, 54), named=True) if is_theirs(one)]
    fence = world.order(USER, "w1", between)
    while not is_prompt and not world.has_taken_in("w1", fence):
        world.step(faults=True)
    late = drawn(draw, range(100, 100 + draw.randint(0, 8)), named=False)
    late = [one for one in late if returns or not is_theirs(one)]
    # When deliveries of a wiped user are no longer skipped.
    late = [
        msgspec.structs.replace(
            one,
            sent_at_ms=one.sent_at_ms + 60_000,
            received_at_ms=one.received_at_ms + 2 * SKIPPED_MS,
        )
        for one in late
    ]
    if not is_prompt and not returns:
        push(world, drawn(draw, range(200, 205), named=True))
    covered = [one for one in early if one.reference == USER or one.subject in connected]
    # Of what nobody knows to be theirs compaction may leave a copy, which comes after the wipe.
    known = [one for one in early if one in covered or not is_theirs(one)]
    copies = draw.choices(known, k=draw.randint(0, 5)) if known else []
    draw.shuffle(late)
    after = [(*world.deliver(one), one) for one in late]
    for one in copies:
        world.deliver(one, draw.choice([None, REPLAYED]))
    # A rebuild knows copies by their first ones, if these are still there.
    amid = {} if WEBHOOKS in world.compacted else world.rebuilt()
    for _ in range(draw.randint(0, 80)):
        world.step(faults=True)
    world.drain()
    kept = [item for item in before if not is_theirs(item[2])]
    assert all(is_before(fence, *position) for *position, _ in before)
    return Ended(world, covered, kept + after, amid, not is_prompt, returns)


def push(world: WipingWorld, pushed: list[WebhookReceived]) -> None:
    """A sender that knows nothing of the wipe goes on."""
    for one in pushed:
        if is_theirs(one) and one.type != "auth":
            world.deliver(msgspec.structs.replace(one, received_at_ms=world.now_ms))


@pytest.mark.parametrize("block", range(10))
def test_nothing_is_left_of_the_user_and_all_of_others(block: int):
    for seed in SEEDS[block::10]:
        ended = run(seed)
        world, reported = ended.world, f"seed {seed}\n{ended.told}"
        expected = fold(ended.counted, user_prefix=USER_PREFIX)
        rows = world.rows()
        for result in (rows, world.rebuilt()):
            assert others(result) == others(expected.rows), reported
            if ended.is_exact:
                assert values(theirs(result)) == values(theirs(expected.rows)), reported
        for one in ended.covered:
            assert world.left(one.event_id.encode()) == [], reported
        if WEBHOOKS not in world.compacted:
            # Of a delivery of which a copy came amid the wipe, compaction may leave neither.
            assert world.counted("raw_events") >= len({one.event_id for one in ended.covered}), (
                reported
            )
        if not ended.comes_back:
            for result in (rows, world.rebuilt(), ended.amid):
                assert not values(theirs(result)), reported
            assert world.left(USER.encode()) == [], reported


def theirs(rows: Rows) -> Rows:
    return {
        name: {key: row for key, row in result.items() if key[0] in (USER, *THEIRS)}
        for name, result in rows.items()
    }


def others(rows: Rows) -> Values:
    mine = theirs(rows)
    return values(
        {
            name: {key: row for key, row in result.items() if key not in mine[name]}
            for name, result in rows.items()
        }
    )


def values(rows: Rows) -> Values:
    """Rows without stamps: compaction may have kept a copy, which lies elsewhere."""
    return {
        name: {key: row.values for key, row in result.items()}
        for name, result in rows.items()
        if result
    }


def test_a_system_that_does_not_look_for_records_is_found_out():
    ended = (run(seed, searches=False) for seed in SEEDS)
    assert any(item.world.left(one.event_id.encode()) for item in ended for one in item.covered)
