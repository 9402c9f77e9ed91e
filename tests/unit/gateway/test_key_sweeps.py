"""Expired idempotency keys are deleted while no request reserves one."""

import asyncio
from typing import cast

import pytest

from headwater.gateway.api.workflows.runs.key_sweeps import sweep_keys
from headwater.projections.gateway_state import SWEEP_BATCH, IdempotencyKeys
from headwater.schemas.errors import StoreUnavailable


class MemoryKeys:
    """Has this many expired keys; the first sweep fails."""

    def __init__(self, expired: int) -> None:
        self.expired = expired
        self.available = False

    async def sweep(self) -> int:
        if not self.available:
            self.available = True
            raise StoreUnavailable("expected Postgres, found nothing")
        swept = min(self.expired, SWEEP_BATCH)
        self.expired -= swept
        return swept


def test_all_expired_keys_are_deleted_after_a_pause_and_again_after_a_failure(
    caplog: pytest.LogCaptureFixture,
):
    keys, pauses = MemoryKeys(2 * SWEEP_BATCH + 3), []

    async def sleep(pause_s: float) -> None:
        pauses.append((pause_s, keys.expired))
        if len(pauses) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(sweep_keys(cast("IdempotencyKeys", keys), 60.0, sleep))
    assert pauses == [(60.0, 2 * SWEEP_BATCH + 3), (60.0, 2 * SWEEP_BATCH + 3), (60.0, 0)]
    assert "are deleted later" in caplog.text
