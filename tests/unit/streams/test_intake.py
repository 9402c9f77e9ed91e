"""Intake as plain code: records in, records out."""

import dataclasses

import msgspec
import pytest

from headwater.gateway.settings.providers import installed_providers
from headwater.processors.providers.envelope import event_id, occurrence_of
from headwater.processors.providers.provider import Placement, Providers
from headwater.processors.providers.results import Effect, Normalized, NormalizeResult
from headwater.processors.providers.terra.auth import normalize_auth
from headwater.processors.triggers.rules import read_rules
from headwater.schemas.codec import decode, encode
from headwater.schemas.history import StartRun
from headwater.schemas.providers.terra import Daily, Delivery, Envelope, decode_daily
from headwater.schemas.records import (
    DuplicateDropped,
    EffectDecided,
    OutcomeRecorded,
    WebhookAdmitted,
    WebhookReceived,
)
from headwater.schemas.tables import CONNECTIONS
from headwater.schemas.topics import (
    ADMISSIONS,
    DEAD_LETTERS,
    EFFECTS,
    EVENTS,
    OUTCOMES,
    TRACES,
    UNRESOLVED,
    WAITING,
    WEBHOOKS,
)
from headwater.streams.kafka.dead_letters import (
    IF_WAITING,
    KEY,
    NO_EFFECTS,
    REPLAY_OF,
    RULE,
    text_header,
)
from headwater.streams.kafka.records import Incoming, Outgoing, partition_of
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.pipeline.partition_state import PartitionCheckpoint, PartitionState
from headwater.streams.pipeline.processing import admitted
from headwater.streams.pipeline.record_batch import phases
from tests.commit_units import emitted_by
from tests.fakes.memory_store import MemoryStore

PROVIDERS = installed_providers()
NOW = 1_783_000_000_000
DAILY = b"""{"type": "daily", "user": {"user_id": "t1", "provider": "GARMIN"},
 "data": [{"metadata": {"start_time": "2026-07-01T00:00:00+01:00"},
           "distance_data": {"steps": 100}}]}"""
AUTH = b"""{"type": "auth", "status": "success",
 "user": {"user_id": "t1", "provider": "GARMIN", "reference_id": "user_1"}}"""


def received(**changes: object) -> WebhookReceived:
    fields: dict[str, object] = {
        "event_id": "e1",
        "request_id": "r1",
        "source": "terra",
        "type": "daily",
        "subject": "t1",
        "reference": None,
        "sent_at_ms": NOW,
        "updated_at_ms": 0,
        "received_at_ms": NOW,
        "body": DAILY,
    }
    return WebhookReceived(**(fields | changes))


def incoming(topic: str, key: bytes, value: bytes | None, offset: int = 0, **more: object):
    record = Incoming(topic, 0, offset, NOW, 0, key, value, None, len(key), 0, ())
    return dataclasses.replace(record, **more)


def raw(delivery: WebhookReceived, offset: int = 0, **more: object):
    return incoming(WEBHOOKS, delivery.event_id.encode(), encode(delivery), offset, **more)


def on(emitted: list[Outgoing], topic: str) -> list[Outgoing]:
    return [record for record in emitted if record.topic == topic]


def read_back(record: Outgoing, offset: int = 0):
    headers = tuple(record.headers or ())
    result = incoming(record.topic, record.key or b"", record.value, offset, headers=headers)
    return dataclasses.replace(result, partition=record.partition)


class Owner:
    """Intake, and the states of all partitions."""

    def __init__(self, providers: Providers, partitions: int, rules: str) -> None:
        self.intake = Intake(
            placement=Placement(providers, "user_"),
            partitions=partitions,
            park_for_ms=1_000,
            rules=read_rules(rules),
        )
        self.states = [PartitionState(number, MemoryStore()) for number in range(partitions)]


def intake_of(providers: Providers = PROVIDERS, partitions: int = 1, rules: str = "") -> Owner:
    return Owner(providers, partitions, rules)


@pytest.fixture
def intake() -> Owner:
    return intake_of()


def step(intake: Owner, *records: Incoming, at: int = 0, now_ms: int = NOW) -> list[Outgoing]:
    """A batch of one topic, read at a partition, and durable."""
    state = intake.states[at]
    emitted = emitted_by(intake.intake, state, records, now_ms, records[0].topic)
    state.write(PartitionCheckpoint())
    return emitted


def restored(intake: Owner, *records: Incoming) -> None:
    for record in records:
        intake.states[0].restore_record(record)
    intake.states[0].write(PartitionCheckpoint())


def tick(intake: Owner, now_ms: int) -> list[Outgoing]:
    emitted = intake.intake.tick(intake.states[0], now_ms)
    intake.states[0].write(PartitionCheckpoint())
    return emitted


def outcomes(emitted: list[Outgoing]) -> dict[str, OutcomeRecorded]:
    result = [decode(record.value, OutcomeRecorded) for record in on(emitted, OUTCOMES)]
    return {outcome.event_id: outcome for outcome in result}


def key_in(letter: Outgoing) -> bytes | None:
    """The key of the record that a dead letter is of; its own is another."""
    assert letter.key is not None
    assert letter.key.startswith(b'["')
    return dict(letter.headers or ()).get(KEY)


def letters(emitted: list[Outgoing]) -> list[dict[str, bytes]]:
    return [dict(letter.headers or ()) for letter in on(emitted, DEAD_LETTERS)]


AUTH_OF_1 = {"event_id": "auth", "type": "auth", "body": AUTH, "reference": "user_1"}


@pytest.mark.parametrize(
    ("changes", "owner"),
    [
        ({"reference": "user_1"}, "user_1"),
        ({"reference": "somebody"}, "t1"),
        (AUTH_OF_1, "t1"),
        ({"type": "deauth"}, "t1"),
        ({"type": "nutrition"}, "t1"),
        ({"type": "nutrition", "reference": "user_1"}, "user_1"),
        ({"type": "nutrition", "subject": ""}, "e1"),
        ({"type": "auth", "body": AUTH, "subject": ""}, "e1"),
        ({"source": "nobody"}, "t1"),
    ],
)
def test_a_delivery_lies_where_what_it_changes_is_owned(changes: dict[str, object], owner: str):
    assert Placement(PROVIDERS, "user_").owner_of(received(**changes)) == owner


def test_the_ordinary_delivery_is_done_in_one_step_and_all_of_it_in_one_partition():
    partition = partition_of(b"user_1", 4)
    emitted = step(intake_of(partitions=4), raw(received(reference="user_1")), at=partition)
    assert {record.topic for record in emitted} == {ADMISSIONS, OUTCOMES, "daily-summary", "users"}
    assert {record.partition for record in emitted} == {partition}


def at_subject(partitions: int) -> tuple[Owner, int]:
    """An intake of many partitions that knows the user of t1, and the partition that knows it."""
    intake, at = intake_of(partitions=partitions), partition_of(b"t1", partitions)
    step(intake, raw(received(**AUTH_OF_1)), at=at)
    return intake, at


def test_a_delivery_whose_user_lives_elsewhere_takes_one_hop_which_writes_the_rows_alone():
    intake, at = at_subject(4)
    home = partition_of(b"user_1", 4)
    assert home != at
    emitted = step(intake, raw(received(), 1), at=at)
    (hop,) = on(emitted, EVENTS)
    assert (hop.partition, hop.key) == (home, b"e1")
    assert outcomes(emitted)["e1"].status == "processed"
    assert on(emitted, "daily-summary") == []
    rows = step(intake, read_back(hop), at=home)
    assert [(row.topic, row.partition) for row in rows] == [
        ("daily-summary", home),
        ("users", home),
    ]


def test_a_delivery_whose_user_lives_here_needs_no_hop():
    intake, _ = at_subject(1)
    emitted = step(intake, raw(received(), 1))
    assert on(emitted, EVENTS) == []
    assert len(on(emitted, "daily-summary")) == 1


def test_a_delivery_that_another_release_placed_elsewhere_finds_its_owner():
    intake, home = intake_of(partitions=4), partition_of(b"user_1", 4)
    emitted = step(intake, raw(received(reference="user_1")), at=(home + 1) % 4)
    (hop,) = on(emitted, EVENTS)
    assert (hop.partition, hop.key) == (home, b"e1")
    auth = step(intake, raw(received(**AUTH_OF_1)), at=(partition_of(b"t1", 4) + 1) % 4)
    (hop,) = on(auth, UNRESOLVED)
    assert (hop.partition, hop.key) == (partition_of(b"t1", 4), b'["t1","auth"]')
    assert on(auth, OUTCOMES) == []


def test_a_hop_that_is_replayed_has_another_outcome(intake: Owner):
    intake4, at = at_subject(4)
    (hop,) = on(step(intake4, raw(received(), 1), at=at), EVENTS)
    replayed = dataclasses.replace(read_back(hop), headers=((REPLAY_OF, b"0@3"),))
    emitted = step(intake4, replayed, at=hop.partition)
    assert outcomes(emitted)["e1"].status == "processed"


def test_a_delivery_that_names_nobody_is_a_dead_letter_with_its_bytes_untouched(intake: Owner):
    record = raw(received(subject=""))
    emitted = step(intake, record)
    (letter,) = on(emitted, DEAD_LETTERS)
    assert (key_in(letter), letter.value) == (record.key, record.value)
    headers = dict(letter.headers or ())
    assert headers["headwater.reason"] == b"no_user"
    assert headers["__connect.errors.topic"] == b"webhooks"
    assert headers["__connect.errors.offset"] == b"0"
    assert headers["__connect.errors.stage"] == b"intake"
    assert outcomes(emitted)["e1"].status == "dead"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "malformed_payload"),
        (b"no JSON", "malformed_payload"),
        (b'{"type":"daily","x":"\xff', "undecodable"),
        (b"[" * 50_000, "malformed_payload"),
        (b"{}", "missing_type"),
        (b'{"type":"daily\\u0000"}', "malformed_id"),
    ],
)
def test_an_unreadable_delivery_is_a_dead_letter_with_its_bytes_and_the_reason(
    intake: Owner, body: bytes, reason: str
):
    record = raw(received(type="unreadable", subject="", body=body))
    emitted = step(intake, record)
    (letter,) = on(emitted, DEAD_LETTERS)
    assert letter.value == record.value
    outcome = outcomes(emitted)["e1"]
    assert (outcome.status, outcome.reason) == ("dead", reason)


def test_an_unreadable_delivery_is_processed_by_a_provider_that_can_read_it_now():
    partition = partition_of(b"user_1", 4)
    body = DAILY.replace(b'"user_id": "t1"', b'"user_id": "t1", "reference_id": "user_1"')
    delivery = received(type="unreadable", subject="", body=body)
    emitted = step(intake_of(partitions=4), raw(delivery), at=partition)
    outcome = outcomes(emitted)["e1"]
    assert (outcome.status, outcome.type, outcome.user_id) == ("processed", "daily", "user_1")
    assert on(emitted, "daily-summary")


def test_an_unreadable_delivery_is_routed_again_by_the_headers_it_came_with(
    intake: Owner,
):
    headers = ("x-github-event", "push")
    body = b'{"repository": {"id": 7}}'
    kept = received(source="github", type="unreadable", subject="", body=body, headers=headers)
    outcome = outcomes(step(intake, raw(kept)))["e1"]
    assert (outcome.type, outcome.subject) == ("push", "7")
    without = msgspec.structs.replace(kept, event_id="e2", headers=())
    outcome = outcomes(step(intake, raw(without, 1)))["e2"]
    assert (outcome.status, outcome.reason) == ("dead", "malformed_payload")


def test_a_second_copy_is_dropped_and_traced(intake: Owner):
    emitted = step(intake, raw(received()), raw(received(request_id="r2"), 1))
    assert len(on(emitted, OUTCOMES)) == 1
    (trace,) = on(emitted, TRACES)
    dropped = decode(trace.value, DuplicateDropped)
    assert (dropped.request_id, dropped.offset, dropped.first_offset) == ("r2", 1, 0)


DEAUTH = AUTH.replace(b'"auth"', b'"deauth"')
#: A second that a signature states.
SECOND = NOW // 1000 * 1000


def switched(type_: str, at_s: int, ordered_ms: int = 0, **more: object) -> WebhookReceived:
    """An event of the connection t1: signed some seconds later, with Terra's time or without."""
    body, signed_ms = AUTH if type_ == "auth" else DEAUTH, SECOND + at_s * 1_000
    occurrence = occurrence_of(signed_ms, ordered_ms)
    return received(
        event_id=event_id("terra", type_, "t1", body, occurrence),
        type=type_,
        body=body,
        reference="user_1",
        sent_at_ms=ordered_ms or signed_ms,
        **more,
    )


@pytest.mark.parametrize(
    ("events", "counts", "active"),
    [
        ([("auth", 1), ("auth", 5)], [0], True),
        ([("auth", 1), ("deauth", 2), ("auth", 3)], [0, 1, 2], True),
        ([("auth", 1), ("deauth", 2), ("auth", 2)], [0, 1], False),
        ([("auth", 3), ("deauth", 1), ("auth", 2)], [0, 1, 2], True),
        ([("auth", 1), ("deauth", 2), ("auth", 3), ("deauth", 4)], [0, 1, 2, 3], False),
        ([("auth", 1), ("deauth", 2), ("auth", 3), ("deauth", 2, 0, "r")], [0, 1, 2], True),
        ([("deauth", 1), ("deauth", 5)], [0], False),
        # With Terra's own time, that time alone says which are attempts of one event.
        ([("auth", 1, SECOND + 7), ("auth", 60, SECOND + 7)], [0], True),
        ([("auth", 1, SECOND + 7), ("auth", 2, SECOND + 8)], [0, 1], True),
        ([("auth", 1), ("auth", 2, SECOND + 900)], [0, 1], True),
        ([("auth", 1, SECOND + 7), ("auth", 2)], [0], True),
    ],
)
def test_an_event_of_a_connection_is_new_if_an_opposite_one_came_in_between(
    intake: Owner, events: list[tuple[str, int]], counts: list[int], active: bool
):
    processed = []
    for number, event in enumerate(events):
        emitted = step(intake, raw(switched(*event[:3], request_id=f"r{number}"), number))
        processed += [number] if on(emitted, OUTCOMES) else []
        assert bool(on(emitted, TRACES)) is not bool(on(emitted, OUTCOMES))
    assert processed == counts
    row = intake.states[0].rows.get(CONNECTIONS, ("t1",))
    assert row is not None
    assert row.values[CONNECTIONS.index["active"]] is active


def test_a_copy_of_a_connection_event_names_the_first_and_a_crash_changes_nothing(intake: Owner):
    first = switched("auth", 1)
    step(intake, raw(first, 4))
    (trace,) = on(step(intake, raw(switched("auth", 9), 5)), TRACES)
    dropped = decode(trace.value, DuplicateDropped)
    assert (dropped.event_id, dropped.first_offset) == (first.event_id, 4)
    later = [raw(switched("deauth", 20), 6), raw(switched("auth", 30), 7)]
    emitted = step(intake, *later)
    assert len(on(emitted, OUTCOMES)) == 2
    again = step(intake, *later)
    assert len(on(again, OUTCOMES)) == 2, "both meet their own claims"


def test_a_record_meets_its_own_claim_after_a_crash_and_passes(intake: Owner):
    (claim,) = on(step(intake, raw(received(), 5)), ADMISSIONS)
    again = intake_of()
    restored(again, read_back(claim))
    assert len(on(step(again, raw(received(), 5)), OUTCOMES)) == 1
    assert on(step(again, raw(received(), 6)), OUTCOMES) == []


def test_claims_are_forgotten_after_the_horizon(intake: Owner):
    step(intake, raw(received()))
    tick(intake, NOW + 7 * 86_400_000)
    assert on(step(intake, raw(received(), 1)), OUTCOMES) == []
    # They are forgotten many at a time.
    tick(intake, NOW + 11 * 86_400_000)
    assert len(on(step(intake, raw(received(), 2)), OUTCOMES)) == 1


def test_a_replayed_delivery_passes_though_it_was_seen(intake: Owner):
    step(intake, raw(received()))
    replayed = raw(received(), 1, headers=((REPLAY_OF, b"0@3"),))
    outcome = outcomes(step(intake, replayed))["e1"]
    # It is the same delivery, whose columns say where it first lay.
    assert (outcome.offset, outcome.position) == (0, "webhooks/0@1")


def test_a_waiting_delivery_that_is_looked_at_again_goes_on_waiting_from_when_it_began(
    intake: Owner,
):
    step(intake, raw(received()))
    again = raw(received(), 1, headers=((REPLAY_OF, b"webhooks/0@0"),))
    outcome = outcomes(step(intake, again, now_ms=NOW + 500))["e1"]
    assert (outcome.status, outcome.parked_at_ms, outcome.at_ms) == ("parked", NOW, NOW + 500)
    assert [one["headwater.reason"] for one in letters(tick(intake, NOW + 1_000))] == [
        b"no_connection_for_terra_user"
    ]


def test_a_drained_delivery_that_waits_no_longer_is_left_alone(intake: Owner):
    drained = ((REPLAY_OF, b"webhooks/0@0"), (IF_WAITING, b"true"))
    step(intake, raw(received()))
    assert outcomes(step(intake, raw(received(), 1, headers=drained)))["e1"].status == "parked"
    assert letters(tick(intake, NOW + 1_000))
    assert step(intake, raw(received(), 2, headers=drained), now_ms=NOW + 1_000) == []
    step(intake, raw(received(event_id="e2"), 3))
    step(intake, raw(received(**AUTH_OF_1), 4))
    assert step(intake, raw(received(event_id="e2"), 5, headers=drained)) == []


def test_a_waiting_delivery_that_is_looked_at_again_and_finds_its_user_waits_no_more(
    intake: Owner,
):
    step(intake, raw(received()))
    # An operator, or another release, has written the row beside this owner.
    (row,) = on(step(intake_of(), raw(received(**AUTH_OF_1))), "connections")
    restored(intake, read_back(row))
    again = raw(received(), 1, headers=((REPLAY_OF, b"webhooks/0@0"),))
    emitted = step(intake, again, now_ms=NOW + 500)
    outcome = outcomes(emitted)["e1"]
    assert (outcome.status, outcome.released_at_ms) == ("processed", NOW + 500)
    assert outcome.released_by == "webhooks/0@1"
    assert [record.value for record in on(emitted, WAITING)] == [None]
    assert tick(intake, NOW + 5_000) == []


@pytest.mark.parametrize("value", [b"", b"rubbish", b"\x00\x00\x00\x00\x00x"])
@pytest.mark.parametrize("topic", Intake.sources)
def test_bytes_that_are_no_record_are_a_dead_letter(intake: Owner, topic: str, value: bytes):
    (letter,) = step(intake, incoming(topic, b"k", value))
    assert (letter.topic, key_in(letter), letter.value) == (DEAD_LETTERS, b"k", value)
    headers = dict(letter.headers or ())
    assert headers["headwater.reason"] in {b"undecodable_record", b"unknown_schema"}
    assert b"Traceback" in headers["__connect.errors.exception.stacktrace"]


def test_the_tombstone_of_a_wiped_delivery_is_passed_over(intake: Owner):
    assert step(intake, incoming(WEBHOOKS, b"e1", None)) == []


def test_a_delivery_waits_for_its_connection_and_is_released_by_it(intake: Owner):
    assert outcomes(step(intake, raw(received())))["e1"].status == "parked"
    emitted = step(intake, raw(received(**AUTH_OF_1), 1), now_ms=NOW + 5)
    released = outcomes(emitted)["e1"]
    assert (released.status, released.user_id) == ("processed", "user_1")
    assert (released.parked_at_ms, released.released_at_ms) == (NOW, NOW + 5)
    assert released.waited_for == "no_connection_for_terra_user"
    assert released.released_by == "webhooks/0@1"
    assert [record.value for record in on(emitted, WAITING)] == [None]
    assert len(on(emitted, "connections")) == 1
    assert len(on(emitted, "daily-summary")) == 1


def test_waits_that_are_over_together_end_some_at_a_time_the_oldest_first(intake: Owner):
    body = DAILY + b" " * 3_000_000
    for number in range(7):
        late = raw(received(event_id=f"e{number}", body=body), number)
        step(intake, late, now_ms=NOW + number)
    ended = []
    while letters := on(tick(intake, NOW + 2_000), DEAD_LETTERS):
        ended.append([key_in(letter) for letter in letters])
    assert ended == [[b"e0", b"e1", b"e2"], [b"e3", b"e4", b"e5"], [b"e6"]]


def test_a_wait_survives_a_restart_and_ends_in_time(intake: Owner):
    record = raw(received(), 7)
    (wait,) = on(step(intake, record), WAITING)
    again = intake_of()
    restored(again, read_back(wait))
    assert tick(again, NOW + 999) == []
    emitted = tick(again, NOW + 1_000)
    (letter,) = on(emitted, DEAD_LETTERS)
    assert (key_in(letter), letter.value) == (record.key, record.value)
    headers = dict(letter.headers or ())
    assert headers["__connect.errors.topic"] == b"webhooks"
    assert headers["__connect.errors.offset"] == b"7"
    assert headers["headwater.reason"] == b"no_connection_for_terra_user"
    assert tick(again, NOW + 9_999) == []


def test_a_wait_that_ended_is_not_restored(intake: Owner):
    (wait,) = on(step(intake, raw(received())), WAITING)
    again = intake_of()
    restored(again, read_back(wait), read_back(wait._replace(value=None)))
    assert tick(again, NOW + 9_999) == []


def test_a_second_user_of_one_reauth_is_told_under_the_subject_that_it_replaces():
    """The old subject's row names the user; both subjects live in other partitions."""
    intake, partitions = intake_of(partitions=5), 5
    old, new = partition_of(b"o1", partitions), partition_of(b"t2", partitions)
    assert old != new
    opening = AUTH.replace(b"t1", b"o1")
    step(intake, raw(received(**AUTH_OF_1 | {"subject": "o1", "body": opening})), at=old)
    body = b"""{"type": "user_reauth", "old_user": {"user_id": "o1", "provider": "GARMIN"},
     "new_user": {"user_id": "t2", "provider": "GARMIN"}}"""
    reauth = received(event_id="r", type="user_reauth", subject="t2", body=body)
    emitted = step(intake, raw(reauth), at=new)
    assert outcomes(emitted)["r"].status == "parked"
    (to_old,) = on(emitted, UNRESOLVED)
    emitted = step(intake, read_back(to_old), at=old)
    assert len(on(emitted, "connections")) == 1
    (to_new,) = on(emitted, UNRESOLVED)
    emitted = step(intake, read_back(to_new), at=new)
    assert outcomes(emitted)["r"].status == "processed"
    assert len(on(emitted, "connections")) == 1


RULE_FOR_ALL = """
[[rule]]
name = "tell"
source = "terra"
workflow = "watch"
mode = "signal"
id = '"w-" + event.type'
event = "delivery"
payload = 'event.user_id'
"""


def effects(emitted: list[Outgoing]) -> list[tuple[str, str]]:
    result = [decode(record.value, EffectDecided) for record in on(emitted, EFFECTS)]
    return [(effect.name, effect.instance_id) for effect in result]


def test_what_rules_find_goes_along_with_the_outcome_also_of_connections_and_skipped_types():
    intake = intake_of(rules=RULE_FOR_ALL)
    # Nobody knows yet whose it is: that comes with its release.
    assert effects(step(intake, raw(received()))) == []
    emitted = step(intake, raw(received(**AUTH_OF_1), 1))
    assert sorted(effects(emitted)) == [
        ("tell", "w-auth"),
        ("tell", "w-daily"),
        ("terra-backfill", "t1-0"),
    ]
    skipped = raw(received(event_id="e3", type="nutrition", reference="user_1"), 2)
    assert effects(step(intake, skipped)) == [("tell", "w-nutrition")]
    dead = raw(received(event_id="e4", reference="user_1", body=b"{"), 3)
    assert effects(step(intake, dead)) == []


def test_a_rule_that_fails_is_a_dead_letter_whose_replay_follows_that_rule_alone():
    other = RULE_FOR_ALL.replace('"tell"', '"other"')
    failing = RULE_FOR_ALL.replace("event.user_id", "event.body.none")
    delivery = received(reference="user_1")
    emitted = step(intake_of(rules=failing + other), raw(delivery))
    assert effects(emitted) == [("other", "w-daily")]
    (letter,) = on(emitted, DEAD_LETTERS)
    assert (key_in(letter), letter.value) == (b"e1", encode(delivery))
    (headers,) = letters(emitted)
    assert (headers["headwater.reason"], headers[RULE]) == (b"rule_failed", b"tell")
    replayed = raw(delivery, 1, headers=((RULE, b"tell"), (REPLAY_OF, b"0@0")))
    assert effects(step(intake_of(rules=RULE_FOR_ALL + other), replayed)) == [("tell", "w-daily")]


def test_a_normalizer_may_say_what_a_delivery_does_to_workflows():
    def opened(event: WebhookAdmitted, user_id: str, payload: Envelope) -> NormalizeResult:
        result = normalize_auth(event, user_id, payload)
        assert isinstance(result, Normalized)
        start = Effect("backfill", "import", user_id, StartRun("null"))
        bad = Effect("bad", "im port", user_id, StartRun("null"))
        return msgspec.structs.replace(result, effects=(start, bad))

    terra = PROVIDERS["terra"]
    auth = dataclasses.replace(terra.types["auth"], normalize=opened)
    intake = intake_of({"terra": dataclasses.replace(terra, types={"auth": auth})})
    emitted = step(intake, raw(received(**AUTH_OF_1)))
    assert outcomes(emitted)["auth"].status == "processed"
    assert effects(emitted) == [("backfill", "user_1"), ("terra-backfill", "t1-0")]
    (letter,) = letters(emitted)
    assert (letter["headwater.reason"], letter[RULE]) == (b"invalid_effect", b"bad")


def test_tombstones_are_appended_after_everything_else():
    kept, removed = Outgoing("a", 0, b"k", b"v"), Outgoing("b", 0, b"k", None)
    assert phases([removed, kept]) == ([kept], [removed])


def test_a_tombstone_that_a_later_record_of_its_key_supersedes_is_left_out():
    def record(key: bytes, value: bytes | None) -> Outgoing:
        return Outgoing(WAITING, 0, key, value)

    begun, ended, again = record(b"k", b"1"), record(b"k", None), record(b"k", b"2")
    other = record(b"other", None)
    assert phases([begun, ended, other]) == ([begun], [ended, other])
    assert phases([begun, ended, again, other]) == ([begun, again], [other])
    assert phases([ended, again, ended]) == ([again], [ended])


def test_an_error_of_ours_harms_one_record_only():
    def explode(body: bytes) -> Delivery[Daily]:
        if body == b"boom":
            raise ZeroDivisionError("a bug")
        return decode_daily(body)

    terra = PROVIDERS["terra"]
    daily = dataclasses.replace(terra.types["daily"], decode=explode)
    intake = intake_of({"terra": dataclasses.replace(terra, types={"daily": daily})})
    bad = received(event_id="e9", reference="user_1", body=b"boom")
    emitted = step(intake, raw(bad), raw(received(reference="user_1"), 1))
    result = {name: (one.status, one.reason) for name, one in outcomes(emitted).items()}
    assert result == {"e9": ("dead", "unexpected_error"), "e1": ("processed", "")}
    (letter,) = letters(emitted)
    assert b"ZeroDivisionError" in letter["__connect.errors.exception.stacktrace"]
    assert len(on(emitted, "daily-summary")) == 1


def test_of_deliveries_that_are_released_together_one_that_fails_harms_no_other():
    def explode(event: WebhookAdmitted, user_id: str, payload: Envelope) -> NormalizeResult:
        if event.event_id == "e1":
            raise ZeroDivisionError("a bug")
        return normalize_auth(event, user_id, payload)

    terra = PROVIDERS["terra"]
    deauth = dataclasses.replace(terra.types["deauth"], normalize=explode)
    intake = intake_of(
        {"terra": dataclasses.replace(terra, types={**terra.types, "deauth": deauth})}
    )
    bad = raw(received(type="deauth", body=AUTH))
    step(intake, bad, raw(received(event_id="e2"), 1))
    emitted = step(intake, raw(received(**AUTH_OF_1), 2), now_ms=NOW + 5)
    result = {name: one.status for name, one in outcomes(emitted).items()}
    assert result == {"auth": "processed", "e1": "dead", "e2": "processed"}
    (letter,) = on(emitted, DEAD_LETTERS)
    assert (key_in(letter), letter.value) == (bad.key, bad.value)
    assert len([record for record in on(emitted, WAITING) if record.value is None]) == 2


def test_a_delivery_with_a_bad_record_is_processed_and_leaves_a_dead_letter_that_names_it(
    intake: Owner,
):
    bad = b'{"distance_data": {"steps": -1}, "metadata": {"start_time": "2026-07-02T00:00:00Z"}}'
    record = raw(received(reference="user_1", body=DAILY.replace(b"}}]}", b"}}, " + bad + b"]}")))
    emitted = step(intake, record)
    outcome = outcomes(emitted)["e1"]
    assert (outcome.status, outcome.rows, outcome.rejected) == ("processed", 1, 1)
    (letter,) = on(emitted, DEAD_LETTERS)
    assert (key_in(letter), letter.value) == (record.key, record.value)
    (headers,) = letters(emitted)
    assert headers["headwater.reason"] == b"partial"
    assert headers["__connect.errors.exception.message"].startswith(
        b"no_usable_value: data[1]: expected a usable value, found data[1].distance_data.steps "
    )
    assert len(on(emitted, "daily-summary")) == 1


def test_a_row_is_written_once_a_batch_and_not_at_all_when_nothing_changed(intake: Owner):
    replays = [
        raw(received(reference="user_1"), offset, headers=((REPLAY_OF, b"0@3"),))
        for offset in range(3)
    ]
    assert len(on(step(intake, *replays), "daily-summary")) == 1
    again = step(intake, *replays)
    assert on(again, "daily-summary") == []
    assert len(on(again, OUTCOMES)) == 3


@pytest.mark.parametrize("key", [b"\xff", b"another", None])
def test_a_record_whose_key_is_not_its_event_id_is_a_dead_letter_and_claims_nothing(
    intake: Owner, key: bytes | None
):
    record = dataclasses.replace(raw(received()), key=key)
    (letter,) = step(intake, record)
    assert (letter.topic, key_in(letter)) == (DEAD_LETTERS, key)
    assert dict(letter.headers or ())["headwater.reason"] == b"undecodable_record"


def test_text_header_takes_the_last_of_several():
    record = incoming("t", b"", b"", headers=(("a", b"1"), ("a", b"2")))
    assert text_header(record, "a") == "2"
    assert text_header(record, "b") is None


def test_what_a_replay_does_is_marked_and_a_replay_may_leave_workflows_alone():
    intake = intake_of()
    headers = ((REPLAY_OF, b"replay-1"), (NO_EFFECTS, b"true"))
    step(intake, raw(received()))
    assert outcomes(step(intake, raw(received(), 1, headers=headers)))["e1"].replay == "replay-1"
    # It is marked as well when somebody else's delivery ends its wait.
    released = outcomes(step(intake, raw(received(**AUTH_OF_1), 2)))["e1"]
    assert (released.status, released.replay) == ("processed", "replay-1")
    assert on(step(intake_of(), raw(received(**AUTH_OF_1), 2, headers=headers)), EFFECTS) == []
    assert len(on(step(intake_of(), raw(received(**AUTH_OF_1), 2)), EFFECTS)) == 1


@pytest.mark.parametrize("sent_at_ms", [-1, 253_402_300_800_000, 999_999_999_999_999])
@pytest.mark.parametrize("topic", [WEBHOOKS, EVENTS, UNRESOLVED])
def test_a_delivery_with_a_time_that_no_calendar_has_is_a_dead_letter(topic: str, sent_at_ms: int):
    owner = intake_of()
    delivery = received(
        reference="user_1",
        sent_at_ms=sent_at_ms,
        body=DAILY.replace(b'"GARMIN"', b'"GARMIN", "reference_id": "user_1"'),
    )
    record = raw(delivery)
    if topic != WEBHOOKS:
        event = admitted(delivery, record, "user_1", 0, NOW)
        key = b'["t1","e1"]' if topic == UNRESOLVED else b"e1"
        record = incoming(topic, key, encode(event))
    emitted = emitted_by(owner.intake, owner.states[0], [record], NOW, topic)
    (letter,) = on(emitted, DEAD_LETTERS)
    assert f"sent_at_ms: expected 0 to 253402300799999, found {sent_at_ms}" in str(letter.headers)
    (outcome,) = [decode(one.value, OutcomeRecorded) for one in on(emitted, OUTCOMES)]
    assert (outcome.status, outcome.reason) == ("dead", "unfit_value")
    assert not [one for one in emitted if one.topic in {"users", "daily_summary"}]
