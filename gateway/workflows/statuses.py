"""How instances stand, asked of Postgres by all together who ask at the same time.

Those who wait until Postgres has what they did are told so together, and each then asks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from headwater.schemas.answers import InstanceStatus

#: An output may have a megabyte.
_TOGETHER: Final = 50

#: The name of a workflow, and the id of an instance of it.
Named: TypeAlias = tuple[str, str]
Ask: TypeAlias = Callable[[Sequence[Named]], Awaitable[Mapping[Named, InstanceStatus]]]


class Statuses:
    """How instances stand."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._wanted: dict[Named, asyncio.Future[InstanceStatus | None]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def of(self, workflow: str, instance_id: str) -> InstanceStatus | None:
        """How an instance stands now; None when Postgres has none.

        Errors: StoreUnavailable.
        """
        if not self._wanted:
            asking = asyncio.create_task(self._ask_for_all())
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        named = workflow, instance_id
        if named not in self._wanted:
            self._wanted[named] = asyncio.get_running_loop().create_future()
        # Others may wait for the same.
        return await asyncio.shield(self._wanted[named])

    async def _ask_for_all(self) -> None:
        wanted, self._wanted = self._wanted, {}
        names = list(wanted)
        for at in range(0, len(names), _TOGETHER):
            some = names[at : at + _TOGETHER]
            try:
                found = await self._ask(some)
            except Exception as error:  # noqa: BLE001 (it is told to all who asked)
                for named in some:
                    wanted[named].set_exception(error)
                    wanted[named].exception()  # Perhaps nobody waits any more.
            else:
                for named in some:
                    wanted[named].set_result(found.get(named))
