"""Lab reports on their way to Terra: rows of lab_uploads, and the look-up of Terra's ids.

Whoever keeps a report tells so, and the telling starts the workflow that gives it to Terra. So no
report is kept that nobody would give to Terra, wherever its upload was cut off.
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

#: The workflow that gives a report to Terra, and the effect that starts it; the id of an instance
#: is that of the upload, so a report that is told of again is given to Terra once.
LAB: Final = "terra-lab"


class LabParams(msgspec.Struct, frozen=True, kw_only=True):
    """What `terra-lab` is started with, once the file is a blob and `lab_uploaded` is durable."""

    upload_id: str
    user_id: str
    storage_key: str
    original_name: str
    content_type: str


def normalize_uploaded(event: WebhookAdmitted, user_id: str, fact: LabUploaded) -> NormalizeResult:
    """Normalizes `lab_uploaded`: the upload as it lies here, on its way to Terra."""
    columns: dict[str, Value] = {
        "user_id": user_id,
        "storage_key": fact.storage_key,
        "original_name": fact.original_name,
        "content_type": fact.content_type,
        "size": fact.size,
        "terra_status": "pending",
        "created_at": rfc3339(fact.at_ms),
    }
    params = LabParams(
        upload_id=fact.upload_id,
        user_id=user_id,
        storage_key=fact.storage_key,
        original_name=fact.original_name,
        content_type=fact.content_type,
    )
    given = Effect(LAB, LAB, fact.upload_id, StartRun(msgspec.json.encode(params).decode()))
    update = RowUpdate(LAB_UPLOADS, (fact.upload_id,), columns, event.stamp())
    return Normalized((update,), effects=(given,))


def normalize_submitted(
    event: WebhookAdmitted, user_id: str, fact: LabSubmitted
) -> NormalizeResult:
    """Normalizes `lab_submitted`: what Terra said to the upload, and whose its id of it is."""
    columns = {
        "user_id": user_id,
        "terra_status": fact.terra_status,
        "terra_upload_id": fact.terra_upload_id,
        "terra_response": fact.terra_response,
    }
    stamp = event.stamp(SUBMITTED_RANK)
    upload = RowUpdate(LAB_UPLOADS, (fact.upload_id,), columns, stamp)
    if not fact.terra_upload_id:
        return Normalized((upload,))
    named = {"user_id": user_id, "upload_id": fact.upload_id}
    return Normalized(
        (upload, RowUpdate(TERRA_LAB_UPLOADS, (fact.terra_upload_id,), named, event.stamp()))
    )
