"""System events: deliveries of the provider `headwater`, which Headwater itself publishes.

Equal system events are one delivery, however often they are appended. So every one contains the
time at which it became true, and a retry after a failure publishes an equal one.
"""

from typing import ClassVar

import msgspec

from headwater.schemas.errors import PARSE_ERRORS, MalformedPayload

#: Source of Headwater's own deliveries, which no client can post.
SYSTEM_SOURCE = "headwater"


class SystemEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True
):
    """Base of system events about a user. The tag is the type of the delivery.

    Attributes:
        subject_field: Name of the field with the id of what it is about.
        at_ms: When it became true, in Unix milliseconds; of two, the later one counts.
    """

    subject_field: ClassVar[str]

    at_ms: int
    user_id: str

    @property
    def type(self) -> str:
        """The type of its delivery."""
        return str(self.__struct_config__.tag)

    @property
    def subject(self) -> str:
        """The id of what it is about; empty if there is none yet."""
        return getattr(self, self.subject_field) or ""


class LabUploaded(SystemEvent, frozen=True, kw_only=True, tag="lab_uploaded"):
    """A lab report was uploaded and stored as a blob."""

    subject_field: ClassVar[str] = "upload_id"

    upload_id: str
    storage_key: str
    original_name: str
    content_type: str
    size: int


class LabSubmitted(SystemEvent, frozen=True, kw_only=True, tag="lab_submitted"):
    """A lab report was submitted to Terra, or could not be.

    Attributes:
        terra_status: `submitted`, `failed:<HTTP status>`, `failed:network`,
            `failed:terra_not_configured`, or 24 hours after `submitted` `failed:no_report`.
        terra_upload_id: Terra's id, once it was submitted.
        terra_response: Terra's response, or the error.
    """

    subject_field: ClassVar[str] = "terra_upload_id"

    upload_id: str
    terra_status: str
    terra_upload_id: str | None = None
    terra_response: str | None = None


class ConnectionListed(SystemEvent, frozen=True, kw_only=True, tag="connection_listed"):
    """A connection that exists at Terra: it is active."""

    subject_field: ClassVar[str] = "terra_user_id"

    terra_user_id: str
    provider: str | None = None
    scopes: str | None = None


class ConnectionClosed(SystemEvent, frozen=True, kw_only=True, tag="connection_gone"):
    """A connection that no longer exists at Terra."""

    subject_field: ClassVar[str] = "terra_user_id"

    terra_user_id: str


def decode_system_event(body: bytes, kind: type[SystemEvent]) -> SystemEvent:
    """Decode a system event.

    Raises:
        MalformedPayload: The body is not such an event.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except PARSE_ERRORS as error:
        raise MalformedPayload(f"expected {kind.__name__}, found: {error}") from error
