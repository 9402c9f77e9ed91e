"""Bodies of requests: what is taken, and that every fault is a problem that names its field."""

from typing import Any

import pytest

from headwater.gateway.api.json_bodies import is_json
from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows import bodies
from headwater.gateway.api.workflows.bodies import (
    Body,
    BulkChange,
    Move,
    NewEvent,
    NewInstance,
    NewInstances,
    NoFields,
    Restart,
    Retry,
    Tick,
    text,
)
from headwater.schemas.history import NESTING_MAX, Limits

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", (None, "null")),
        (b" \n", (None, "null")),
        (b"{}", (None, "null")),
        (b'{"id":null,"params":null}', (None, "null")),
        (b'{"id":"a-1_B"}', ("a-1_B", "null")),
        (b'{"id":"' + b"a" * 100 + b'"}', ("a" * 100, "null")),
        (b'{ "params" : {"b": 1.0, "a":[1, 2] } }', (None, '{"b": 1.0, "a":[1, 2] }')),
        ('{"params":"é\\u00e9\\u0000"}'.encode(), (None, '"é\\u00e9\\u0000"')),
        (b'{"params":123456789012345678901234567890}', (None, "1234567890" * 3)),
        (b'{"params":"' + b"x" * (MIB - 2) + b'"}', (None, f'"{"x" * (MIB - 2)}"')),
        (b'{"params":{"id":1,"more":{"id":2}}}', (None, '{"id":1,"more":{"id":2}}')),
    ],
)
def test_an_instance_is_read_and_its_params_stay_as_they_came(
    body: bytes, found: tuple[str | None, str]
) -> None:
    instance = bodies.read(NewInstance, body)
    assert (instance.id, text(instance.params)) == found


def nested(levels: int) -> bytes:
    """A body with so many levels in all."""
    return b'{"params":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


MALFORMED = [
    b"{",
    b"not json",
    b'{"params":NaN}',
    b'{"params":Infinity}',
    b'{"params":1e999}',
    b'{"params":01}',
    b'{"params":"\xff"}',
    b'{"\xff":1}',
    b'{"params":"\\ud800"}',
    b'{"params":"\x00"}',
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b"{} {}",
    b'{"params":1,"params":2}',
    b'{"params":{"a":1,"b":{"c":1,"c":2}}}',
    nested(NESTING_MAX + 1),
    nested(100_000),
    b"[" * 1_000_000,
    b'{"params":' + b"9" * 5_000 + b"}",
]

KINDS: list[type[Body]] = [
    NewInstance,
    NewInstances,
    NewEvent,
    Retry,
    Tick,
    NoFields,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: ascii(body[:30]))
def test_what_is_no_json_that_everybody_reads_alike_is_refused(
    kind: type[Body], body: bytes
) -> None:
    assert fault(kind, body) == ("invalid_body", "body")


def test_a_body_may_be_nested_up_to_the_limit() -> None:
    assert text(bodies.read(NewInstance, nested(NESTING_MAX)).params).startswith("[[")
    brackets = b'{"params":"' + b"[" * 1_000 + b'\\"["}'
    assert text(bodies.read(NewInstance, brackets).params).endswith('["')


@pytest.mark.parametrize(
    ("kind", "body", "code", "field"),
    [
        (NewInstance, b"[]", "invalid_body", "body"),
        (NewInstance, b"null", "invalid_body", "body"),
        (NewInstance, b'{"ID":"a"}', "invalid_body", "ID"),
        (NewInstance, b'{"a\\u0000b":"a"}', "invalid_body", "a\\x00b"),
        (NewInstance, b'{"id":1}', "invalid_body", "id"),
        (NewInstance, b'{"id":["a"]}', "invalid_body", "id"),
        (NewInstance, b'{"id":""}', "INVALID_INSTANCE_ID", "id"),
        (NewInstance, b'{"id":"-a"}', "INVALID_INSTANCE_ID", "id"),
        (NewInstance, b'{"id":"a b"}', "INVALID_INSTANCE_ID", "id"),
        (NewInstance, b'{"id":"a\\u0000"}', "INVALID_INSTANCE_ID", "id"),
        (NewInstance, b'{"id":"a\\n"}', "INVALID_INSTANCE_ID", "id"),
        (NewInstance, '{"id":"é"}'.encode(), "INVALID_INSTANCE_ID", "id"),
        (NewInstance, b'{"id":"%s"}' % (b"a" * 101), "INVALID_INSTANCE_ID", "id"),
        (
            NewInstance,
            b'{"params":"%s"}' % (b"x" * (MIB - 1)),
            "INVALID_PARAMS",
            "params",
        ),
        (NewInstances, b"", "invalid_body", "instances"),
        (NewInstances, b"{}", "invalid_body", "instances"),
        (NewInstances, b'{"instances":{}}', "invalid_body", "instances"),
        (NewInstances, b'{"instances":[]}', "invalid_body", "instances"),
        (NewInstances, b'{"instances":[1]}', "invalid_body", "instances[0]"),
        (NewInstances, b'{"instances":[{}]}', "invalid_body", "instances[0].id"),
        (NewInstances, b'{"instances":[{"id":null}]}', "invalid_body", "instances[0].id"),
        (
            NewInstances,
            b'{"instances":[{"id":"a"},{"id":"-"}]}',
            "INVALID_INSTANCE_ID",
            "instances[1].id",
        ),
        (
            NewInstances,
            b'{"instances":[{"id":"a","x":1}]}',
            "invalid_body",
            "instances[0].x",
        ),
        (
            NewInstances,
            b'{"instances":[{"id":"a","params":"%s"}]}' % (b"x" * MIB),
            "INVALID_PARAMS",
            "instances[0].params",
        ),
        (NewEvent, b"", "invalid_body", "type"),
        (NewEvent, b'{"type":null}', "invalid_body", "type"),
        (NewEvent, b'{"type":7}', "invalid_body", "type"),
        (NewEvent, b'{"type":""}', "INVALID_EVENT_TYPE", "type"),
        (NewEvent, b'{"type":"a.b"}', "INVALID_EVENT_TYPE", "type"),
        (NewEvent, b'{"type":"%s"}' % (b"a" * 101), "INVALID_EVENT_TYPE", "type"),
        (NewEvent, b'{"type":"a","Payload":1}', "invalid_body", "Payload"),
        (
            NewEvent,
            b'{"type":"a","payload":"%s"}' % (b"x" * MIB),
            "INVALID_EVENT_PAYLOAD",
            "payload",
        ),
        (
            NewEvent,
            b'{"type":"a","startIfMissing":true}',
            "invalid_body",
            "startIfMissing",
        ),
        (
            NewEvent,
            b'{"type":"a","startIfMissing":{"id":"a"}}',
            "invalid_body",
            "startIfMissing.id",
        ),
        (
            NewEvent,
            b'{"type":"a","startIfMissing":{"params":"%s"}}' % (b"x" * MIB),
            "INVALID_PARAMS",
            "startIfMissing.params",
        ),
        (Retry, b'{"fromStep":1}', "invalid_body", "fromStep"),
        (Retry, b'{"fromStep":""}', "invalid_body", "fromStep"),
        (Retry, b'{"deployment":""}', "invalid_body", "deployment"),
        (Move, b"{}", "invalid_body", "deployment"),
        (BulkChange, b'{"action":"move","status":"active"}', "invalid_body", "deployment"),
        (Restart, b'{"deployment":"%s"}' % (b"d" * 65), "invalid_body", "deployment"),
        (
            BulkChange,
            b'{"action":"pause","status":"active","deployment":"app"}',
            "invalid_body",
            "deployment",
        ),
        (Retry, b'{"fromStep":"a\\u0000"}', "invalid_body", "fromStep"),
        (Retry, b'{"fromStep":"%s"}' % (b"a" * 4_097), "invalid_body", "fromStep"),
        (Retry, b'{"step":"a"}', "invalid_body", "step"),
        (Tick, b'{"maxSteps":0}', "invalid_body", "maxSteps"),
        (Tick, b'{"maxSteps":-1}', "invalid_body", "maxSteps"),
        (Tick, b'{"maxSteps":1.5}', "invalid_body", "maxSteps"),
        (Tick, b'{"maxSteps":true}', "invalid_body", "maxSteps"),
        (Tick, b'{"maxInstances":"1"}', "invalid_body", "maxInstances"),
        (Tick, b'{"maxInstances":10001}', "invalid_body", "maxInstances"),
        (Tick, b'{"max":1}', "invalid_body", "max"),
        (NoFields, b'{"reason":"x"}', "invalid_body", "reason"),
        (NoFields, b"1", "invalid_body", "body"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else ascii(value)[:50],
)
def test_a_fault_is_named(kind: type[Body], body: bytes, code: str, field: str) -> None:
    assert fault(kind, body) == (code, field)


def fault(kind: type[Body], body: bytes) -> tuple[str, Any]:
    with pytest.raises(Problem) as caught:
        bodies.read(kind, body)
    assert len(caught.value.detail) < 500
    return caught.value.code, caught.value.extensions["field"]


def test_a_batch_is_read_in_its_order() -> None:
    body = b'{"instances":[{"id":"b","params":[ 1]},{"id":"a"}]}'
    read = bodies.read(NewInstances, body).instances
    assert [(new.id, text(new.params)) for new in read] == [("b", "[ 1]"), ("a", "null")]
    hundred = b",".join(b'{"id":"i%d"}' % number for number in range(100))
    assert len(bodies.read(NewInstances, b'{"instances":[%s]}' % hundred).instances) == 100
    assert fault(NewInstances, b'{"instances":[%s,{"id":"x"}]}' % hundred)[1] == "instances"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"type":"go"}', ("go", "null", None)),
        (b'{"type":"go","payload":{"a": 1}}', ("go", '{"a": 1}', None)),
        (b'{"type":"go","startIfMissing":null}', ("go", "null", None)),
        (b'{"type":"go","startIfMissing":{}}', ("go", "null", "null")),
        (b'{"type":"go","startIfMissing":{"params":[ ]}}', ("go", "null", "[ ]")),
    ],
)
def test_an_event_is_read(body: bytes, found: tuple[str, str, str | None]) -> None:
    event = bodies.read(NewEvent, body)
    start = event.start_if_missing
    assert (event.type, text(event.payload), start and text(start.params)) == found


def test_what_may_be_left_out_may() -> None:
    assert bodies.read(Retry, b"").from_step is None
    assert bodies.read(Retry, b'{"fromStep":null}').from_step is None
    assert bodies.read(Retry, b'{"fromStep":"a/~3/b"}').from_step == "a/~3/b"
    assert bodies.read(Tick, b"{}") == Tick()
    assert bodies.read(Tick, b'{"maxInstances":1,"maxSteps":10000}') == Tick(
        max_instances=1, max_steps=10_000
    )
    bodies.read(NoFields, b"")
    bodies.read(NoFields, b"{}")


@pytest.mark.parametrize(
    ("content_type", "taken"),
    [
        (None, True),
        ("application/json", True),
        ("Application/JSON; charset=UTF-8", True),
        ('application/json;charset="utf-8"', True),
        ("application/vnd.my-thing+json", True),
        ("application/json; charset=latin-1", False),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("application/jsonp", False),
        ("", False),
    ],
)
def test_a_body_that_says_it_is_something_else_is_not_read(
    content_type: str | None, taken: bool
) -> None:
    assert is_json(content_type) is taken


@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [
        (NewInstance, b'{"parms":1}', "parms: expected id, params, labels, found parms"),
        (NewInstances, b'{"instances":[{"id":"a"},{"id":"b","no":1}]}',
         "instances[1].no: expected id, params, labels, found no"),
        (NewInstances, b'{"instance":[]}', "instance: expected instances, found instance"),
        (NewEvent, b'{"type":"a","startIfMissing":{"param":1}}',
         "startIfMissing.param: expected params, labels, found param"),
        (NewEvent, b'{"type":"a","start_if_missing":null}',
         "start_if_missing: expected type, payload, startIfMissing, found start_if_missing"),
        (NoFields, b'{"reason":"x"}', "reason: expected no fields, found reason"),
    ],
)  # fmt: skip
def test_a_field_that_is_unknown_is_answered_with_those_that_are_known(
    kind: type[Body], body: bytes, detail: str
) -> None:
    with pytest.raises(Problem) as caught:
        bodies.read(kind, body)
    assert (caught.value.code, caught.value.detail) == ("invalid_body", detail)


def test_bodies_are_held_to_the_limits_of_the_settings() -> None:
    limits = Limits(max_event_type=4, max_event_bytes=20, max_params_bytes=20)
    for kind, body, field, setting in (
        (NewEvent, b'{"type":"paid!"}', "type", "max_event_type"),
        (NewEvent, b'{"type":"paid","payload":"%s"}' % (b"x" * 20), "payload", "max_event_bytes"),
        (NewInstance, b'{"params":"%s"}' % (b"x" * 20), "params", "max_params_bytes"),
        (NewInstance, b'{"id":"%s"}' % (b"x" * 101), "id", "max_instance_id"),
    ):
        with pytest.raises(Problem) as refused:
            bodies.read(kind, body, limits)
        assert refused.value.extensions["field"] == field
        assert f"({setting})" in refused.value.detail
    longer = b'{"id":"%s"}' % (b"x" * 101)
    assert bodies.read(NewInstance, longer, Limits(max_instance_id=101)).id == "x" * 101
