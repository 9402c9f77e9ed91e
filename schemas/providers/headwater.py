"""What the house tells of itself: facts that become deliveries of the provider `headwater`.

A fact is told once: two that are equal are one delivery, however often they are appended. So each
says when it became true, and whoever tells it again after a failure tells the same.
"""

from typing import ClassVar

import msgspec

from headwater.schemas.errors import PARSE_ERRORS, MalformedPayload

#: The source of deliveries that nobody posts.
SYSTEM_SOURCE = "headwater"


class SystemEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True
):
    """Something that the house has learnt of a user of ours.

    Shape:  `subject_field` names the field with the id of what it is about. The tag is the type of
            its delivery.
    Units:  at_ms in Unix milliseconds: what was learnt later counts.
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
        """The id of what it is about; empty where there is none yet."""
        return getattr(self, self.subject_field) or ""


class LabUploaded(SystemEvent, frozen=True, kw_only=True, tag="lab_uploaded"):
    """A lab report was uploaded, and lies among the blobs."""

    subject_field: ClassVar[str] = "upload_id"

    upload_id: str
    storage_key: str
    original_name: str
    content_type: str
    size: int


class LabSubmitted(SystemEvent, frozen=True, kw_only=True, tag="lab_submitted"):
    """A lab report was given to Terra, or could not be.

    Shape:  terra_status is `submitted`, `failed:<HTTP status>` or `failed:network`; terra_upload_id
            is there once it was submitted; terra_response is Terra's answer, or what went wrong.
    """

    subject_field: ClassVar[str] = "terra_upload_id"

    upload_id: str
    terra_status: str
    terra_upload_id: str | None = None
    terra_response: str | None = None


class ConnectionListed(SystemEvent, frozen=True, kw_only=True, tag="connection_listed"):
    """A connection that Terra has: it is active."""

    subject_field: ClassVar[str] = "terra_user_id"

    terra_user_id: str
    provider: str | None = None
    scopes: str | None = None


class ConnectionClosed(SystemEvent, frozen=True, kw_only=True, tag="connection_gone"):
    """A connection that we had, and Terra has no more."""

    subject_field: ClassVar[str] = "terra_user_id"

    terra_user_id: str


def decode_system_event(body: bytes, kind: type[SystemEvent]) -> SystemEvent:
    """Reads a fact.

    Errors: MalformedPayload.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except PARSE_ERRORS as error:
        raise MalformedPayload(f"expected {kind.__name__}, found: {error}") from error
