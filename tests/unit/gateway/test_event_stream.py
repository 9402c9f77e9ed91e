"""Server-sent events, as the HTML standard reads them, however the bytes are cut."""

import pytest

from headwater.gateway.client.answers import UnexpectedAnswerError
from headwater.gateway.client.session import EventStream, Message

CASES = [
    (b"data: a\n\n", [("message", "", "a")]),
    (b"event: log\nid: 7\ndata: {}\n\n", [("log", "7", "{}")]),
    (b"data: a\r\ndata: b\r\n\r\n", [("message", "", "a\nb")]),
    (b"data: a\rdata: b\r\r\n", [("message", "", "a\nb")]),
    (b"id: 1\ndata: a\n\ndata: b\n\n", [("message", "1", "a"), ("message", "1", "b")]),
    (b"id: 1\n\ndata: b\n\n", [("message", "1", "b")]),
    (b"id: 1\0\ndata: b\n\n", [("message", "", "b")]),
    (b": comment\n\n:\n\ndata:a\ndata\n\n", [("message", "", "a\n")]),
    (b"data: \xe2\x80\xa8\xc3\xbc\n\n", [("message", "", "\u2028ü")]),
    (b"event: step\n\nnews: x\ndata: a\n\n", [("message", "", "a")]),
    (b"data: a", []),
]


@pytest.mark.parametrize(("text", "messages"), CASES)
def test_a_stream_says_the_same_however_it_is_cut(
    text: bytes, messages: list[tuple[str, str, str]]
):
    expected = [Message(*message) for message in messages]
    # The last \r of a stream may be half of a \r\n, so one more line is needed to know.
    text = text if not text.endswith(b"\r") else text + b":"
    for size in range(1, len(text) + 1):
        stream = EventStream()
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert [result for piece in pieces for result in stream.feed(piece)] == expected, size


def test_a_stream_goes_on_with_the_id_that_it_had():
    assert list(EventStream("41").feed(b"data: a\n\n")) == [Message("message", "41", "a")]


def test_the_server_says_when_to_come_back():
    stream = EventStream()
    assert list(stream.feed(b"retry: soon\nretry: 1500\n\n")) == []
    assert stream.retry_ms == 1500


def test_a_message_without_end_is_given_up():
    stream = EventStream()
    piece = b"data: " + b"x" * 1024 * 1024 + b"\n"
    with pytest.raises(UnexpectedAnswerError, match="found a longer one"):
        all(not list(stream.feed(piece)) for _ in range(20))
