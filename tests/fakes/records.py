"""Records of the log; of no matter is what a test does not say of them."""

from typing import Any

from headwater.schemas.history import NO_CAUSE, Command, CommandSent, HistoryAppended, LogEvent


def appended(*events: LogEvent, **said: Any) -> HistoryAppended:  # noqa: ANN401 (its fields)
    usual = {
        "workflow": "order",
        "instance_id": "o-1",
        "run_number": 0,
        "sequence": 0,
        "epoch": 0,
        "cause": NO_CAUSE,
        "at_ms": 0,
    }
    return HistoryAppended(**(usual | said), events=events)


def sent(command: Command, **said: Any) -> CommandSent:  # noqa: ANN401 (its fields)
    usual = {
        "command_id": "c",
        "workflow": "order",
        "instance_id": "o-1",
        "sent_at_ms": 0,
        "reply_to": -1,
    }
    return CommandSent(**(usual | said), command=command)
