"""Deletes expired idempotency keys also while no request reserves a key."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from headwater.projections.gateway_state import SWEEP_BATCH, IdempotencyKeys
from headwater.schemas.errors import StoreUnavailable

#: Pause between sweeps. Requests delete expired keys, too.
_PAUSE_S: Final = 3_600.0
_LOG: Final = logging.getLogger("headwater.gateway")


async def sweep_keys(
    keys: IdempotencyKeys,
    pause_s: float = _PAUSE_S,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Delete expired keys after every pause, until it is cancelled.

    Several gateways may do so at the same time.
    """
    while True:
        await sleep(pause_s)
        try:
            while await keys.sweep() == SWEEP_BATCH:
                pass
        except StoreUnavailable as error:
            _LOG.warning("expired idempotency keys are deleted later: %s", error)
