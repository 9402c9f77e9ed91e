"""Partitions that are blocked until another release can read or write their records."""

from typing import Final

from typing_extensions import override

from headwater.schemas.codec import write_versions
from headwater.schemas.errors import Disposition, HeadwaterError, NotYetReadable
from headwater.schemas.newer import Waiting


class SchemaVersionsChanged(HeadwaterError):
    """Records that could not be written may be written now: restart and restore partitions."""

    disposition = Disposition.HALT
    code = "forms_changed"


_NONE: Final = object()


class BlockedPartitions(Waiting):
    """Partitions that are blocked by a record to read, or to write."""

    def __init__(self) -> None:
        super().__init__()
        #: The schema versions in use when the first partition was blocked.
        self._forms: object = _NONE

    def block_writes(self, partition: int, error: NotYetReadable, forms: object) -> None:
        """Record that a partition may not write a record under the given schema versions."""
        # Keep those of the first blocked partition: any later change counts.
        if self._forms is _NONE:
            self._forms = forms
        self.begin(partition, f"partition {partition} waits: {error}")

    def check_versions(self) -> None:
        """Check whether the schema versions are still those that blocked partitions.

        Raises:
            SchemaVersionsChanged: They have changed.
        """
        if self._forms is not _NONE and self._forms is not write_versions():
            raise SchemaVersionsChanged(
                "expected the schema versions that block some partitions, found others"
            )

    @override
    def clear(self) -> None:
        super().clear()
        self._forms = _NONE
