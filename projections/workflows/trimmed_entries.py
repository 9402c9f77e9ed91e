"""Entries that loops have trimmed: their rows are deleted, but the history still has them.

The records of the run are planned again, as in the projector, with patches that keep trimmed
entries. Memory holds the entries that are not trimmed, and those of one page, which has a limit in
bytes. A page requires reading the whole run, so it may have thousands of entries.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias

from typing_extensions import override

from headwater.processors.rows.answers import as_read
from headwater.processors.rows.patches import EventContext, Patches, Values, trimmed
from headwater.processors.rows.plan import plan_record
from headwater.projections.workflows.answers import RunKey
from headwater.schemas.history import HistoryAppended, InstanceDeleted
from headwater.schemas.workflow_tables import STEP

#: Sort key of an entry within its run: ordinal and sequence.
EntryKey: TypeAlias = tuple[int, int]
_Row: TypeAlias = dict[str, Any]

#: Bytes of the results on a page; one entry may have a mebibyte.
BYTES_MAX: Final = 16 * 1024 * 1024

_entry_key: Final = itemgetter("ordinal", "sequence")


class TrimmedEntries:
    """The trimmed entries of a run after a sort key, up to a limit.

    Records must arrive in the order of the history, from the first of the run on.
    """

    def __init__(
        self, run: RunKey, after: EntryKey, *, order: Literal["asc", "desc"], limit: int
    ) -> None:
        self._run = run
        self._limit = limit
        self._sign = 1 if order == "asc" else -1
        self._after = self._rank(after)
        #: In the requested order; rows beyond the limits are dropped.
        self._rows: list[_Row] = []
        self._bytes = 0
        self._is_cut = False
        self._patches = _Steps(self._keep)
        self._is_done = False

    def apply(self, record: HistoryAppended) -> None:
        """Apply the next record of the instance."""
        is_deleted = isinstance(record.events[0], InstanceDeleted)
        self._is_done = is_deleted or record.run_number > self._run.run_number
        if not self._is_done and record.run_number == self._run.run_number:
            plan_record(self._patches, record)

    def is_done(self) -> bool:
        """Whether the run is over and another one has begun."""
        return self._is_done

    def merge_with(self, rows: Sequence[_Row], *, are_cut: bool) -> tuple[list[_Row], bool]:
        """Merge the trimmed entries with rows of the run.

        Args:
            rows: Rows after the same sort key. Entries trimmed since they were read are in both,
                and are returned once.
            are_cut: Whether more rows follow.

        Returns:
            The entries in order, and whether more follow.
        """
        by_key = {row["step_key"]: row for row in (*self._rows, *rows)}
        # After the last row of a list that was cut, entries may be missing.
        ends = [self._key(self._rows[-1])] if self._is_cut else []
        ends += [self._key(rows[-1])] if are_cut else []
        merged = sorted(by_key.values(), key=self._key)
        shown = [row for row in merged if not ends or self._key(row) <= min(ends)][: self._limit]
        return shown, bool(ends) or len(shown) < len(merged)

    def _keep(self, step: Values) -> None:
        entry = as_read(STEP, step)
        if self._key(entry) > self._after:
            insort(self._rows, entry, key=self._key)
            self._bytes += _size(entry)
            while len(self._rows) > (self._limit if self._bytes <= BYTES_MAX else 1):
                self._bytes -= _size(self._rows.pop())
                self._is_cut = True

    def _key(self, row: _Row) -> EntryKey:
        return self._rank(_entry_key(row))

    def _rank(self, key: EntryKey) -> EntryKey:
        return self._sign * key[0], self._sign * key[1]


class _Steps(Patches):
    """Patches of steps only, which report the steps that a loop trims."""

    def __init__(self, on_trimmed: Callable[[Values], None]) -> None:
        super().__init__()
        self._on_trimmed = on_trimmed

    @override
    def trim(self, context: EventContext, key: str, before: int) -> None:
        steps = self.stage(context).steps.get(context.run, {})
        for step_key in trimmed(steps, key, before):
            if steps[step_key].is_whole:
                self._on_trimmed(steps[step_key].values)
        super().trim(context, key, before)

    @override
    def put_event(self, context: EventContext, event_id: str, values: Values) -> None:
        """Events are never trimmed."""

    @override
    def deliver(self, context: EventContext, event_id: str, step_key: str) -> None:
        """Events are never trimmed."""

    @override
    def log(self, values: Values) -> None:
        """Log lines are never trimmed."""


def _size(row: _Row) -> int:
    return len(row["result"] or "") + len(row["error_detail"] or "") + len(row["step_key"])
