"""Bodies in pieces, bodies that lie about their length, and too many bodies at once."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from headwater.gateway.http.bodies import BodyReader, Hold, Refusal


def read(
    reader: BodyReader, pieces: Iterable[bytes | None], length: int | None = None
) -> bytes | Refusal:
    """Reads pieces as a server would hand them; a None is the sender going away."""
    messages = [
        {"type": "http.disconnect"}
        if piece is None
        else {"type": "http.request", "body": piece, "more_body": True}
        for piece in pieces
    ]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    left = iter(messages)

    async def receive() -> Any:  # noqa: ANN401 (what ASGI says)
        return next(left)

    hold = Hold(reader)
    try:
        return asyncio.run(reader.read(receive, length, hold))
    finally:
        hold.release()


def test_pieces_become_a_body() -> None:
    assert read(BodyReader(max_bytes=10), [b"ab", b"", b"cd"]) == b"abcd"


def test_a_body_without_length_may_have_the_limit_and_no_byte_more() -> None:
    assert read(BodyReader(max_bytes=4), [b"ab", b"cd"]) == b"abcd"
    refused = read(BodyReader(max_bytes=4), [b"ab", b"cde"])
    assert isinstance(refused, Refusal)
    assert refused.code == "body_too_large"


def test_an_announced_length_above_the_limit_is_refused_before_a_byte_is_read() -> None:
    refused = read(BodyReader(max_bytes=4), [], length=5)
    assert isinstance(refused, Refusal)
    assert refused.code == "body_too_large"


@pytest.mark.parametrize("pieces", [[None], [b"a", None]])
def test_a_body_that_breaks_off_is_refused(pieces: list[bytes | None]) -> None:
    refused = read(BodyReader(max_bytes=4), pieces)
    assert isinstance(refused, Refusal)
    assert refused.code == "bad_request"


def test_too_many_bytes_held_at_once_are_refused_until_they_are_given_back() -> None:
    reader = BodyReader(max_bytes=10, held_bytes_max=12)
    other = Hold(reader)
    assert other.grow(8) is None
    refused = read(reader, [b"12345"])
    assert isinstance(refused, Refusal)
    assert refused.code == "overloaded"
    other.release()
    assert read(reader, [b"12345"]) == b"12345"
    assert reader.held_bytes == 0
