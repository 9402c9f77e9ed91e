"""The records of instances under test, by instance."""

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
        kept = self._records.setdefault(key, [])
        kept.append(record)
        if len(kept) == 1 and not runs(self._engines, kept):
            # A refusal to create leaves no instance.
            del self._records[key]

    def of(self, workflow: str, instance_id: str) -> Sequence[HistoryAppended]:
        """Return the records of an instance.

        Raises:
            InstanceNotFoundError: There is none.
        """
        records = self._records.get(instance_key(workflow, instance_id))
        if records is None:
            message = f"expected an instance {instance_id} of {workflow}, found none"
            raise InstanceNotFoundError(message)
        return records

    def views(self, workflow: str, instance_id: str) -> dict[int, RunView]:
        """Return the runs of an instance, by their numbers.

        Raises:
            InstanceNotFoundError: There is none.
        """
        return runs(self._engines, list(self.of(workflow, instance_id)))

    def latest(self) -> Iterator[RunView]:
        """Yield the current run of each instance."""
        for records in self._records.values():
            yield [*runs(self._engines, records).values()][-1]
