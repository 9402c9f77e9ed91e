"""The stages as plain code: records in, records out."""

import dataclasses

import msgspec
import pytest

from headwater.gateway.providers import installed_providers
from headwater.processors.providers.results import NormalizeResult
from headwater.processors.providers.terra.auth import normalize_auth
from headwater.schemas.codec import decode, encode
from headwater.schemas.providers.terra import Daily, Delivery, Envelope, decode_daily
from headwater.schemas.records import (
    DuplicateDropped,
    OutcomeRecorded,
    WebhookAdmitted,
    WebhookReceived,
)
from headwater.schemas.topics import (
    ADMISSIONS,
    DEAD_LETTERS,
    EVENTS,
    OUTCOMES,
    TRACES,
    UNRESOLVED,
    WAITING,
    WEBHOOKS,
)
from headwater.streams.kafka.dead_letters import REPLAY_OF, RULE, text_header
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.admit import Admit
from headwater.streams.pipeline.normalize import Normalize
from headwater.streams.pipeline.resolve import Resolve
from headwater.streams.pipeline.stage import phases

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


def admitted(delivery: WebhookReceived) -> WebhookAdmitted:
    """A delivery of user_1 as admit passes it on."""
    fields = msgspec.structs.asdict(delivery)
    return WebhookAdmitted(**fields, user_id="user_1", partition=0, offset=0, admitted_at_ms=NOW)


def incoming(topic: str, key: bytes, value: bytes | None, offset: int = 0, **more: object):
    record = Incoming(topic, 0, offset, NOW, 0, key, value, None, len(key), 0, ())
    return dataclasses.replace(record, **more)


def raw(delivery: WebhookReceived, offset: int = 0, **more: object):
    return incoming(WEBHOOKS, delivery.event_id.encode(), encode(delivery), offset, **more)


def on(emitted: list[Outgoing], topic: str) -> list[Outgoing]:
    return [record for record in emitted if record.topic == topic]


def read_back(record: Outgoing, offset: int = 0):
    headers = tuple(record.headers or ())
    found = incoming(record.topic, record.key or b"", record.value, offset, headers=headers)
    return dataclasses.replace(found, partition=record.partition)


@pytest.fixture
def admit() -> Admit:
    return Admit(providers=PROVIDERS, partitions=1, user_prefix="user_")


@pytest.fixture
def resolve() -> Resolve:
    return Resolve(providers=PROVIDERS, partitions=1, user_prefix="user_", park_for_ms=1_000)


@pytest.fixture
def normalize() -> Normalize:
    return Normalize(providers=PROVIDERS, partitions=1)


def unresolved(admit: Admit, delivery: WebhookReceived, offset: int = 0) -> Incoming:
    (record,) = on(admit.step(0, [raw(delivery, offset)], NOW), UNRESOLVED)
    return read_back(record, offset)


@pytest.mark.parametrize(
    ("changes", "topic", "key"),
    [
        ({"reference": "user_1"}, EVENTS, b"user_1"),
        ({"reference": "somebody"}, UNRESOLVED, b"t1"),
        ({"type": "auth", "body": AUTH, "reference": "user_1"}, UNRESOLVED, b"t1"),
        ({"type": "deauth"}, UNRESOLVED, b"t1"),
        ({"type": "nutrition"}, EVENTS, b"t1"),
        ({"type": "nutrition", "subject": ""}, EVENTS, b"e1"),
    ],
)
def test_a_delivery_goes_where_its_user_is_known(
    admit: Admit, changes: dict[str, object], topic: str, key: bytes
):
    emitted = admit.step(0, [raw(received(**changes))], NOW)
    assert [record.key for record in on(emitted, topic)] == [key]
    assert len(on(emitted, ADMISSIONS)) == 1


def test_a_delivery_that_names_nobody_is_a_dead_letter_with_its_bytes_untouched(admit: Admit):
    record = raw(received(subject=""))
    emitted = admit.step(0, [record], NOW)
    (letter,) = on(emitted, DEAD_LETTERS)
    assert (letter.key, letter.value) == (record.key, record.value)
    headers = dict(letter.headers or ())
    assert headers["headwater.reason"] == b"no_user"
    assert headers["__connect.errors.topic"] == b"webhooks"
    assert headers["__connect.errors.offset"] == b"0"
    assert headers["__connect.errors.stage"] == b"admit"
    (outcome,) = on(emitted, OUTCOMES)
    assert decode(outcome.value, OutcomeRecorded).status == "dead"


def test_a_second_copy_is_dropped_and_traced(admit: Admit):
    emitted = admit.step(0, [raw(received()), raw(received(request_id="r2"), 1)], NOW)
    assert len(on(emitted, UNRESOLVED)) == 1
    (trace,) = on(emitted, TRACES)
    dropped = decode(trace.value, DuplicateDropped)
    assert (dropped.request_id, dropped.offset, dropped.first_offset) == ("r2", 1, 0)


def test_a_record_meets_its_own_claim_after_a_crash_and_passes(admit: Admit):
    (claim,) = on(admit.step(0, [raw(received(), 5)], NOW), ADMISSIONS)
    again = Admit(providers=PROVIDERS, partitions=1, user_prefix="user_")
    again.restored(read_back(claim))
    assert len(on(again.step(0, [raw(received(), 5)], NOW), UNRESOLVED)) == 1
    assert on(again.step(0, [raw(received(), 6)], NOW), UNRESOLVED) == []


def test_claims_are_forgotten_after_the_horizon(admit: Admit):
    admit.step(0, [raw(received())], NOW)
    admit.tick(0, NOW + 7 * 86_400_000)
    assert on(admit.step(0, [raw(received(), 1)], NOW), UNRESOLVED) == []
    admit.tick(0, NOW + 7 * 86_400_000 + 1)
    assert len(on(admit.step(0, [raw(received(), 2)], NOW), UNRESOLVED)) == 1


def test_a_replayed_delivery_passes_though_it_was_seen(admit: Admit):
    admit.step(0, [raw(received())], NOW)
    replayed = raw(received(), 1, headers=((REPLAY_OF, b"0@3"),))
    assert len(on(admit.step(0, [replayed], NOW), UNRESOLVED)) == 1


@pytest.mark.parametrize("value", [b"", b"rubbish", b"\x00\x00\x00\x00\x00x"])
def test_bytes_that_are_no_record_are_a_dead_letter(
    admit: Admit, resolve: Resolve, normalize: Normalize, value: bytes
):
    for stage in (admit, resolve, normalize):
        record = incoming(stage.source, b"k", value)
        (letter,) = stage.step(0, [record], NOW)
        assert (letter.topic, letter.key, letter.value) == (DEAD_LETTERS, b"k", value)
        headers = dict(letter.headers or ())
        assert headers["headwater.reason"] in {b"undecodable_record", b"unknown_schema"}
        assert b"Traceback" in headers["__connect.errors.exception.stacktrace"]


def test_the_tombstone_of_a_wiped_delivery_is_passed_over(admit: Admit):
    assert admit.step(0, [incoming(WEBHOOKS, b"e1", None)], NOW) == []


def test_a_delivery_waits_for_its_connection_and_is_released_by_it(admit: Admit, resolve: Resolve):
    parked = resolve.step(0, [unresolved(admit, received())], NOW)
    assert [decode(o.value, OutcomeRecorded).status for o in on(parked, OUTCOMES)] == ["parked"]
    auth = received(event_id="e2", type="auth", body=AUTH, reference="user_1")
    emitted = resolve.step(0, [unresolved(admit, auth, 1)], NOW + 5)
    (event,) = on(emitted, EVENTS)
    released = decode(event.value, WebhookAdmitted)
    assert (event.key, released.user_id) == (b"user_1", "user_1")
    assert (released.parked_at_ms, released.released_at_ms) == (NOW, NOW + 5)
    assert [record.value for record in on(emitted, WAITING)] == [None]
    assert len(on(emitted, "connections")) == 1


def test_a_wait_survives_a_restart_and_ends_in_time(admit: Admit, resolve: Resolve):
    record = unresolved(admit, received(), 7)
    (wait,) = on(resolve.step(0, [record], NOW), WAITING)
    again = Resolve(providers=PROVIDERS, partitions=1, user_prefix="user_", park_for_ms=1_000)
    again.restored(read_back(wait))
    assert again.tick(0, NOW + 999) == []
    emitted = again.tick(0, NOW + 1_000)
    (letter,) = on(emitted, DEAD_LETTERS)
    assert (letter.key, letter.value) == (record.key, record.value)
    headers = dict(letter.headers or ())
    assert headers["__connect.errors.topic"] == b"unresolved"
    assert headers["__connect.errors.offset"] == b"7"
    assert headers["headwater.reason"] == b"no_connection_for_terra_user"
    assert again.tick(0, NOW + 9_999) == []


def test_a_wait_that_ended_is_not_restored(resolve: Resolve, admit: Admit):
    (wait,) = on(resolve.step(0, [unresolved(admit, received())], NOW), WAITING)
    again = Resolve(providers=PROVIDERS, partitions=1, user_prefix="user_", park_for_ms=1_000)
    again.restored(read_back(wait))
    again.restored(read_back(wait._replace(value=None)))
    assert again.tick(0, NOW + 9_999) == []


def test_tombstones_are_appended_after_everything_else():
    kept, gone = Outgoing("a", 0, b"k", b"v"), Outgoing("b", 0, b"k", None)
    assert phases([gone, kept]) == ([kept], [gone])


def test_an_error_of_ours_harms_one_record_only():
    def explode(body: bytes) -> Delivery[Daily]:
        if body == b"boom":
            raise ZeroDivisionError("a bug")
        return decode_daily(body)

    terra = PROVIDERS["terra"]
    daily = dataclasses.replace(terra.types["daily"], decode=explode)
    faulty = dataclasses.replace(terra, types={"daily": daily})
    normalize = Normalize(providers={"terra": faulty}, partitions=1)
    good = admitted(received())
    bad = msgspec.structs.replace(good, body=b"boom", event_id="e9")
    records = [incoming(EVENTS, b"user_1", encode(event), n) for n, event in enumerate([bad, good])]
    emitted = normalize.step(0, records, NOW)
    outcomes = [decode(record.value, OutcomeRecorded) for record in on(emitted, OUTCOMES)]
    assert [(o.status, o.reason) for o in outcomes] == [
        ("dead", "unexpected_error"),
        ("processed", ""),
    ]
    (letter,) = on(emitted, DEAD_LETTERS)
    assert (
        b"ZeroDivisionError" in dict(letter.headers or ())["__connect.errors.exception.stacktrace"]
    )
    assert len(on(emitted, "daily-summary")) == 1


def test_of_deliveries_that_are_released_together_one_that_fails_harms_no_other(admit: Admit):
    def explode(event: WebhookAdmitted, user_id: str, payload: Envelope) -> NormalizeResult:
        if event.event_id == "e1":
            raise ZeroDivisionError("a bug")
        return normalize_auth(event, user_id, payload)

    terra = PROVIDERS["terra"]
    deauth = dataclasses.replace(terra.types["deauth"], normalize=explode)
    faulty = dataclasses.replace(terra, types={**terra.types, "deauth": deauth})
    resolve = Resolve(
        providers={"terra": faulty}, partitions=1, user_prefix="user_", park_for_ms=1_000
    )
    bad = unresolved(admit, received(type="deauth", body=AUTH))
    resolve.step(0, [bad, unresolved(admit, received(event_id="e2"), 1)], NOW)
    auth = received(event_id="e3", type="auth", body=AUTH, reference="user_1")
    emitted = resolve.step(0, [unresolved(admit, auth, 2)], NOW + 5)
    outcomes = [decode(record.value, OutcomeRecorded) for record in on(emitted, OUTCOMES)]
    assert {o.event_id: o.status for o in outcomes} == {"e3": "processed", "e1": "dead"}
    (letter,) = on(emitted, DEAD_LETTERS)
    assert (letter.key, letter.value) == (bad.key, bad.value)
    (event,) = on(emitted, EVENTS)
    assert decode(event.value, WebhookAdmitted).event_id == "e2"
    assert len([record for record in on(emitted, WAITING) if record.value is None]) == 2


def test_a_delivery_with_a_bad_record_is_processed_and_leaves_a_dead_letter_that_names_it(
    normalize: Normalize,
):
    bad = b'{"distance_data": {"steps": -1}, "metadata": {"start_time": "2026-07-02T00:00:00Z"}}'
    body = DAILY.replace(b"}}]}", b"}}, " + bad + b"]}")
    event = admitted(received(body=body))
    emitted = normalize.step(0, [incoming(EVENTS, b"user_1", encode(event))], NOW)
    (outcome,) = (decode(record.value, OutcomeRecorded) for record in on(emitted, OUTCOMES))
    assert (outcome.status, outcome.rows, outcome.rejected) == ("processed", 1, 1)
    (letter,) = on(emitted, DEAD_LETTERS)
    assert (letter.key, letter.value) == (b"user_1", encode(event))
    headers = dict(letter.headers or ())
    assert headers["headwater.reason"] == b"partial"
    assert headers["__connect.errors.exception.message"].startswith(
        b"out_of_range: data[1].distance_data.steps: expected 0 to "
    )
    assert len(on(emitted, "daily-summary")) == 1


def test_a_replay_for_a_rule_was_normalized_when_it_first_came(normalize: Normalize):
    bad = admitted(received(body=b"{}"))
    headers = ((REPLAY_OF, b"0@3"), (RULE, b"tell"))
    replayed = incoming(EVENTS, b"user_1", encode(bad), 1, headers=headers)
    assert normalize.step(0, [replayed], NOW) == []


def test_a_row_is_written_once_a_batch_and_not_at_all_when_nothing_changed(normalize: Normalize):
    event = admitted(received())
    records = [incoming(EVENTS, b"user_1", encode(event), offset) for offset in range(3)]
    assert len(on(normalize.step(0, records, NOW), "daily-summary")) == 1
    again = normalize.step(0, records, NOW)
    assert on(again, "daily-summary") == []
    assert len(on(again, OUTCOMES)) == 3


@pytest.mark.parametrize("key", [b"\xff", b"another", None])
def test_a_record_whose_key_is_not_its_event_id_is_a_dead_letter_and_claims_nothing(
    admit: Admit, key: bytes | None
):
    record = dataclasses.replace(raw(received()), key=key)
    emitted = admit.step(0, [record], NOW)
    (letter,) = emitted
    assert (letter.topic, letter.key) == (DEAD_LETTERS, key)
    assert dict(letter.headers or ())["headwater.reason"] == b"undecodable_record"


def test_text_header_takes_the_last_of_several():
    record = incoming("t", b"", b"", headers=(("a", b"1"), ("a", b"2")))
    assert text_header(record, "a") == "2"
    assert text_header(record, "b") is None
