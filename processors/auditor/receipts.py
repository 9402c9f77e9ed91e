"""Receipts: signed statements that a delivery was received, and what became of it."""

import hmac
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

_PURPOSE: Final = b"headwater receipt\n"
_encode: Final = msgspec.json.Encoder(order="sorted").encode


class ReceiptOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a delivery when the receipt was issued.

    Attributes:
        status: processed, skipped, parked or dead.
        reason: Why, unless it was processed.
        rows: Number of rows that it changed.
        at_ms: When it was recorded, Unix milliseconds.
        position: Where the pipeline read the delivery.
    """

    status: str
    reason: str
    rows: int
    at_ms: int
    position: str


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt.

    Attributes:
        project: The project.
        delivery: Id of the delivery.
        request: Id of the request that brought it.
        source: Its source.
        type: Its type.
        received_at_ms: When its signature was verified, Unix milliseconds.
        sha256: SHA-256 of its body, hexadecimal.
        bytes: Size of its body.
        topic: The topic that has it.
        partition: Its partition.
        offset: Its offset.
        outcome: What became of it; None if that is not known yet.
        issued_at_ms: When the receipt was issued, Unix milliseconds.
        format: Version of this format.
        signature: HMAC-SHA256 of all others, hexadecimal; empty without a key.
    """

    project: str
    delivery: str
    request: str
    source: str
    type: str
    received_at_ms: int
    sha256: str
    bytes: int
    topic: str
    partition: int
    offset: int
    outcome: ReceiptOutcome | None
    issued_at_ms: int
    format: int = 1
    signature: str = ""


def signed(receipt: Receipt, key: str) -> Receipt:
    """Return a receipt with its signature; without a key it has none."""
    if not key:
        return receipt
    return msgspec.structs.replace(receipt, signature=_signature(receipt, key))


def is_signed(receipt: Receipt, keys: Iterable[str]) -> bool:
    """Return whether one of the keys signed a receipt."""
    return any(hmac.compare_digest(receipt.signature, _signature(receipt, key)) for key in keys)


def is_body(receipt: Receipt, body: bytes) -> bool:
    """Return whether bytes are the body of the delivery."""
    return len(body) == receipt.bytes and sha256(body).hexdigest() == receipt.sha256


def _signature(receipt: Receipt, key: str) -> str:
    text = _PURPOSE + _encode(msgspec.structs.replace(receipt, signature=""))
    return hmac.new(key.encode(), text, sha256).hexdigest()
