"""Handshakes: requests with which a producer verifies a new address before it sends deliveries.

They are signed like deliveries, so they are answered after verification, and not processed further.

Source: Slack's `url_verification`; GitHub's `ping`. Terra, Stripe, Shopify and Standard Webhooks
document none.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from headwater.schemas.errors import PARSE_ERRORS

#: Takes a verified body and those headers of the handshake that were sent; returns the response
#: body, or None for a delivery.
Handshake: TypeAlias = Callable[[bytes, Mapping[str, str]], str | None]

#: GitHub's header that names the event.
GITHUB_EVENT: Final = "x-github-event"


class _Verification(msgspec.Struct, frozen=True):
    type: str = ""
    challenge: str = ""


def slack(body: bytes, headers: Mapping[str, str]) -> str | None:
    """Return the challenge that Slack sends."""
    del headers
    if b"url_verification" not in body:
        return None
    try:
        verification = msgspec.json.decode(body, type=_Verification)
    except PARSE_ERRORS:
        return None
    return verification.challenge if verification.type == "url_verification" else None


def github(body: bytes, headers: Mapping[str, str]) -> str | None:
    """Respond to GitHub's ping; any successful response is accepted."""
    del body
    return "pong" if headers.get(GITHUB_EVENT) == "ping" else None


#: Handshakes by signature scheme.
HANDSHAKES: Final[Mapping[str, Handshake]] = MappingProxyType({"slack": slack, "github": github})
