"""What stands in place of a command that Kafka would refuse for good."""

import pytest

from headwater.schemas.codec import decode, encode
from headwater.schemas.failures import RECORD_TOO_LARGE
from headwater.schemas.history import (
    Command,
    CommandSent,
    FinishChild,
    NoteRefusal,
    Parent,
    Sender,
    SendEvent,
    StartRun,
    TerminateRun,
)
from headwater.schemas.topics import MAX_RECORD_BYTES
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.workflows.outbox import Outbox
from tests.fakes import records

_SENDER = Sender("other", "x", 2, 4)
_LARGE = "x" * MAX_RECORD_BYTES


def _sendable(command: Command) -> tuple[CommandSent | None, bytes, CommandSent]:
    sent = records.sent(command, command_id="other/x#4")
    outbox = Outbox(
        cluster=Cluster("nowhere:1"),
        client_id="test",
        clock=lambda: 5,
        sent=lambda *_: None,
        may_release=lambda _: True,
    )
    return *outbox._sendable(sent), sent


def test_a_command_that_fits_is_sent():
    result, value, sent = _sendable(StartRun("1", sender=_SENDER))
    assert result is sent
    assert value == encode(sent)


@pytest.mark.parametrize(
    "command",
    [StartRun(_LARGE, sender=_SENDER), SendEvent("e", "line", _LARGE, _SENDER)],
    ids=lambda command: type(command).__name__,
)
def test_who_sends_what_is_too_large_is_told_so(command: Command):
    result, value, _ = _sendable(command)
    assert result is not None
    assert decode(value, CommandSent) == result
    assert (result.workflow, result.instance_id) == ("other", "x")
    assert isinstance(result.command, NoteRefusal)
    assert "expected a command of at most 11468800 bytes, found 115" in result.command.message


def test_a_child_that_is_too_large_fails():
    result, _, _ = _sendable(StartRun(_LARGE, Parent("other", "x", 2, "bill")))
    assert result is not None
    assert isinstance(result.command, FinishChild)
    assert result.command.failure is not None


def test_of_what_nobody_waits_for_only_the_log_tells(caplog: pytest.LogCaptureFixture):
    assert _sendable(TerminateRun(_LARGE))[:2] == (None, b"")
    assert RECORD_TOO_LARGE not in caplog.text
    assert "the command other/x#4 to order/o-1 is dropped" in caplog.text
