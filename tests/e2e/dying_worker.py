"""A worker that dies while a commit unit has several batches.

TEST_DIES_AT names when: after its second batch, before its append, before its store is written,
before its offsets may be committed, or never. It fetches few records at once, so that a backlog of
hundreds is many batches.
"""

import os
import signal
from typing import Final

from headwater.gateway.cli.main import main
from headwater.streams.pipeline import _faust
from headwater.streams.pipeline._faust import Batch
from headwater.streams.pipeline.fenced_log import FencedLog
from headwater.streams.pipeline.partition_lease import PipelineLease
from headwater.streams.pipeline.partition_runner import CommitUnit

#: When a worker may die, in the order of what it does: the method that it does not finish.
DEATHS: Final = {
    "batch": (CommitUnit, "take"),
    "append": (FencedLog, "append"),
    "write": (PipelineLease, "write"),
    "done": (CommitUnit, "done"),
}
_RECORDS_A_FETCH: Final = 20


def dying(owner: type, name: str) -> None:
    """Replaces a method by one that kills the process while a unit has several batches."""
    method, add = getattr(owner, name), CommitUnit.add
    batches = 0

    def adding(unit: CommitUnit, batch: Batch, seconds: float) -> None:
        nonlocal batches
        add(unit, batch, seconds)
        batches = len(unit.batches)

    def dies(*arguments: object) -> object:
        if batches > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments)

    CommitUnit.add = adding  # type: ignore[method-assign]
    setattr(owner, name, dies)


if __name__ == "__main__":
    _faust._RECORDS_A_FETCH = _RECORDS_A_FETCH  # type: ignore[misc]
    if os.environ["TEST_DIES_AT"] in DEATHS:
        dying(*DEATHS[os.environ["TEST_DIES_AT"]])
    main()
