"""Receipts prove that nothing of them was changed."""

from hashlib import sha256
from typing import Any

import msgspec
import pytest

from headwater.processors.auditor.receipts import (
    Receipt,
    ReceiptOutcome,
    is_body,
    is_signed,
    signed,
)

BODY = b'{"type": "daily"}'
OUTCOME = ReceiptOutcome(status="processed", reason="", rows=1, at_ms=9, position="webhooks/1@2")
RECEIPT = Receipt(
    project="default",
    delivery="d" * 32,
    request="r",
    source="terra",
    type="daily",
    received_at_ms=7,
    sha256=sha256(BODY).hexdigest(),
    bytes=len(BODY),
    topic="webhooks",
    partition=1,
    offset=2,
    outcome=OUTCOME,
    issued_at_ms=11,
)


def test_a_receipt_is_verified_with_any_of_the_keys():
    receipt = signed(RECEIPT, "old")
    assert is_signed(receipt, ["new", "old"])
    assert not is_signed(receipt, ["new"])
    assert not is_signed(RECEIPT, ["old"])
    assert signed(RECEIPT, "") == RECEIPT
    # Whoever has it as JSON, in whatever order, can verify it.
    again = msgspec.json.decode(msgspec.json.encode(receipt), type=Receipt)
    assert is_signed(again, ["old"])


@pytest.mark.parametrize(
    "changed",
    [
        {"offset": 3},
        {"received_at_ms": 8},
        {"sha256": "0" * 64},
        {"outcome": None},
        {"outcome": msgspec.structs.replace(OUTCOME, status="dead")},
    ],
    ids=["offset", "time", "hash", "no outcome", "status"],
)
def test_whatever_is_changed_shows(changed: dict[str, Any]):
    receipt = msgspec.structs.replace(signed(RECEIPT, "key"), **changed)
    assert not is_signed(receipt, ["key"])


def test_a_body_is_compared_by_its_hash():
    assert is_body(RECEIPT, BODY)
    assert not is_body(RECEIPT, BODY + b" ")
