"""Who is told that a command of theirs was refused."""

from processors.runs.decisions import Rejection
from schemas.history import CommandSent, NoteRefusal, Sender, SendEvent
from streams.senders import back_to_sender

_ENDED = Rejection("INSTANCE_TERMINAL", "it has ended")


def _back(workflow: str, rejection: Rejection) -> CommandSent | None:
    sender = Sender(workflow, "x", 2, 4)
    sent = CommandSent(
        command_id="c",
        workflow="order",
        instance_id="o-1",
        sent_at_ms=0,
        reply_to=-1,
        command=SendEvent(f"{workflow}/x#4", "line", "1", sender, "1"),
    )
    return back_to_sender(sent, rejection, None, 5)


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
