"""Partitions in which nothing is done, because of what another release has to read or write."""

from typing import Final

from typing_extensions import override

from headwater.schemas.codec import write_versions
from headwater.schemas.errors import Disposition, HeadwaterError, NotYetReadable
from headwater.schemas.newer import Waiting


class FormsChanged(HeadwaterError):
    """What was not to be written may be written now, and its partitions are to be read again."""

    disposition = Disposition.HALT
    code = "forms_changed"


_NONE: Final = object()


class Stopped(Waiting):
    """The partitions that wait to read a record, or to write one."""

    def __init__(self) -> None:
        super().__init__()
        #: The forms that stopped a partition, if any did.
        self._forms: object = _NONE

    def begin_to_write(self, partition: int, error: NotYetReadable, forms: object) -> None:
        """Notes that a partition may not write what it has to, by the forms of before it tried."""
        # Those of the first that stopped: a change since then counts.
        if self._forms is _NONE:
            self._forms = forms
        self.begin(partition, f"partition {partition} waits: {error}")

    def check_forms(self) -> None:
        """Passes while what partitions stopped for is as it was.

        Errors: FormsChanged.
        """
        if self._forms is not _NONE and self._forms is not write_versions():
            raise FormsChanged("expected the forms that some partitions wait for, found others")

    @override
    def clear(self) -> None:
        super().clear()
        self._forms = _NONE
