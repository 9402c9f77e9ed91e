"""Entries that loops have forgotten: their rows are gone, the history of the run has them still.

The records of the run are planned once more, as the projector does it, by patches that keep what a
loop forgets. Memory is that of the entries that are not forgotten, and of those of a page, which
has a bound in bytes: a page costs a reading of the whole run, so it may have thousands of entries.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec
from typing_extensions import override

from headwater.projections.workflows.answers import RunKey
from headwater.projections.workflows.patches import EventContext, Patches
from headwater.projections.workflows.plan import tell
from headwater.projections.workflows.rows import EventRow, LogRow, StepRow, Trim
from headwater.schemas.history import HistoryAppended, InstanceDeleted

__all__ = ["Forgotten"]

#: Where an entry stands among those of its run: its ordinal, and its sequence.
Place: TypeAlias = tuple[int, int]
_Row: TypeAlias = dict[str, Any]

#: Bytes of what the entries of a page gave; one entry may have a mebibyte.
BYTES_MAX: Final = 16 * 1024 * 1024

_place: Final = itemgetter("ordinal", "sequence")


class Forgotten:
    """The entries of a run that its loops have forgotten, of those the first behind a place.

    Shape:  records come in the order of the history, from the first of the run on.
    """

    def __init__(
        self, run: RunKey, after: Place, *, order: Literal["asc", "desc"], limit: int
    ) -> None:
        self._run = run
        self._limit = limit
        self._sign = 1 if order == "asc" else -1
        self._after = self._rank(after)
        #: In the order that is asked for; what does not fit is dropped.
        self._rows: list[_Row] = []
        self._bytes = 0
        self._is_cut = False
        self._patches = _Steps(self._keep)
        self._is_done = False

    def apply(self, record: HistoryAppended) -> None:
        """Takes the next record of the instance."""
        is_deleted = isinstance(record.events[0], InstanceDeleted)
        self._is_done = is_deleted or record.run_number > self._run.run_number
        if not self._is_done and record.run_number == self._run.run_number:
            tell(self._patches, record)

    def is_done(self) -> bool:
        """Whether the run is over and another one has begun."""
        return self._is_done

    def beside(self, rows: Sequence[_Row], *, are_cut: bool) -> tuple[list[_Row], bool]:
        """The entries together with rows of the run, in their order, and whether there are more.

        Shape:  rows are those behind the same place, and the first of them if they are cut. What a
                loop has forgotten since they were read is among both, and given once.
        """
        found = {row["step_key"]: row for row in (*self._rows, *rows)}
        # Behind the last one of either that is cut, some may be missing.
        ends = [self._key(self._rows[-1])] if self._is_cut else []
        ends += [self._key(rows[-1])] if are_cut else []
        together = sorted(found.values(), key=self._key)
        shown = [row for row in together if not ends or self._key(row) <= min(ends)][: self._limit]
        return shown, bool(ends) or len(shown) < len(together)

    def _keep(self, row: StepRow) -> None:
        found = _as_selected(row)
        if self._key(found) > self._after:
            insort(self._rows, found, key=self._key)
            self._bytes += _size(found)
            while len(self._rows) > (self._limit if self._bytes <= BYTES_MAX else 1):
                self._bytes -= _size(self._rows.pop())
                self._is_cut = True

    def _key(self, row: _Row) -> Place:
        return self._rank(_place(row))

    def _rank(self, place: Place) -> Place:
        return self._sign * place[0], self._sign * place[1]


class _Steps(Patches):
    """Patches of steps alone, that give away what a loop forgets."""

    def __init__(self, forgotten: Callable[[StepRow], None]) -> None:
        super().__init__()
        self._forgotten = forgotten

    @override
    def trim(self, context: EventContext, step_key: str, before: int) -> None:
        trim = Trim(*context.run, step_key, before)
        for key, row in self._stage(context).steps.get(context.run, {}).items():
            if isinstance(row, StepRow) and trim.covers(key):
                self._forgotten(row)
        super().trim(context, step_key, before)

    @override
    def put_event(self, context: EventContext, row: EventRow) -> None:
        """Events are never forgotten."""

    @override
    def deliver(self, context: EventContext, event_id: str, step_key: str) -> None:
        """Events are never forgotten."""

    @override
    def log(self, row: LogRow) -> None:
        """Lines are never forgotten."""


def _size(row: _Row) -> int:
    return len(row["result"] or "") + len(row["error_detail"] or "") + len(row["step_key"])


def _as_selected(row: StepRow) -> _Row:
    """A row as Postgres gives it: times have a type of their own."""
    return {
        name.removesuffix("_at_ms") + "_at" if name.endswith("_at_ms") else name: (
            _time(value) if name.endswith("_at_ms") else value
        )
        for name, value in msgspec.structs.asdict(row).items()
    }


def _time(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1_000, UTC)
