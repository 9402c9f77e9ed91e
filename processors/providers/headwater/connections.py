"""Rows of terra_connections from Terra's list of subscriptions."""

from headwater.processors.columns import RowUpdate
from headwater.processors.dates import rfc3339
from headwater.processors.providers.results import Normalized, NormalizeResult
from headwater.schemas.providers.headwater import ConnectionClosed, ConnectionListed
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import CONNECTIONS, Value


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
