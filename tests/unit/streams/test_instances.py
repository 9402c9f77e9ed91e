"""The bytes of an instance: what is kept of a run that is over."""

import msgspec
import pytest

from headwater.processors.code.state import CodeRun
from headwater.schemas.statuses import EntryStatus, RunStatus
from headwater.streams.engine.live_instances import LiveInstance
from tests.fakes.engines import REPLAY
from tests.unit.processors.replay.states import a_run, an_entry, copy_of, mail


def _run(status: RunStatus) -> CodeRun:
    done = an_entry(status=EntryStatus.COMPLETED, sequence=3, result="1")
    return a_run(status, entries={"a": done}, mailbox=[mail(1)], received={"other/x": 4})


def _stored(run: CodeRun) -> bytes:
    return LiveInstance("order/o-1", REPLAY, run).stored(0).state


@pytest.mark.parametrize("status", [RunStatus.COMPLETE, RunStatus.TERMINATED])
def test_of_a_run_that_is_over_what_a_restart_needs_is_kept(status: RunStatus):
    kept = msgspec.msgpack.decode(_stored(_run(status)), type=CodeRun)
    assert (kept.entries, kept.mailbox, kept.received) == ({}, [], {"other/x": 4})


@pytest.mark.parametrize("status", [RunStatus.ERRORED, RunStatus.WAITING, RunStatus.PAUSED])
def test_of_a_run_that_may_go_on_all_is_kept(status: RunStatus):
    run = _run(status)
    assert msgspec.msgpack.decode(_stored(copy_of(run)), type=CodeRun) == run
