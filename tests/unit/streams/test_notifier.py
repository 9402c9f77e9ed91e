"""What a notifier reads, and what it derives from records."""

from dataclasses import replace
from typing import Any

import msgspec

from headwater.processors.endpoints import SKEW_MS, Endpoint
from headwater.processors.notifications import NOTIFY, REACT, ToEndpoint, notification_id
from headwater.processors.triggers.reactions import reaction_rules
from headwater.processors.triggers.rules import read_rules
from headwater.schemas.auditor import AuditorFinding
from headwater.schemas.codec import encode, encode_row
from headwater.schemas.endpoints import EndpointCreated, EndpointStateSet
from headwater.schemas.history import (
    Failure,
    HistoryAppended,
    RunCompleted,
    RunErrored,
    StartRun,
    record_key,
)
from headwater.schemas.tables import USERS, Row
from headwater.schemas.topics import AUDITOR, DEAD_LETTERS, WORKFLOW_HISTORY
from headwater.streams.kafka.dead_letters import ProcessingFailure, dead_letter
from headwater.streams.kafka.records import Incoming, Outgoing
from headwater.streams.pipeline.reprocessing import _replayed
from headwater.streams.starters.notification_records import notifications_of, topics_of
from headwater.streams.starters.notifier import Interests

NOW_MS = 1_782_900_000_000
RULES = reaction_rules(
    read_rules("""
[[rule]]
name = "failed"
source = "headwater"
type = "instance_errored"
workflow = "support"
mode = "start"
""")
)


def endpoint(number: int, *types: str, at_ms: int = NOW_MS, **filters: Any) -> Endpoint:  # noqa: ANN401 (JSON)
    usual: dict[str, Any] = {"workflows": (), "tables": (), "reasons": ()}
    created = EndpointCreated(
        id=f"ep_{number}", url="https://example.com", description="", types=types, by="admin",
        at_ms=at_ms, **(usual | filters),
    )  # fmt: skip
    return Endpoint(created=created)


def read(record: Outgoing, offset: int = 17) -> Incoming:
    return replace(record.as_read(), offset=offset, timestamp=NOW_MS)


def history(*events: Any, workflow: str = "order", at_ms: int = NOW_MS) -> Incoming:  # noqa: ANN401 (JSON)
    appended = HistoryAppended(
        workflow=workflow, instance_id="o-1", run_number=0, sequence=1, epoch=0, cause=-1,
        at_ms=at_ms, events=events,
    )  # fmt: skip
    key = record_key(f"{workflow}/o-1".encode(), 0, 1)
    return read(Outgoing(WORKFLOW_HISTORY, 3, key, encode(appended)))


ERRORED = RunErrored(Failure("Boom", "it broke"))


def test_topics_are_those_of_the_types():
    assert topics_of(["instance_errored", "dead_letter"]) == {WORKFLOW_HISTORY, DEAD_LETTERS}
    assert topics_of(["row_changed"], ["users"]) == {"users"}
    assert len(topics_of(["row_deleted"])) >= 8
    assert not topics_of(["test"])


def test_without_endpoints_and_rules_nothing_is_read():
    assert Interests().topics() == {}


def test_a_topic_is_read_from_the_time_of_its_first_endpoint():
    first, second = endpoint(1, "dead_letter", at_ms=5 * SKEW_MS), endpoint(2, "dead_letter")
    assert Interests((second, first)).topics() == {DEAD_LETTERS: 4 * SKEW_MS}
    assert Interests((), RULES).topics() == {WORKFLOW_HISTORY: None}
    both = Interests((endpoint(1, "instance_completed"),), RULES)
    assert both.topics() == {WORKFLOW_HISTORY: NOW_MS - SKEW_MS}


def test_a_reader_returns_to_the_time_of_a_new_endpoint():
    old, new = endpoint(1, "row_changed", at_ms=0), endpoint(2, "dead_letter")
    interests = Interests((old, new))
    assert interests.new(NOW_MS + 1_000) == {DEAD_LETTERS: NOW_MS - SKEW_MS}
    assert interests.new(NOW_MS + 60_000) == {}


def test_every_endpoint_that_takes_a_notification_gets_one():
    interests = Interests(
        (
            endpoint(1, "instance_errored"),
            endpoint(2, "instance_errored", workflows=("other",)),
            endpoint(3, "instance_errored", at_ms=NOW_MS + 2 * SKEW_MS),
            endpoint(4, "instance_errored", "dead_letter"),
        )
    )
    commands = list(interests.commands(notifications_of([history(ERRORED)]), NOW_MS, (5,)))
    digest = notification_id("instance_errored", WORKFLOW_HISTORY, 3, 17).removeprefix("msg_")
    assert [command.instance_id for command in commands] == [f"ep_1-{digest}", f"ep_4-{digest}"]
    for command in commands:
        assert command.workflow == NOTIFY
        assert command.command_id == command.instance_id
        assert isinstance(command.command, StartRun)
        params = msgspec.json.decode(command.command.params, type=ToEndpoint)
        assert params.retries_ms == (5,)
        assert {label.name: label.value for label in command.command.labels} == {
            "endpoint": params.endpoint, "type": "instance_errored",
        }  # fmt: skip


def test_an_endpoint_that_was_enabled_receives_what_happens_from_then_on():
    state = EndpointStateSet(
        id="ep_1", state="active", why="", by="admin", at_ms=NOW_MS + 2 * SKEW_MS
    )
    enabled = msgspec.structs.replace(endpoint(1, "instance_errored", at_ms=0), state_set=state)
    interests = Interests((enabled,))
    assert not list(interests.commands(notifications_of([history(ERRORED)]), NOW_MS, ()))
    later = history(ERRORED, at_ms=NOW_MS + 2 * SKEW_MS)
    assert list(interests.commands(notifications_of([later]), NOW_MS, ()))


def test_rules_start_one_reaction():
    interests = Interests((), RULES)
    (command,) = interests.commands(notifications_of([history(ERRORED)]), NOW_MS, ())
    assert command.workflow == REACT
    assert command.instance_id == notification_id("instance_errored", WORKFLOW_HISTORY, 3, 17)
    assert not list(
        interests.commands(notifications_of([history(ERRORED, workflow="support")]), NOW_MS, ())
    )
    week_ms = 7 * 24 * 60 * 60 * 1_000
    assert not list(interests.commands(notifications_of([history(ERRORED)]), NOW_MS + week_ms, ()))


def test_a_dead_letter_is_a_notification_and_its_marks_are_none():
    original = read(Outgoing("events", 3, b"k", b"bytes"), 4711)
    failure = ProcessingFailure("intake", "rule_failed", "expected one thing", rule="night")
    letter = read(dead_letter(original, failure, now_ms=1, event_id="e", request_id="r"))
    (notification,) = notifications_of([letter])
    assert notification.data == {
        "position": "3@17", "stage": "intake", "reason": "rule_failed",
        "detail": "expected one thing", "record": "events/3@4711", "event_id": "e",
        "request_id": "r",
    }  # fmt: skip
    assert not list(notifications_of([read(_replayed(letter, 5))]))


def test_a_row_is_a_notification_and_a_tombstone_is_none():
    row = Row(("u",), (None,) * len(USERS.columns), (None,) * len(USERS.columns))
    changed = read(Outgoing(USERS.topic, 0, b"k", encode_row(USERS, row)))
    (notification,) = notifications_of([changed])
    assert (notification.type, notification.table) == ("row_changed", "users")
    assert not list(notifications_of([read(Outgoing(USERS.topic, 0, b"k", None))]))


def finding(first_ms: int, last_ms: int, ended_ms: int = 0) -> Incoming:
    record = AuditorFinding(
        law="delivery_lost", subject="webhooks/3@17", detail="expected an outcome",
        first_seen_ms=first_ms, last_seen_ms=last_ms, ended_ms=ended_ms,
    )  # fmt: skip
    return read(Outgoing(AUDITOR, 0, b"finding/x", encode(record)))


def test_a_finding_is_a_notification_when_it_begins_and_when_it_ends():
    records = [finding(5, 5), finding(5, 7), finding(5, 7, 9)]
    begun, ended = notifications_of(records)
    assert begun.data["law"] == "delivery_lost"
    assert begun.data["ended"] is None
    assert ended.data["ended"] == "1970-01-01T00:00:00.009Z"
    assert topics_of(["auditor_finding"]) == {AUDITOR}


def test_what_cannot_be_decoded_is_no_notification():
    foreign = read(Outgoing(USERS.topic, 0, b"k", b"foreign"))
    assert [n.type for n in notifications_of([foreign, history(RunCompleted("1"))])] == [
        "instance_completed"
    ]
