"""Bodies of Terra's, well formed and not."""

from collections.abc import Callable

import pytest

from headwater.schemas.errors import MalformedPayload
from headwater.schemas.providers.terra import (
    Delivery,
    Envelope,
    Unreadable,
    User,
    decode_daily,
    decode_envelope,
    decode_sleep,
)

DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("body", "is_lab_report"),
    [
        (b'{"upload_id": "u", "data": []}', True),
        (b'{"upload_id": "u", "data": [{}], "type": null}', True),
        (b'{"upload_id": "u", "data": {}}', False),
        (b'{"upload_id": "u", "data": null}', False),
        (b'{"upload_id": "u"}', False),
        (b'{"data": []}', False),
        (b'{"upload_id": "u", "data": [], "type": "daily"}', False),
    ],
)
def test_a_lab_report_is_known_by_its_shape(body: bytes, is_lab_report: bool):
    assert decode_envelope(body).is_lab_report is is_lab_report


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "expected JSON, found an empty body"),
        (
            b"nonsense" * 9,
            "expected JSON, found 72 bytes that start with b'nonsensenonsensenonsense'",
        ),
        (b"[]", "expected a JSON object, found 2 bytes .*array"),
        (b'{"type": 7, "x', "expected a JSON object, found 14 bytes"),
        (b'{"type": "\xff"}', "expected JSON"),
        (b'{"x": ' + DEEP, "expected JSON"),
    ],
)
def test_an_envelope_that_cannot_be_read_says_why(body: bytes, message: str):
    with pytest.raises(MalformedPayload, match=message):
        decode_envelope(body)


@pytest.mark.parametrize(
    ("body", "envelope"),
    [
        (b'{"type": 7, "status": "success"}', Envelope(status="success")),
        (b'{"type": "auth", "status": 200}', Envelope(type="auth")),
        (b'{"type": "auth", "user": "someone"}', Envelope(type="auth")),
        (
            b'{"type": "auth", "user": {"user_id": "t", "scopes": ["a"], "reference_id": 5}}',
            Envelope(type="auth", user=User(user_id="t")),
        ),
        (
            b'{"old_user": {"user_id": "t", "last_webhook_update": 5}, "new_user": null}',
            Envelope(old_user=User(user_id="t")),
        ),
    ],
)
def test_a_field_of_another_type_counts_as_absent(body: bytes, envelope: Envelope):
    assert decode_envelope(body) == envelope


@pytest.mark.parametrize("decode", [decode_daily, decode_sleep])
def test_the_records_of_a_delivery_are_read_whatever_its_user_is_like(
    decode: Callable[[bytes], Delivery[object]],
):
    delivery = decode(b'{"user": {"user_id": "t", "last_webhook_update": 5}, "data": [{}]}')
    assert (delivery.user, len(delivery.data)) == (User(user_id="t"), 1)
    assert decode(b'{"user": "someone", "data": [{}]}').user == User()


@pytest.mark.parametrize("decode", [decode_daily, decode_sleep])
@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"data": 1}', b'{"user": {"user_id": "\xff"}}', DEEP]
)
def test_a_delivery_that_cannot_be_read_is_malformed(decode: object, body: bytes):
    assert callable(decode)
    with pytest.raises(MalformedPayload):
        decode(body)


@pytest.mark.parametrize("decode", [decode_daily, decode_sleep])
def test_a_field_of_the_wrong_type_is_left_out_and_what_is_no_record_is_unreadable(
    decode: Callable[[bytes], Delivery[object]],
):
    body = b'{"data": [{}, {"scores": {"sleep": "good"}}, 7, {"scores": {"sleep": "\xff"}}]}'
    first, second, *others = decode(body).data
    assert not isinstance(first, Unreadable)
    assert not isinstance(second, Unreadable)
    assert all(isinstance(record, Unreadable) for record in others)
    assert decode(body).wrong == ("data[1].scores.sleep",)


@pytest.mark.parametrize("user", [b'"x"', b"7", b'{"user_id": 7}', b"null"])
def test_a_user_of_the_wrong_type_counts_as_absent(user: bytes):
    for decode in (decode_daily, decode_sleep):
        assert decode(b'{"user": %b, "data": [{}]}' % user).user == User()
