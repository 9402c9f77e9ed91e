"""Lab reports to be submitted to Terra: rows of lab_uploads, and the lookup of Terra's ids.

The system event that a report was stored starts the workflow that submits it to Terra. So every
stored report is submitted, wherever its upload was interrupted.
"""

from typing import Final

import msgspec

from headwater.processors.columns import RowUpdate
from headwater.processors.dates import rfc3339
from headwater.processors.providers.ranks import SUBMITTED_RANK
from headwater.processors.providers.results import Effect, Normalized, NormalizeResult
from headwater.schemas.history import StartRun
from headwater.schemas.providers.headwater import LabSubmitted, LabUploaded
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import LAB_UPLOADS, TERRA_LAB_UPLOADS, Value

#: The workflow that submits a report to Terra, and the effect that starts it. The instance id is
#: that of the upload, so a report whose event is repeated is submitted once.
LAB: Final = "terra-lab"


class LabParams(msgspec.Struct, frozen=True, kw_only=True):
    """Params of `terra-lab`, which starts once the file is stored and `lab_uploaded` is durable."""

    upload_id: str
    user_id: str
    storage_key: str
    original_name: str
    content_type: str


def normalize_uploaded(
    event: WebhookAdmitted, user_id: str, payload: LabUploaded
) -> NormalizeResult:
    """Normalize `lab_uploaded`: an upload that is to be submitted to Terra."""
    columns: dict[str, Value] = {
        "user_id": user_id,
        "storage_key": payload.storage_key,
        "original_name": payload.original_name,
        "content_type": payload.content_type,
        "size": payload.size,
        "terra_status": "pending",
        "created_at": rfc3339(payload.at_ms),
    }
    params = LabParams(
        upload_id=payload.upload_id,
        user_id=user_id,
        storage_key=payload.storage_key,
        original_name=payload.original_name,
        content_type=payload.content_type,
    )
    effect = Effect(LAB, LAB, payload.upload_id, StartRun(msgspec.json.encode(params).decode()))
    update = RowUpdate(LAB_UPLOADS, (payload.upload_id,), columns, event.stamp())
    return Normalized((update,), effects=(effect,))


def normalize_submitted(
    event: WebhookAdmitted, user_id: str, payload: LabSubmitted
) -> NormalizeResult:
    """Normalize `lab_submitted`: Terra's response, and the user and upload of Terra's id."""
    columns = {
        "user_id": user_id,
        "terra_status": payload.terra_status,
        "terra_upload_id": payload.terra_upload_id,
        "terra_response": payload.terra_response,
    }
    stamp = event.stamp(SUBMITTED_RANK)
    upload = RowUpdate(LAB_UPLOADS, (payload.upload_id,), columns, stamp)
    if not payload.terra_upload_id:
        return Normalized((upload,))
    ids = {"user_id": user_id, "upload_id": payload.upload_id}
    lookup = RowUpdate(TERRA_LAB_UPLOADS, (payload.terra_upload_id,), ids, event.stamp())
    return Normalized((upload, lookup))
