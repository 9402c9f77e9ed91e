"""What Terra answers, as far as Headwater reads it; fields that are not named are passed over.

Source: Terra's OpenAPI document, version 2026.07.17.1.
"""

import msgspec


class WidgetSession(msgspec.Struct, frozen=True):
    """A page on which somebody connects a wearable.

    Units:  expires_in in seconds.
    """

    url: str
    session_id: str
    expires_in: float = 900


class TerraUser(msgspec.Struct, frozen=True):
    """A connection, as Terra knows it."""

    user_id: str
    provider: str
    reference_id: str | None = None
    scopes: str | None = None
    active: bool | None = None
    created_at: str | None = None


class NamedUser(msgspec.Struct, frozen=True):
    """What is read of a connection of which nothing else can be read."""

    user_id: str


class Page(msgspec.Struct, frozen=True):
    """A page of connections, each read by itself; next is the number of the page behind it."""

    results: tuple[msgspec.Raw, ...] = ()
    next: int | None = None


class Subscriptions(msgspec.Struct, frozen=True):
    """The connections: a page of them, or all at once."""

    data: Page | None = None
    users: tuple[msgspec.Raw, ...] | None = None


class Accepted(msgspec.Struct, frozen=True):
    """A request for data that will come as deliveries; an `error` will not, whatever its status."""

    status: str = ""
    reference: str = ""
    message: str = ""


class LabAccepted(msgspec.Struct, frozen=True):
    """A lab report that is being read: its results come in a delivery that names upload_id."""

    upload_id: str
