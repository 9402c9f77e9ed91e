"""Whose delivery it is: the decisions that the Kafka agents and the fold share.

A delivery names our user itself (its reference is a user id), or it names a subject, Terra's id of
a connection, whose row in terra_connections says or will say whose it is.
"""

from typing import Final

from headwater.processors.texts import fault_of
from headwater.schemas.providers.terra import Envelope

#: The type that replaces one connection by another; it names two users.
USER_REAUTH: Final = "user_reauth"

#: The types that say which user a subject belongs to. `auth` is today's name of `auth_success`.
AUTH_TYPES: Final = frozenset({"auth", "auth_success", USER_REAUTH})

#: The types that are about a connection: they write its row and are processed by subject.
CONNECTION_TYPES: Final = AUTH_TYPES | {"deauth", "access_revoked"}

#: The types that are stored. All others are acknowledged and skipped, whoever they are about.
STORED_TYPES: Final = CONNECTION_TYPES | {"daily", "sleep"}

#: Reason of a delivery that waits for its connection.
NO_CONNECTION: Final = "no_connection_for_terra_user"

#: Reason of a delivery that names nobody: there is nothing to wait for.
NO_USER: Final = "no_user"


def user_of(reference: str | None, user_prefix: str) -> str | None:
    """The user that a reference names: itself, if it starts as our user ids do; else None."""
    return reference if reference and reference.startswith(user_prefix) else None


def previous_subject(type_: str, envelope: Envelope) -> str | None:
    """The subject that a user_reauth replaces; None for other types, or if there is none.

    Terra echoes the reference of the widget session that reauthenticated, which need not be a user
    id of ours; the connection that it replaces has a user all the same.
    """
    old, new = envelope.old_user, envelope.new_user
    if type_ != USER_REAUTH or old is None or not old.user_id:
        return None
    if new is not None and new.user_id == old.user_id:
        return None
    return None if fault_of("old_user.user_id", old.user_id) else old.user_id
