"""Who is told that a command of theirs was refused."""

import pytest

from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import LOG_MESSAGE_MAX
from headwater.schemas.history import Command, CommandSent, NoteRefusal, Sender, SendEvent, StartRun
from headwater.streams.engine.effects import refusal_notice
from tests.fakes import records

_ENDED = Rejection("INSTANCE_TERMINAL", "it has ended")


def _event(workflow: str) -> SendEvent:
    return SendEvent(f"{workflow}/x#4", "line", "1", Sender(workflow, "x", 2, 4), "1")


def _back(
    workflow: str, rejection: Rejection, command: Command | None = None
) -> CommandSent | None:
    sent = records.sent(command or _event(workflow))
    return refusal_notice(sent, rejection, None, 5)


def test_a_workflow_is_told_that_its_event_was_dropped():
    back = _back("other", _ENDED)
    assert back is not None
    assert (back.workflow, back.instance_id) == ("other", "x")
    assert isinstance(back.command, NoteRefusal)
    assert back.command.run_number == 2


def test_of_a_copy_nobody_is_told():
    assert _back("other", Rejection("EVENT_ALREADY_RECEIVED", "it was received")) is None


def test_a_program_that_is_no_workflow_is_told_nothing():
    assert _back("~hooks", _ENDED) is None


_UNKNOWN = Rejection("WORKFLOW_NOT_FOUND", "expected one of the workflows a, b, found order")


def test_a_workflow_is_told_that_what_it_started_was_not_created():
    back = _back("other", _UNKNOWN, StartRun("1", sender=Sender("other", "x", 2, 4)))
    assert back is not None
    assert (back.workflow, back.instance_id) == ("other", "x")
    assert back.command == NoteRefusal(2, f"order/o-1 was not created: {_UNKNOWN.message}")


def test_of_an_instance_that_exists_already_nobody_is_told():
    exists = Rejection("INSTANCE_ID_ALREADY_EXISTS", "it is there")
    assert _back("other", exists, StartRun("1", sender=Sender("other", "x", 2, 4))) is None


@pytest.mark.parametrize("command", [StartRun("1"), None], ids=["start", "event"])
def test_a_program_is_told_by_its_reply_alone(command: Command | None):
    assert _back("~hooks", _UNKNOWN, command) is None


def test_what_a_workflow_is_told_is_a_log_line():
    back = _back("other", Rejection("WORKFLOW_NOT_FOUND", "x" * 100_000))
    assert back is not None
    assert isinstance(back.command, NoteRefusal)
    assert len(back.command.message) == LOG_MESSAGE_MAX
