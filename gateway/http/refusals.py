"""What is said and kept of requests that brought nothing new: a line in the log, and a record.

Strangers cause refusals, so both are bounded. Of one source, address and reason the first in a
while is told at once, and the last when the while is over, with the number of those in between.
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
#: Kinds of refusals in a while; of those beyond them only the number is told. So a flood from many
#: addresses is at most 50 records a second.
_KINDS_MAX: Final = 250


class _Kind(msgspec.Struct):
    """Refusals of one source, address, code and reason, after the first."""

    last: RequestAnswered | None = None
    left_out: int = 0


class Refusals:
    """Tells of refusals, and records all other answers that brought nothing new."""

    def __init__(self, log: AnswerLog, *, while_s: float = _WHILE_S) -> None:
        self._log = log
        self._while_s = while_s
        self._kinds: dict[tuple[str, ...], _Kind] = {}
        self._beyond = 0

    def answered(self, answer: RequestAnswered) -> None:
        """Records what a sender was answered who did nothing wrong: a copy, or a handshake."""
        self._log.record(answer)

    def refused(self, answer: RequestAnswered) -> None:
        """Tells of a refusal now or at the end of the while, or counts it."""
        if not self._kinds:
            asyncio.get_running_loop().call_later(self._while_s, self._end)
        key = (answer.source, answer.peer, answer.code, answer.reason)
        kind = self._kinds.get(key)
        if kind is not None:
            kind.left_out += kind.last is not None
            kind.last = answer
        elif len(self._kinds) < _KINDS_MAX:
            self._kinds[key] = _Kind()
            self._tell(answer)
        else:
            self._beyond += 1

    def _end(self) -> None:
        """Tells of the last of each kind; another while begins with the next refusal."""
        kinds, self._kinds = self._kinds, {}
        beyond, self._beyond = self._beyond, 0
        for kind in kinds.values():
            if kind.last is not None:
                self._tell(msgspec.structs.replace(kind.last, left_out=kind.left_out))
        if beyond:
            _LOG.warning("refused beyond=%d: more kinds of refusals than are told", beyond)

    def _tell(self, answer: RequestAnswered) -> None:
        _LOG.warning(
            "refused source=%s code=%s reason=%s peer=%s bytes=%d request_id=%s left_out=%d: %s",
            answer.source,
            answer.code,
            answer.reason or "-",
            answer.peer,
            answer.size,
            answer.request_id,
            answer.left_out,
            answer.detail,
        )
        self._log.record(answer)
