"""What is said and kept of requests that brought nothing new: a line in the log, and a record.

Strangers cause refusals, so both are bounded. Of one source, address and reason the first in a
while has a line at once, and the last when the while is over, with the number of those in between.
Each refusal has a record, so that it can be traced, until there are too many in a while; from then
on those have one that have a line.
"""

import asyncio
import logging
from typing import Final

import msgspec

from headwater.gateway.http.ports import AnswerLog
from headwater.schemas.records import RequestAnswered

_LOG: Final = logging.getLogger("headwater.gateway.refused")

#: A sender that never stops is told of 12 times a minute.
_WHILE_S: Final = 10.0
#: Kinds of refusals in a while; of those beyond them only the number has a line.
_KINDS_MAX: Final = 250
#: Refusals in a while that have a record whatever they are alike. With the first and the last of
#: each kind a flood is at most 100 records a second.
_RECORDS_MAX: Final = 500


class _Kind(msgspec.Struct):
    """Refusals of one source, address, code and reason, after the first."""

    last: RequestAnswered | None = None
    last_recorded: bool = True
    #: How many before the last have no line, and how many no record.
    unsaid: int = 0
    unrecorded: int = 0


class Refusals:
    """Tells of refusals, and records all other answers that brought nothing new."""

    def __init__(self, log: AnswerLog, *, while_s: float = _WHILE_S) -> None:
        self._log = log
        self._while_s = while_s
        self._kinds: dict[tuple[str, ...], _Kind] = {}
        self._beyond = 0
        self._recorded = 0

    def answered(self, answer: RequestAnswered) -> None:
        """Records what a sender was answered who did nothing wrong: a copy, or a handshake."""
        self._log.record(answer)

    def refused(self, answer: RequestAnswered) -> None:
        """Tells of a refusal now or at the end of the while, or counts it."""
        if not self._kinds:
            asyncio.get_running_loop().call_later(self._while_s, self._end)
        recorded = self._recorded < _RECORDS_MAX
        if recorded:
            self._recorded += 1
            self._log.record(answer)
        key = (answer.source, answer.peer, answer.code, answer.reason)
        kind = self._kinds.get(key)
        if kind is not None:
            kind.unsaid += kind.last is not None
            kind.unrecorded += not kind.last_recorded
            kind.last, kind.last_recorded = answer, recorded
        elif len(self._kinds) < _KINDS_MAX:
            self._kinds[key] = _Kind()
            _say(answer, 0)
            if not recorded:
                self._log.record(answer)
        else:
            self._beyond += 1

    def _end(self) -> None:
        """Tells of the last of each kind; another while begins with the next refusal."""
        kinds, self._kinds = self._kinds, {}
        beyond, self._beyond = self._beyond, 0
        self._recorded = 0
        for kind in kinds.values():
            if kind.last is not None:
                _say(kind.last, kind.unsaid)
                if not kind.last_recorded:
                    self._log.record(msgspec.structs.replace(kind.last, left_out=kind.unrecorded))
        if beyond:
            _LOG.warning("refused beyond=%d: more kinds of refusals than are told", beyond)


def _say(answer: RequestAnswered, left_out: int) -> None:
    _LOG.warning(
        "refused source=%s code=%s reason=%s peer=%s bytes=%d request_id=%s%s left_out=%d: %s",
        answer.source or "-",
        answer.code,
        answer.reason or "-",
        answer.peer,
        answer.size,
        answer.request_id,
        f" claimed_request_id={answer.claimed_request_id}" if answer.claimed_request_id else "",
        left_out,
        answer.detail,
    )
