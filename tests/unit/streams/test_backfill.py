"""The past of a connection is asked for once for every time that it is active."""

import json

import pytest

from headwater.schemas.codec import decode
from headwater.schemas.history import StartRun
from headwater.schemas.records import EffectDecided
from headwater.schemas.topics import EFFECTS
from headwater.streams.kafka.dead_letters import REPLAY_OF
from headwater.streams.kafka.records import Incoming
from tests.unit.streams.test_intake import NOW, Owner, intake_of, on, raw, read_back, received, step

MINUTE = 60_000
USER = {"user_id": "t1", "provider": "GARMIN", "reference_id": "user_1"}


def delivery(
    type_: str, minute: int, offset: int, *, user: str = "t1", **headers: bytes
) -> Incoming:
    """A delivery about a connection, signed at a minute."""
    body = json.dumps(
        {"type": type_, "status": "success", "user": USER | {"user_id": user}, "at": minute}
    )
    return raw(
        received(
            event_id=f"{type_}-{user}-{minute}",
            type=type_,
            subject=user,
            body=body.encode(),
            reference="user_1",
            sent_at_ms=NOW + minute * MINUTE,
        ),
        offset,
        headers=tuple(headers.items()),
    )


def started(intake: Owner, *records: Incoming) -> list[str]:
    """The instances that deliveries start, one after the other."""
    result = []
    for record in records:
        effects = [decode(item.value, EffectDecided) for item in on(step(intake, record), EFFECTS)]
        assert {effect.workflow for effect in effects} <= {"terra-backfill"}
        result += [effect.instance_id for effect in effects]
    return result


@pytest.fixture
def intake() -> Owner:
    return intake_of()


def test_a_new_connection_starts_one_that_says_whose_it_is_and_until_when(intake: Owner):
    (record,) = on(step(intake, delivery("auth", 0, 0)), EFFECTS)
    effect = decode(record.value, EffectDecided)
    assert (effect.name, effect.workflow, effect.instance_id) == (
        "terra-backfill",
        "terra-backfill",
        "t1-0",
    )
    assert isinstance(effect.command, StartRun)
    assert json.loads(effect.command.params) == {
        "terra_user_id": "t1",
        "user_id": "user_1",
        "until": "2026-07-02",
    }


def test_an_auth_that_only_repeats_starts_nothing(intake: Owner):
    assert started(intake, delivery("auth", 0, 0), delivery("auth", 5, 1)) == ["t1-0"]


def test_a_connection_that_comes_back_starts_another(intake: Owner):
    closed = NOW + 2 * MINUTE
    again = [delivery("auth", 0, 0), delivery("deauth", 2, 1), delivery("auth", 5, 2)]
    assert started(intake, *again, delivery("auth", 7, 3)) == ["t1-0", f"t1-{closed}"]


def test_a_closing_that_comes_last_shows_that_it_had_come_back(intake: Owner):
    closed = NOW + 2 * MINUTE
    late = [delivery("auth", 0, 0), delivery("auth", 5, 1), delivery("deauth", 2, 2)]
    assert started(intake, *late) == ["t1-0", f"t1-{closed}"]


def test_an_opening_that_comes_after_its_closing_starts_nothing(intake: Owner):
    assert started(intake, delivery("deauth", 2, 0), delivery("auth", 0, 1)) == []


def test_a_delivery_that_is_processed_again_names_the_same_instance(intake: Owner):
    first = delivery("auth", 0, 0)
    assert started(intake, first, first) == ["t1-0", "t1-0"]
    again = delivery("auth", 0, 9, **{REPLAY_OF: b"0@0"})
    assert started(intake, delivery("auth", 5, 1), again) == []


def test_an_id_of_terras_that_no_instance_can_have_is_hashed(intake: Owner):
    (result,) = started(intake, delivery("auth", 0, 0, user="a b/c"))
    assert result.endswith("-0")
    assert result.removesuffix("-0").isalnum()


def test_it_is_started_where_the_row_of_the_connection_is():
    intake = intake_of(partitions=4)
    emitted = []
    for partition in range(4):
        user = f"t{partition}"
        for hop in step(intake, delivery("auth", 0, 0, user=user), at=partition):
            if hop.topic == "unresolved":
                emitted += on(step(intake, read_back(hop), at=hop.partition or 0), EFFECTS)
            elif hop.topic == EFFECTS:
                emitted.append(hop)
    result = sorted(decode(item.value, EffectDecided).instance_id for item in emitted)
    assert result == ["t0-0", "t1-0", "t2-0", "t3-0"]
