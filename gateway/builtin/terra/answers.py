"""The fields of Terra's responses that Headwater reads; other fields are ignored.

Source: Terra's OpenAPI document, version 2026.07.17.1.
"""

import msgspec


class WidgetSession(msgspec.Struct, frozen=True):
    """A page on which a user connects a wearable. `expires_in` is in seconds."""

    url: str
    session_id: str
    expires_in: float = 900


class TerraUser(msgspec.Struct, frozen=True):
    """A connection in Terra."""

    user_id: str
    provider: str
    reference_id: str | None = None
    scopes: str | None = None
    active: bool | None = None
    created_at: str | None = None


class NamedUser(msgspec.Struct, frozen=True):
    """The id of a connection whose other fields cannot be parsed."""

    user_id: str


class Page(msgspec.Struct, frozen=True):
    """A page of connections, which are parsed one by one; `next` is the number of the next page."""

    results: tuple[msgspec.Raw, ...] = ()
    next: int | None = None


class Subscriptions(msgspec.Struct, frozen=True):
    """Connections: one page in `data`, or all in `users`."""

    data: Page | None = None
    users: tuple[msgspec.Raw, ...] | None = None


class Accepted(msgspec.Struct, frozen=True):
    """Response to a request for data, which arrives as deliveries unless `status` is `error`."""

    status: str = ""
    reference: str = ""
    message: str = ""


class LabAccepted(msgspec.Struct, frozen=True):
    """Response to a lab report; its results arrive in a delivery with this `upload_id`."""

    upload_id: str
