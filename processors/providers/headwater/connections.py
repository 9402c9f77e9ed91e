"""What Terra's subscriptions say of connections: rows of terra_connections."""

from headwater.processors.columns import RowUpdate
from headwater.processors.dates import rfc3339
from headwater.processors.providers.results import Normalized, NormalizeResult
from headwater.schemas.providers.headwater import ConnectionClosed, ConnectionListed
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import CONNECTIONS, Value


def normalize_listed(
    event: WebhookAdmitted, user_id: str, fact: ConnectionListed
) -> NormalizeResult:
    """Normalizes `connection_listed`: the connection as Terra has it."""
    columns: dict[str, Value] = {
        "user_id": user_id,
        "provider": fact.provider,
        "reference_id": user_id,
        "scopes": fact.scopes,
        "active": True,
    }
    return Normalized((RowUpdate(CONNECTIONS, (fact.terra_user_id,), columns, event.stamp()),))


def normalize_closed(
    event: WebhookAdmitted, user_id: str, fact: ConnectionClosed
) -> NormalizeResult:
    """Normalizes `connection_gone`: the connection is closed."""
    columns: dict[str, Value] = {
        "user_id": user_id,
        "active": False,
        "last_deactivated_at": rfc3339(fact.at_ms),
    }
    return Normalized((RowUpdate(CONNECTIONS, (fact.terra_user_id,), columns, event.stamp()),))
