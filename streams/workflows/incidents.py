"""Logs and counts errors that cost one command or run of a worker."""

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from headwater.schemas.history import HistoryAppended
from headwater.streams.clock import monotonic
from headwater.streams.engine.quarantine import Incident
from headwater.streams.workflows.log import unwritable

log = logging.getLogger(__name__)

#: Tracebacks logged per minute, so that repeated failing commands do not fill the disk.
_LOGGED_MAX: Final = 20
_WINDOW_S: Final = 60.0


class Incidents:
    """The errors that a worker has contained."""

    def __init__(self) -> None:
        #: Number of errors since the start of the worker, by what failed.
        self.counts: Counter[str] = Counter()
        self._window_s = monotonic()
        self._logged = self._not_logged = 0
        #: Why decisions of instances cannot be stored in a record, by partition and key.
        self._unwritable: dict[int, dict[str, str]] = {}

    def cannot_write(
        self, partition: int, records: Iterable[tuple[bytes, HistoryAppended]]
    ) -> bool:
        """Record instances whose decision does not fit into a record. Return whether any has one.

        The next owner would make the same decision, so it must quarantine them.
        """
        problems = unwritable(records)
        self._unwritable.setdefault(partition, {}).update(problems)
        return bool(problems)

    def take_unwritable(self, partition: int) -> dict[str, str]:
        """Remove and return the instances of a partition whose decision does not fit a record."""
        return self._unwritable.pop(partition, {})

    def note(self, incidents: Iterable[Incident]) -> None:
        """Count errors, and log a limited number per minute."""
        for incident in incidents:
            self.counts[incident.kind] += 1
            if not self._may_log():
                continue
            if incident.quarantined:
                log.error("an instance is quarantined: %s", incident.what, exc_info=incident.error)
            else:
                log.error(
                    "%s failed; everything else continues", incident.what, exc_info=incident.error
                )

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
