"""Runs are folded beside the event loop, record by record."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence

from headwater import WorkflowTest
from headwater.gateway.workflows.folding import Folds
from headwater.processors.graph.past import Past
from headwater.processors.graph.tracing import Tracing
from headwater.schemas.history import HistoryAppended
from tests.workflows.graphing import fan, worker


async def history() -> Sequence[HistoryAppended]:
    world: list[WorkflowTest] = []
    async with WorkflowTest([fan()], tasks=[worker(world, [])]) as test:
        await test.create("g", id="i", params={"items": [1, 2, 3]})
        await test.run_until_idle()
        return test.records("g", "i")


class Busy:
    """A log, while the threads of which others have the use are taken one by one."""

    def __init__(self, records: Sequence[HistoryAppended]) -> None:
        self._records = records
        self.over = threading.Event()

    async def read(
        self, partition: int, start: int, key: str
    ) -> AsyncGenerator[list[HistoryAppended]]:
        loop = asyncio.get_running_loop()
        for record in self._records:
            loop.run_in_executor(None, self.over.wait, 60)
            yield [record]


def test_a_run_is_folded_right_whatever_other_threads_do() -> None:
    """Expressions can be evaluated in the thread alone that their facts were made in."""

    async def scenario() -> None:
        log = Busy(await history())
        tracing = Tracing(Past("g", "i", 0))
        folds = Folds(log)
        try:
            page = await folds.fold("g/i", 0, 0, tracing, tracing.page)
        finally:
            log.over.set()
            folds.close()
        assert [each.same for each in page.decided] == [True] * len(page.decided)
        assert len(page.decided) > 3

    asyncio.run(scenario())
