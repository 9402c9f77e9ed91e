"""Deliveries that open and close connections: rows of terra_connections.

A closing delivery writes a whole row, so that a connection is known even if its opening was never
received. The time of closing is kept when the connection is opened again: it separates the periods
in which the connection was active (`backfill`).
"""

from typing import Final

from headwater.processors.columns import RowUpdate
from headwater.processors.input_texts import rfc3339, text_problem
from headwater.processors.providers.provider import LatestEvents
from headwater.processors.providers.results import Failed, Normalized, NormalizeResult, Skipped
from headwater.schemas.providers.terra import Envelope, User
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import CONNECTIONS, Row

#: The type that replaces one connection by another; it names two users.
USER_REAUTH: Final = "user_reauth"
#: The types by which a user connects. `auth` is today's name of `auth_success`.
AUTH_TYPES: Final = ("auth", "auth_success")
#: The types that open a connection.
OPENING_TYPES: Final = (*AUTH_TYPES, USER_REAUTH)
#: The types that close a connection.
CLOSING_TYPES: Final = ("deauth", "access_revoked")
#: The type that announces new scopes.
PERMISSION_CHANGE: Final = "permission_change"

#: All scopes of all makers that Terra lists have some 1,500 characters.
_MAX_SCOPES_CHARS: Final = 4096


def failure_of(envelope: Envelope) -> str | None:
    """Return why an `auth` is skipped: it reports a failure."""
    return "auth_failed" if envelope.status not in (None, "success") else None


def previous_subject(envelope: Envelope) -> str | None:
    """Return the subject that a user_reauth replaces, or None.

    Terra echoes the reference of the widget session that reauthenticated, which need not be one of
    Headwater's user ids; the replaced connection has a user nevertheless.
    """
    old, new = envelope.old_user, envelope.new_user
    if old is None or not old.user_id:
        return None
    if new is not None and new.user_id == old.user_id:
        return None
    return None if text_problem("old_user.user_id", old.user_id) else old.user_id


def normalize_auth(event: WebhookAdmitted, user_id: str, envelope: Envelope) -> NormalizeResult:
    """Normalize a delivery of one of OPENING_TYPES and CLOSING_TYPES.

    The result has one row per connection; a user_reauth opens one and closes the one it replaces.
    It is Failed if Terra's user id is missing or a text cannot be stored.
    """
    if event.type in CLOSING_TYPES:
        closed = _update(event, user_id, "user", envelope.user, active=False)
        return closed if isinstance(closed, Failed) else Normalized((closed,))
    reauth = event.type == USER_REAUTH
    field, user = ("new_user", envelope.new_user) if reauth else ("user", envelope.user)
    opened = _update(event, user_id, field, user, active=True)
    if isinstance(opened, Failed):
        return opened
    if not reauth or previous_subject(envelope) is None:
        return Normalized((opened,))
    closed = _update(event, user_id, "old_user", envelope.old_user, active=False)
    return closed if isinstance(closed, Failed) else Normalized((opened, closed))


def normalize_permissions(
    event: WebhookAdmitted, subject: str, envelope: Envelope
) -> NormalizeResult:
    """Normalize `permission_change`: skipped under its name, but its scopes are stored.

    The row belongs to the subject, whether or not its user is known, so nothing has to wait.
    """
    scopes = None if envelope.user is None else envelope.user.scopes
    problem = text_problem("user.scopes", scopes, _MAX_SCOPES_CHARS)
    if problem is not None:
        return Failed("malformed_id", problem)
    if scopes is None:
        return Skipped(PERMISSION_CHANGE)
    update = RowUpdate(CONNECTIONS, (subject,), {"scopes": scopes}, event.stamp())
    return Skipped(PERMISSION_CHANGE, (update,))


def latest_events(row: Row | None, *, opens: bool) -> LatestEvents:
    """Return the latest events of a connection that are like an opening or closing one, or not.

    Every opening sets the reference, and every closing the time of closing, so their stamps are
    those of the latest of each kind.
    """
    if row is None:
        return LatestEvents()
    index = CONNECTIONS.index
    active, state = row.values[index["active"]], row.stamps[index["active"]]
    opened, closed = row.stamps[index["reference_id"]], row.stamps[index["last_deactivated_at"]]
    opposite = closed if opens else opened
    if (
        state is not None
        and active is not opens
        and (opposite is None or state.sent_at_ms > opposite.sent_at_ms)
    ):
        opposite = state
    return LatestEvents(
        same=state.event_id if state is not None and active is opens else "",
        opposite_ms=None if opposite is None else opposite.sent_at_ms,
    )


def _update(
    event: WebhookAdmitted, user_id: str, field: str, user: User | None, *, active: bool
) -> RowUpdate | Failed:
    """Return the row of a connection; a closed one omits columns that only an open one has."""
    if user is None or not user.user_id:
        return Failed("missing_user_id", f"{field}.user_id: expected Terra's user id, found none")
    problem = (
        text_problem(f"{field}.user_id", user.user_id)
        or text_problem(f"{field}.provider", user.provider)
        or text_problem(f"{field}.reference_id", user.reference_id)
        or text_problem(f"{field}.scopes", user.scopes, _MAX_SCOPES_CHARS)
    )
    if problem is not None:
        return Failed("malformed_id", problem)
    values: dict[str, str | bool | None] = {"provider": user.provider}
    if event.type == USER_REAUTH or event.reference == user_id:
        # Otherwise the row itself named the user: repeated, an earlier user would outlive a later.
        values["user_id"] = user_id
    if active:
        values |= {"reference_id": user.reference_id, "scopes": user.scopes}
    else:
        values["last_deactivated_at"] = rfc3339(event.sent_at_ms)
    return RowUpdate(CONNECTIONS, (user.user_id,), {**values, "active": active}, event.stamp())
