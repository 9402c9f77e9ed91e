"""Handshakes, as Slack and GitHub document them."""

import pytest

from headwater.processors.sources import HANDSHAKES


@pytest.mark.parametrize(
    ("scheme", "body", "headers", "answer"),
    [
        (
            "slack",
            b'{"token":"x","challenge":"3eZbrw1a","type":"url_verification"}',
            {},
            "3eZbrw1a",
        ),
        ("slack", b'{"type":"event_callback","event":{"text":"url_verification"}}', {}, None),
        ("slack", b'payload={"type":"url_verification"}', {}, None),
        ("slack", b'{"type":"url_verification","challenge":7}', {}, None),
        ("slack", b'{"type":"url_verification","challenge":"\xff"}', {}, None),
        ("slack", b'{"x":' + b"[" * 9_000 + b',"type":"url_verification"', {}, None),
        ("github", b'{"zen":"Keep it logically awesome."}', {"x-github-event": "ping"}, "pong"),
        ("github", b"{}", {"x-github-event": "push"}, None),
        ("github", b"{}", {}, None),
    ],
)
def test_a_handshake_is_answered_and_a_delivery_is_not_one(
    scheme: str, body: bytes, headers: dict[str, str], answer: str | None
):
    assert HANDSHAKES[scheme](body, headers) == answer
