"""The records of a test's log by instance."""

from collections.abc import Iterator, Sequence

from headwater.processors.runs.engine import Engines
from headwater.processors.runs.views import RunView, runs
from headwater.schemas.failures import InstanceNotFoundError
from headwater.schemas.history import HistoryAppended, instance_key


class InstanceRecords:
    """The log of a test, split by instance."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._records: dict[str, list[HistoryAppended]] = {}

    def add(self, key: str, record: HistoryAppended) -> None:
        """Add a record that was appended to the log."""
        records = self._records.setdefault(key, [])
        records.append(record)
        if len(records) == 1 and not runs(self._engines, records):
            # A refused creation leaves no instance.
            del self._records[key]

    def records_of(self, workflow: str, instance_id: str) -> Sequence[HistoryAppended]:
        """Return the records of an instance.

        Raises:
            InstanceNotFoundError: It does not exist.
        """
        records = self._records.get(instance_key(workflow, instance_id))
        if records is None:
            message = f"expected an instance {instance_id} of {workflow}, found none"
            raise InstanceNotFoundError(message)
        return records

    def views(self, workflow: str, instance_id: str) -> dict[int, RunView]:
        """Return the runs of an instance, by number.

        Raises:
            InstanceNotFoundError: It does not exist.
        """
        return runs(self._engines, list(self.records_of(workflow, instance_id)))

    def latest(self) -> Iterator[RunView]:
        """Yield the current run of every instance."""
        for records in self._records.values():
            yield [*runs(self._engines, records).values()][-1]
