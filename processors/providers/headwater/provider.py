"""Declaration of Headwater's own provider: its system events and their normalizers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from headwater.processors.providers.envelope import Malformed
from headwater.processors.providers.headwater.connections import normalize_closed, normalize_listed
from headwater.processors.providers.headwater.labs import normalize_submitted, normalize_uploaded
from headwater.processors.providers.lookups import CONNECTION, LAB_UPLOAD
from headwater.processors.providers.provider import DeliveryType, Provider
from headwater.processors.providers.results import NormalizeResult
from headwater.processors.providers.terra.backfill import backfill
from headwater.schemas.providers.headwater import (
    SYSTEM_SOURCE,
    ConnectionClosed,
    ConnectionListed,
    LabSubmitted,
    LabUploaded,
    SystemEvent,
    decode_system_event,
)
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import CONNECTIONS, LAB_UPLOADS, TERRA_LAB_UPLOADS, Table

__all__ = ["HEADWATER"]

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
        **_type(LabUploaded, normalize_uploaded, LAB_UPLOADS),
        **_type(
            LabSubmitted, normalize_submitted, LAB_UPLOADS, TERRA_LAB_UPLOADS, lookup=LAB_UPLOAD
        ),
        **_type(
            ConnectionListed, normalize_listed, CONNECTIONS, lookup=CONNECTION, starts=backfill
        ),
        **_type(ConnectionClosed, normalize_closed, CONNECTIONS, lookup=CONNECTION),
    },
)
