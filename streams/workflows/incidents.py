"""Errors that cost one command or run of a worker: logged with their tracebacks, and counted."""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from headwater.schemas.history import HistoryAppended
from headwater.streams.clock import monotonic
from headwater.streams.engine.quarantine import Incident
from headwater.streams.workflows.log import unwritable

log = logging.getLogger(__name__)

#: Tracebacks that are logged in a minute: whoever sends what fails must not fill the disk.
_LOGGED_MAX: Final = 20
_WINDOW_S: Final = 60.0


class Incidents:
    """The errors that one worker has contained."""

    def __init__(self) -> None:
        #: How many there were since the worker started, by what failed.
        self.counts: Counter[str] = Counter()
        self._window_s = monotonic()
        self._logged = self._not_logged = 0
        #: Why no record can hold what instances have decided, by partition and key.
        self._unwritable: dict[int, dict[str, str]] = {}

    def cannot_write(
        self, partition: int, records: Iterable[tuple[bytes, HistoryAppended]]
    ) -> bool:
        """Note which instances have decided what no record can hold; return whether one has.

        The next owner would decide the same: it is to quarantine them.
        """
        faults = unwritable(records)
        self._unwritable.setdefault(partition, {}).update(faults)
        return bool(faults)

    def take_unwritable(self, partition: int) -> dict[str, str]:
        """Return, once, the instances of a partition of which no record can hold what follows."""
        return self._unwritable.pop(partition, {})

    def note(self, incidents: Iterable[Incident]) -> None:
        """Log errors, so many in a minute, and count all of them."""
        for each in incidents:
            self.counts[each.kind] += 1
            if not self._may_log():
                continue
            if each.quarantined:
                log.error("an instance is quarantined: %s", each.what, exc_info=each.error)
            else:
                log.error("%s failed, and all else continues", each.what, exc_info=each.error)

    def _may_log(self) -> bool:
        now_s = monotonic()
        if now_s - self._window_s >= _WINDOW_S:
            if self._not_logged:
                log.error("%d further errors were not logged", self._not_logged)
            self._window_s, self._logged, self._not_logged = now_s, 0, 0
        if self._logged >= _LOGGED_MAX:
            self._not_logged += 1
            return False
        self._logged += 1
        return True
