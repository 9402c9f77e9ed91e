"""Lab reports on their way to Terra: rows of lab_uploads, and the look-up of Terra's ids."""

from headwater.processors.columns import RowUpdate
from headwater.processors.dates import rfc3339
from headwater.processors.providers.ranks import SUBMITTED_RANK
from headwater.processors.providers.results import Normalized, NormalizeResult
from headwater.schemas.providers.headwater import LabSubmitted, LabUploaded
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import LAB_UPLOADS, TERRA_LAB_UPLOADS, Value


def normalize_uploaded(event: WebhookAdmitted, user_id: str, fact: LabUploaded) -> NormalizeResult:
    """Normalizes `lab_uploaded`: the upload as it lies here."""
    columns: dict[str, Value] = {
        "user_id": user_id,
        "storage_key": fact.storage_key,
        "original_name": fact.original_name,
        "content_type": fact.content_type,
        "size": fact.size,
        "terra_status": "pending",
        "created_at": rfc3339(fact.at_ms),
    }
    return Normalized((RowUpdate(LAB_UPLOADS, (fact.upload_id,), columns, event.stamp()),))


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
