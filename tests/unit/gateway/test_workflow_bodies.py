"""Bodies of requests: what is taken, and that every fault is a problem that names its field."""

from collections.abc import Callable
from typing import Any

import pytest

from headwater.gateway.http.problems import Problem
from headwater.gateway.workflows import bodies
from headwater.gateway.workflows.bodies import NESTING_MAX, NewEvent, NewInstance, Tick

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", NewInstance(None, "null")),
        (b" \n", NewInstance(None, "null")),
        (b"{}", NewInstance(None, "null")),
        (b'{"id":null,"params":null}', NewInstance(None, "null")),
        (b'{"id":"a-1_B"}', NewInstance("a-1_B", "null")),
        (b'{"id":"' + b"a" * 100 + b'"}', NewInstance("a" * 100, "null")),
        (b'{ "params" : {"b": 1.0, "a":[1, 2] } }', NewInstance(None, '{"b": 1.0, "a":[1, 2] }')),
        ('{"params":"é\\u00e9\\u0000"}'.encode(), NewInstance(None, '"é\\u00e9\\u0000"')),
        (b'{"params":123456789012345678901234567890}', NewInstance(None, "1234567890" * 3)),
        (b'{"params":"' + b"x" * (MIB - 2) + b'"}', NewInstance(None, f'"{"x" * (MIB - 2)}"')),
        (b'{"params":{"id":1,"more":{"id":2}}}', NewInstance(None, '{"id":1,"more":{"id":2}}')),
    ],
)
def test_an_instance_is_read_and_its_params_stay_as_they_came(
    body: bytes, found: NewInstance
) -> None:
    assert bodies.read_instance(body) == found


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

READERS: list[Callable[[bytes], Any]] = [
    bodies.read_instance,
    bodies.read_batch,
    bodies.read_event,
    bodies.read_retry,
    bodies.read_tick,
    bodies.read_nothing,
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: ascii(body[:30]))
def test_what_is_no_json_that_everybody_reads_alike_is_refused(
    read: Callable[[bytes], Any], body: bytes
) -> None:
    assert fault(read, body) == ("invalid_body", "body")


def test_a_body_may_be_nested_up_to_the_limit() -> None:
    assert bodies.read_instance(nested(NESTING_MAX)).params.startswith("[[")
    brackets = b'{"params":"' + b"[" * 1_000 + b'\\"["}'
    assert bodies.read_instance(brackets).params.endswith('["')


@pytest.mark.parametrize(
    ("read", "body", "code", "field"),
    [
        (bodies.read_instance, b"[]", "invalid_body", "body"),
        (bodies.read_instance, b"null", "invalid_body", "body"),
        (bodies.read_instance, b'{"ID":"a"}', "invalid_body", "ID"),
        (bodies.read_instance, b'{"a\\u0000b":"a"}', "invalid_body", "a\\x00b"),
        (bodies.read_instance, b'{"id":1}', "invalid_body", "id"),
        (bodies.read_instance, b'{"id":["a"]}', "invalid_body", "id"),
        (bodies.read_instance, b'{"id":""}', "INVALID_INSTANCE_ID", "id"),
        (bodies.read_instance, b'{"id":"-a"}', "INVALID_INSTANCE_ID", "id"),
        (bodies.read_instance, b'{"id":"a b"}', "INVALID_INSTANCE_ID", "id"),
        (bodies.read_instance, b'{"id":"a\\u0000"}', "INVALID_INSTANCE_ID", "id"),
        (bodies.read_instance, b'{"id":"a\\n"}', "INVALID_INSTANCE_ID", "id"),
        (bodies.read_instance, '{"id":"é"}'.encode(), "INVALID_INSTANCE_ID", "id"),
        (bodies.read_instance, b'{"id":"%s"}' % (b"a" * 101), "INVALID_INSTANCE_ID", "id"),
        (
            bodies.read_instance,
            b'{"params":"%s"}' % (b"x" * (MIB - 1)),
            "WORKFLOW_PARAMS_INVALID",
            "params",
        ),
        (bodies.read_batch, b"", "invalid_body", "instances"),
        (bodies.read_batch, b"{}", "invalid_body", "instances"),
        (bodies.read_batch, b'{"instances":{}}', "invalid_body", "instances"),
        (bodies.read_batch, b'{"instances":[]}', "invalid_body", "instances"),
        (bodies.read_batch, b'{"instances":[1]}', "invalid_body", "instances[0]"),
        (bodies.read_batch, b'{"instances":[{}]}', "invalid_body", "instances[0].id"),
        (bodies.read_batch, b'{"instances":[{"id":null}]}', "invalid_body", "instances[0].id"),
        (
            bodies.read_batch,
            b'{"instances":[{"id":"a"},{"id":"-"}]}',
            "INVALID_INSTANCE_ID",
            "instances[1].id",
        ),
        (
            bodies.read_batch,
            b'{"instances":[{"id":"a"},{"id":"a"}]}',
            "invalid_body",
            "instances[1].id",
        ),
        (
            bodies.read_batch,
            b'{"instances":[{"id":"a","x":1}]}',
            "invalid_body",
            "instances[0].x",
        ),
        (
            bodies.read_batch,
            b'{"instances":[{"id":"a","params":"%s"}]}' % (b"x" * MIB),
            "WORKFLOW_PARAMS_INVALID",
            "instances[0].params",
        ),
        (bodies.read_event, b"", "invalid_body", "type"),
        (bodies.read_event, b'{"type":null}', "invalid_body", "type"),
        (bodies.read_event, b'{"type":7}', "invalid_body", "type"),
        (bodies.read_event, b'{"type":""}', "INVALID_EVENT_TYPE", "type"),
        (bodies.read_event, b'{"type":"a.b"}', "INVALID_EVENT_TYPE", "type"),
        (bodies.read_event, b'{"type":"%s"}' % (b"a" * 101), "INVALID_EVENT_TYPE", "type"),
        (bodies.read_event, b'{"type":"a","Payload":1}', "invalid_body", "Payload"),
        (
            bodies.read_event,
            b'{"type":"a","payload":"%s"}' % (b"x" * MIB),
            "INVALID_EVENT_PAYLOAD",
            "payload",
        ),
        (
            bodies.read_event,
            b'{"type":"a","startIfMissing":true}',
            "invalid_body",
            "startIfMissing",
        ),
        (
            bodies.read_event,
            b'{"type":"a","startIfMissing":{"id":"a"}}',
            "invalid_body",
            "startIfMissing.id",
        ),
        (
            bodies.read_event,
            b'{"type":"a","startIfMissing":{"params":"%s"}}' % (b"x" * MIB),
            "WORKFLOW_PARAMS_INVALID",
            "startIfMissing.params",
        ),
        (bodies.read_retry, b'{"fromStep":1}', "invalid_body", "fromStep"),
        (bodies.read_retry, b'{"fromStep":""}', "invalid_body", "fromStep"),
        (bodies.read_retry, b'{"fromStep":"a\\u0000"}', "invalid_body", "fromStep"),
        (bodies.read_retry, b'{"fromStep":"%s"}' % (b"a" * 4_097), "invalid_body", "fromStep"),
        (bodies.read_retry, b'{"step":"a"}', "invalid_body", "step"),
        (bodies.read_tick, b'{"maxSteps":0}', "invalid_body", "maxSteps"),
        (bodies.read_tick, b'{"maxSteps":-1}', "invalid_body", "maxSteps"),
        (bodies.read_tick, b'{"maxSteps":1.5}', "invalid_body", "maxSteps"),
        (bodies.read_tick, b'{"maxSteps":true}', "invalid_body", "maxSteps"),
        (bodies.read_tick, b'{"maxInstances":"1"}', "invalid_body", "maxInstances"),
        (bodies.read_tick, b'{"maxInstances":10001}', "invalid_body", "maxInstances"),
        (bodies.read_tick, b'{"max":1}', "invalid_body", "max"),
        (bodies.read_nothing, b'{"reason":"x"}', "invalid_body", "reason"),
        (bodies.read_nothing, b"1", "invalid_body", "body"),
    ],
    ids=lambda value: value.__name__ if callable(value) else ascii(value)[:50],
)
def test_a_fault_is_named(read: Callable[[bytes], Any], body: bytes, code: str, field: str) -> None:
    assert fault(read, body) == (code, field)


def fault(read: Callable[[bytes], Any], body: bytes) -> tuple[str, Any]:
    with pytest.raises(Problem) as caught:
        read(body)
    assert len(caught.value.detail) < 500
    return caught.value.code, caught.value.extensions["field"]


def test_a_batch_is_read_in_its_order() -> None:
    body = b'{"instances":[{"id":"b","params":[ 1]},{"id":"a"}]}'
    assert bodies.read_batch(body) == [("b", "[ 1]"), ("a", "null")]
    hundred = b",".join(b'{"id":"i%d"}' % number for number in range(100))
    assert len(bodies.read_batch(b'{"instances":[%s]}' % hundred)) == 100
    assert fault(bodies.read_batch, b'{"instances":[%s,{"id":"x"}]}' % hundred)[1] == "instances"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"type":"go"}', NewEvent("go", "null", None)),
        (b'{"type":"go","payload":{"a": 1}}', NewEvent("go", '{"a": 1}', None)),
        (b'{"type":"go","startIfMissing":null}', NewEvent("go", "null", None)),
        (b'{"type":"go","startIfMissing":{}}', NewEvent("go", "null", "null")),
        (b'{"type":"go","startIfMissing":{"params":[ ]}}', NewEvent("go", "null", "[ ]")),
    ],
)
def test_an_event_is_read(body: bytes, found: NewEvent) -> None:
    assert bodies.read_event(body) == found


def test_what_may_be_left_out_may() -> None:
    assert bodies.read_retry(b"") is None
    assert bodies.read_retry(b'{"fromStep":null}') is None
    assert bodies.read_retry(b'{"fromStep":"pages/~3/fetch"}') == "pages/~3/fetch"
    assert bodies.read_tick(b"{}") == Tick(None, None)
    assert bodies.read_tick(b'{"maxInstances":1,"maxSteps":10000}') == Tick(1, 10_000)
    bodies.read_nothing(b"")
    bodies.read_nothing(b"{}")


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
    assert bodies.is_json(content_type) is taken
