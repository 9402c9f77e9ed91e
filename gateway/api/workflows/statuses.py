"""Statuses of instances, with concurrent lookups combined into one query to Postgres.

Requests that wait for the same position of the projection continue at the same time, and then all
of them read a status.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from headwater.schemas.answers import InstanceStatus

#: Instances of one query; the output of one may have a megabyte.
_BATCH_SIZE: Final = 50

#: Workflow name and instance id.
InstanceKey: TypeAlias = tuple[str, str]
FetchStatuses: TypeAlias = Callable[
    [Sequence[InstanceKey]], Awaitable[Mapping[InstanceKey, InstanceStatus]]
]


class Statuses:
    """Looks up statuses of instances in batches."""

    def __init__(self, fetch: FetchStatuses) -> None:
        self._fetch = fetch
        self._pending: dict[InstanceKey, asyncio.Future[InstanceStatus | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def status_of(self, workflow: str, instance_id: str) -> InstanceStatus | None:
        """Return the current status of an instance; None if Postgres does not have it.

        Raises:
            StoreUnavailable: Postgres could not be read.
        """
        if not self._pending:
            task = asyncio.create_task(self._fetch_pending())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        key = workflow, instance_id
        if key not in self._pending:
            self._pending[key] = asyncio.get_running_loop().create_future()
        # Other callers may wait for the same future.
        return await asyncio.shield(self._pending[key])

    async def _fetch_pending(self) -> None:
        pending, self._pending = self._pending, {}
        keys = list(pending)
        for start in range(0, len(keys), _BATCH_SIZE):
            batch = keys[start : start + _BATCH_SIZE]
            try:
                statuses = await self._fetch(batch)
            except Exception as error:  # noqa: BLE001 (every waiting caller gets it)
                for key in batch:
                    pending[key].set_exception(error)
                    pending[key].exception()  # Marks it as retrieved: all callers may have left.
            else:
                for key in batch:
                    pending[key].set_result(statuses.get(key))
