"""Headwater as a provider: its own system events become deliveries that no client can post."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from headwater.processors.columns import RowUpdate
from headwater.processors.input_texts import rfc3339
from headwater.processors.providers.envelope import Malformed, event_id
from headwater.processors.providers.provider import (
    CONNECTION,
    LAB_UPLOAD,
    AfterWipe,
    DeliveryType,
    Provider,
)
from headwater.processors.providers.results import (
    SUBMITTED_RANK,
    Effect,
    Normalized,
    NormalizeResult,
)
from headwater.processors.providers.terra.backfill import backfill
from headwater.schemas.history import StartRun
from headwater.schemas.providers.headwater import (
    SYSTEM_SOURCE,
    ConnectionClosed,
    ConnectionListed,
    LabSubmitted,
    LabUploaded,
    SystemEvent,
    decode_system_event,
)
from headwater.schemas.records import WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import CONNECTIONS, LAB_UPLOADS, TERRA_LAB_UPLOADS, Table, Value


def normalize_listed(
    event: WebhookAdmitted, user_id: str, payload: ConnectionListed
) -> NormalizeResult:
    """Normalize `connection_listed`: the connection exists at Terra."""
    columns: dict[str, Value] = {
        "user_id": user_id,
        "provider": payload.provider,
        "reference_id": user_id,
        "scopes": payload.scopes,
        "active": True,
    }
    return Normalized((RowUpdate(CONNECTIONS, (payload.terra_user_id,), columns, event.stamp()),))


def normalize_closed(
    event: WebhookAdmitted, user_id: str, payload: ConnectionClosed
) -> NormalizeResult:
    """Normalize `connection_gone`: the connection is closed."""
    columns: dict[str, Value] = {
        "user_id": user_id,
        "active": False,
        "last_deactivated_at": rfc3339(payload.at_ms),
    }
    return Normalized((RowUpdate(CONNECTIONS, (payload.terra_user_id,), columns, event.stamp()),))


# -- lab reports

#: The workflow that submits a report to Terra, and the effect that starts it. The instance id is
#: that of the upload, so a report is submitted once even if its event is repeated.
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
    """Normalize `lab_uploaded`: an upload that is to be submitted to Terra.

    The system event that a report was stored starts the workflow that submits it to Terra. So every
    stored report is submitted, wherever its upload was interrupted.
    """
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


# -- declaration

F = TypeVar("F", bound=SystemEvent)


def _type(
    kind: type[F],
    normalize: Callable[[WebhookAdmitted, str, F], NormalizeResult],
    *tables: Table,
    **more: Any,  # noqa: ANN401 (further fields of a type)
) -> dict[str, DeliveryType[Any]]:
    decode = partial(decode_system_event, kind=kind)
    type_ = DeliveryType(decode=decode, normalize=normalize, tables=tables, **more)
    return {str(kind.__struct_config__.tag): type_}


def _read(body: bytes, headers: Mapping[str, str]) -> Malformed:
    del body, headers
    return Malformed("not_posted", "expected no delivery: only Headwater itself publishes these")


HEADWATER: Final = Provider(
    name=SYSTEM_SOURCE,
    scheme=None,
    read=_read,
    types={
        # Users upload reports themselves, also after a wipe.
        **_type(LabUploaded, normalize_uploaded, LAB_UPLOADS, after_wipe=AfterWipe.ACCEPTED),
        **_type(
            LabSubmitted,
            normalize_submitted,
            LAB_UPLOADS,
            TERRA_LAB_UPLOADS,
            lookup=LAB_UPLOAD,
            after_wipe=AfterWipe.ACCEPTED,
        ),
        **_type(
            ConnectionListed, normalize_listed, CONNECTIONS, lookup=CONNECTION, starts=backfill
        ),
        **_type(ConnectionClosed, normalize_closed, CONNECTIONS, lookup=CONNECTION),
    },
)


# -- delivery of a system event


def delivery_of(system_event: SystemEvent, *, request_id: str, now_ms: int) -> WebhookReceived:
    """Return the delivery of a system event.

    Equal system events have equal event ids, so publishing one again changes nothing.
    """
    body = msgspec.json.encode(system_event)
    return WebhookReceived(
        event_id=event_id(SYSTEM_SOURCE, system_event.type, system_event.subject, body),
        request_id=request_id,
        source=SYSTEM_SOURCE,
        type=system_event.type,
        subject=system_event.subject,
        reference=system_event.user_id,
        sent_at_ms=system_event.at_ms,
        updated_at_ms=0,
        received_at_ms=now_ms,
        body=body,
    )
