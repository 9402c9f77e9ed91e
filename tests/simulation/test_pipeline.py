"""Goal: whatever goes wrong, the pipeline comes to what the pure fold of the raw topic says.

Method: a thousand worlds, each from one seed: users, connections, days and nights, duplicates, bad
bodies, in any order; a stage that crashes in the middle of an append, restores, and is rebalanced.
"""

import json
import random

import pytest

from headwater.processors.providers.envelope import event_id
from headwater.schemas.records import WebhookReceived
from tests.oracle import fold
from tests.simulation.pipeline import PARK_FOR_MS, PARTITIONS, USER_PREFIX, Rules, World

SEEDS = range(500)
#: A seed that shows what comes of it when readers pass over nothing.
RARE = 1_371


def delivery(draw: random.Random, kind: str, subject: str, number: int) -> WebhookReceived:
    reference = f"user_{subject[1:]}" if kind == "auth" or draw.random() < 0.3 else None
    user = {"user_id": subject, "provider": "GARMIN", "reference_id": reference}
    day = draw.randint(1, 3)
    start, end = f"2026-06-{day:02}T22:00:00+02:00", f"2026-06-{day + 1:02}T06:30:00+02:00"
    record: dict[str, object] = {"metadata": {"start_time": start, "end_time": end}}
    body: dict[str, object] = {"type": kind, "user": user, "number": number}
    if kind == "daily":
        record["distance_data"] = {"steps": draw.choice([None, 1_000, 2_000, -1])}
        record["heart_rate_data"] = {"summary": {"resting_hr_bpm": draw.choice([None, 50, 51])}}
        body["data"] = [record] * draw.randint(0, 2)
    if kind == "sleep":
        record["heart_rate_data"] = {"summary": {"resting_hr_bpm": draw.choice([None, 44, 45])}}
        body["data"] = [record]
    if kind == "user_reauth":
        old = {"user_id": "o" + subject[1:], "provider": "GARMIN"}
        body = {"type": kind, "new_user": user, "old_user": old, "number": number}
    raw = json.dumps(body).encode()
    if draw.random() < 0.05:
        raw = raw.replace(b'"data"', b'"data": 7, "was"')
    return WebhookReceived(
        event_id=event_id("terra", kind, subject, raw),
        request_id=f"request-{number}",
        source="terra",
        type=kind,
        subject=subject,
        reference=reference,
        sent_at_ms=1_783_000_000_000 + draw.randint(0, 3) * 1_000,
        updated_at_ms=draw.randint(0, 1),
        received_at_ms=1_783_000_000_000,
        body=raw,
    )


def _deliveries(draw: random.Random) -> list[WebhookReceived]:
    kinds = ["auth", "daily", "daily", "sleep", "deauth", "user_reauth", "nutrition", "odd"]
    subjects = ["t1", "t2", "o1", ""]
    made = [
        delivery(draw, draw.choice(kinds), draw.choice(subjects[:3] * 5 + subjects[3:]), number)
        for number in range(draw.randint(1, 25))
    ]
    made += draw.choices(made, k=draw.randint(0, 5))
    draw.shuffle(made)
    return made


def played(seed: int, rules: Rules | None = None) -> World:
    """The world of a seed, to its end."""
    draw = random.Random(seed)
    world = World(seed, _deliveries(draw), rules)
    for _ in range(draw.randint(0, 80)):
        world.step(faults=True)
    world.drain()
    return world


@pytest.mark.parametrize("block", range(10))
def test_rows_and_outcomes_are_those_of_the_fold(block: int):
    for seed in SEEDS[block::10]:
        world = played(seed)
        expected = fold(world.raw(), user_prefix=USER_PREFIX)
        reported = f"seed {seed}\n" + "\n".join(world.trace)
        assert world.rows() == expected.rows, reported
        assert world.outcomes() == expected.outcomes, reported


@pytest.mark.parametrize("rules", [Rules(folds=False), Rules(mends=False)], ids=str)
def test_a_world_without_one_of_the_rules_is_found_out(rules: Rules):
    def differs(seed: int) -> bool:
        world = played(seed, rules)
        expected = fold(world.raw(), user_prefix=USER_PREFIX)
        return (world.rows(), world.outcomes()) != (expected.rows, expected.outcomes)

    # It takes a rare course of events: a void record that nobody hides again. If that moves to
    # another seed, the search takes a while.
    assert any(map(differs, (RARE, *range(2_000))))


def test_waiting_ends_in_a_dead_letter_and_nowhere_else():
    for seed in SEEDS[:100]:
        world = played(seed)
        parked = {key for key, (status, _) in world.outcomes().items() if status == "parked"}
        world.now_ms += PARK_FOR_MS + 1_000
        world.tick()
        world.drain()
        after = world.outcomes()
        assert all(after[key] == ("dead", "no_connection_for_terra_user") for key in parked)
        assert "parked" not in {status for status, _ in after.values()}, f"seed {seed}"
        dead = sum(
            len(world.log.records["dead-letters", partition]) for partition in range(PARTITIONS)
        )
        assert dead >= len(parked), f"seed {seed}"
