"""Bodies of Terra's, well formed and not."""

from collections.abc import Callable

import pytest

from headwater.schemas.errors import MalformedPayload
from headwater.schemas.providers.terra import (
    Delivery,
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
        (b'{"type": 7}', r"expected a Terra delivery, found another shape: .*\$.type"),
        (b"[]", "expected a Terra delivery, found another shape"),
        (b'{"type": "\xff"}', "expected JSON"),
        (b'{"x": ' + DEEP, "expected JSON"),
    ],
)
def test_an_envelope_that_cannot_be_read_says_why(body: bytes, message: str):
    with pytest.raises(MalformedPayload, match=message):
        decode_envelope(body)


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
