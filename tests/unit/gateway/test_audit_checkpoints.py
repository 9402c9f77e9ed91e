"""Gateways append a checkpoint an hour, if there is something new, and print it."""

import asyncio
import logging
from itertools import count
from typing import Any

import click
import msgspec
import pytest

from headwater.gateway.api.audit import Auditing
from headwater.gateway.api.audit_checkpoints import HOUR_MS, Checkpoints
from headwater.gateway.api.monitoring import Metrics
from headwater.gateway.cli.audit import _check_hash
from headwater.projections.audit import GENESIS, Chained, entry_of, linked
from headwater.projections.audit_checkpoints import CHECKPOINT, checkpoint_of, is_signed
from tests.fakes.audit_log import MemoryAudit
from tests.unit.projections.test_audit_verification import chained, record

KEY = "a key of 16 characters and more"


class MemoryRows:
    """Rows of the audit log, newest first, as the query of a listing answers them."""

    def __init__(self, audit: MemoryAudit) -> None:
        self._audit = audit

    async def answers(
        self, _statement: object, *, project_id: str, action: str | None, limit: int, **_: object
    ) -> list[dict[str, Any]]:
        rows = [
            msgspec.structs.asdict(row.entry) | {"hash": row.hash}
            for row in chained(self._audit.log)
            if row.entry.project_id == project_id and action in {None, row.entry.action}
        ]
        return rows[::-1][:limit]


class Clock:
    def __init__(self) -> None:
        self.now_ms = 10 * HOUR_MS

    def __call__(self) -> int:
        return self.now_ms


def checkpoints(audit: MemoryAudit, clock: Clock, key: str = KEY) -> Checkpoints:
    ids = count()
    auditing = Auditing(
        audit,
        project="shop",
        peer_of=lambda _: "",
        metrics=Metrics(),
        clock=clock,
        new_id=lambda: f"checkpoint-{next(ids)}",
    )
    rows: Any = MemoryRows(audit)
    return Checkpoints(rows, auditing, project="shop", key=key, clock=clock)


def test_a_checkpoint_is_appended_once_an_hour_if_there_is_something_new(
    caplog: pytest.LogCaptureFixture,
):
    audit, clock = MemoryAudit(), Clock()
    ours = checkpoints(audit, clock)
    another = checkpoints(audit, clock)

    async def scenario() -> None:
        assert await ours.append_due() is None  # The log is empty.
        for number, project in enumerate(("shop", "shop", "other")):
            await audit.append(record(number, project))
        with caplog.at_level(logging.INFO):
            first = await ours.append_due()
        assert first is not None
        assert first.offset == 1
        assert await another.append_due() is None  # Also by another gateway.
        clock.now_ms += HOUR_MS
        assert await another.append_due() is None  # Nothing is new.
        await audit.append(record(4))
        second = await another.append_due()
        assert second is not None
        assert second.offset == 4

    asyncio.run(scenario())
    entry = entry_of(audit.log[3], 3)
    checkpoint = checkpoint_of(entry.metadata_json)
    assert checkpoint is not None
    assert (entry.action, entry.key_id, entry.result) == (CHECKPOINT, "gateway", "success")
    assert checkpoint.hash == chained(audit.log)[1].hash.hex()
    assert is_signed(checkpoint, [KEY])
    assert not is_signed(checkpoint, ["another key"])
    assert f"head=1:{checkpoint.hash} signature={checkpoint.signature}" in caplog.text


def test_without_a_key_a_checkpoint_is_printed_and_not_signed(caplog: pytest.LogCaptureFixture):
    audit = MemoryAudit()

    async def scenario() -> None:
        await audit.append(record(0))
        await checkpoints(audit, Clock(), key="").append_due()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert "signature=none" in caplog.text


def exported(rows: list[Chained]) -> None:
    heads: dict[str, bytes] = {}
    for row in rows:
        _check_hash(row, heads)


def test_an_export_ends_at_an_entry_with_another_hash():
    records = [record(0), record(1, "other"), record(2)]
    rows = chained(records)
    exported(rows)
    missing = [rows[1], rows[2]]
    with pytest.raises(click.ClickException, match="entry-2 at 2, or one before it, was changed"):
        exported(missing)
    changed = Chained(entry_of(record(0, resource="/else"), 0), rows[0].hash)
    with pytest.raises(click.ClickException, match="entry-0"):
        exported([changed, *rows[1:]])
    assert linked(GENESIS, rows[0].entry) == rows[0].hash
