"""Callbacks that fail until they are mended, and what retries their runs."""

from collections.abc import Callable

from headwater import NonRetryableError, WorkflowTest
from tests.workflows.running import Instance


class Broken:
    """Callbacks that fail for good until they are mended."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.mended: set[str] = set()

    def of(self, name: str, value: object = None) -> Callable[[], object]:
        def callback() -> object:
            self.calls.append(name)
            if name not in self.mended:
                raise NonRetryableError(f"{name} is broken")
            return name if value is None else value

        return callback

    def taken(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


def well(*names: str) -> Broken:
    """All of these work."""
    work = Broken()
    work.mended.update(names)
    return work


async def retried(test: WorkflowTest, instance: Instance, from_step: str | None = None) -> None:
    await instance.retry(from_step=from_step)
    await test.run_until_idle()
