"""Handshakes: what a producer asks of a new address before it sends deliveries there.

They are signed as deliveries are, so they are answered after verification, and go no further.

Source: Slack's `url_verification`; GitHub's `ping`. Terra, Stripe, Shopify and Standard Webhooks
document none.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from headwater.schemas.errors import PARSE_ERRORS

#: A verified body, and those of the handshake's headers that came -> what is answered; None for a
#: delivery.
Handshake: TypeAlias = Callable[[bytes, Mapping[str, str]], str | None]

#: GitHub's header that names the event.
GITHUB_EVENT: Final = "x-github-event"


class _Verification(msgspec.Struct, frozen=True):
    type: str = ""
    challenge: str = ""


def slack(body: bytes, headers: Mapping[str, str]) -> str | None:
    """Slack asks for the challenge that it sends."""
    del headers
    if b"url_verification" not in body:
        return None
    try:
        asked = msgspec.json.decode(body, type=_Verification)
    except PARSE_ERRORS:
        return None
    return asked.challenge if asked.type == "url_verification" else None


def github(body: bytes, headers: Mapping[str, str]) -> str | None:
    """GitHub pings, and is content with any answer of success."""
    del body
    return "pong" if headers.get(GITHUB_EVENT) == "ping" else None


#: The handshakes, by the scheme of those who ask.
HANDSHAKES: Final[Mapping[str, Handshake]] = MappingProxyType({"slack": slack, "github": github})
