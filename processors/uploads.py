"""Failed lab reports that name only their user: which of the user's uploads each of them is about.

They are parts of the user's row in users. Each is about the oldest upload that waited for a report
when it was sent. That follows from all uploads and failures of the user, so it does not depend on
the order in which partitions report them, and may change when more is known (ADR 0079).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from headwater.processors.row_parts import join, split
from headwater.processors.wipes import is_sent_after
from headwater.schemas.records import Stamp
from headwater.schemas.row_states import Part
from headwater.schemas.tables import LAB_UPLOADS, Row

#: Rank of the status that a report sets which names its upload: it outranks earlier stages.
REPORT_RANK: Final = 2
#: Status of an upload whose report has not come for a day; it may come nevertheless.
NO_REPORT: Final = "failed:no_report"
_SUBMITTED: Final = "submitted"
_STATUS: Final = LAB_UPLOADS.index["terra_status"]
_CREATED: Final = LAB_UPLOADS.index["created_at"]


def failure_part(status: str, event_id: str) -> str:
    """Return the id of a failure, as a part of the user's row."""
    return f"{event_id}/{status}"


def settle_failures(failures: Mapping[str, Part], uploads: Iterable[Row]) -> Iterator[Row]:
    """Yield the uploads whose status changes by failures that name only their user.

    Args:
        failures: Parts of the user's row.
        uploads: All uploads of the user.
    """
    layers = [(split(LAB_UPLOADS, upload), upload) for upload in uploads]
    free = sorted(layers, key=lambda layer: (str(layer[0][0].values[_CREATED]), layer[1].key))
    failed: dict[tuple[str, ...], dict[str, Part]] = {}
    for name, failure in sorted(failures.items(), key=lambda item: (item[1].stamp.order, item[0])):
        for layer in free:
            (plain, _), upload = layer
            if _waited(plain, failure.stamp):
                free.remove(layer)
                if _outranks(failure.stamp, plain.stamps[_STATUS]):
                    status = name.partition("/")[2]
                    failed[upload.key] = {name: Part({"terra_status": status}, failure.stamp)}
                break
    for (plain, state), upload in layers:
        parts = failed.get(upload.key, {})
        if parts != state.parts:
            yield join(LAB_UPLOADS, plain, parts, state.deleted)


def _waited(upload: Row, failure: Stamp) -> bool:
    """Return whether an upload waited for its report when a failure was sent."""
    created, stamp = upload.stamps[_CREATED], upload.stamps[_STATUS]
    if created is None or stamp is None:
        return False
    if not is_sent_after(failure.sent_at_ms, created.sent_at_ms):
        return False
    if stamp.rank >= REPORT_RANK:
        return stamp.order > failure.order
    return upload.values[_STATUS] in (_SUBMITTED, NO_REPORT)


def _outranks(failure: Stamp, status: Stamp | None) -> bool:
    return status is None or failure.order > status.order
