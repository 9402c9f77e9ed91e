"""The interface of blob stores, and the validation of keys."""

import re
from collections.abc import AsyncIterator
from typing import Final, Protocol

from headwater.schemas.errors import Disposition, HeadwaterError

#: A segment of a key: not empty, and never `.` or `..`.
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_=@+~-][A-Za-z0-9_=@+~.-]*")
_KEY_MAX: Final = 512
#: Characters that are escaped in a segment; = delimits an escape.
_ESCAPED: Final = re.compile(r"^\.|[^A-Za-z0-9_@+~.-]")


class InvalidBlobKey(HeadwaterError):
    """A key that could refer to a path outside the store, or that not every store supports."""

    disposition = Disposition.REJECT
    code = "invalid_blob_key"


class BlobNotFound(HeadwaterError):
    """There is no blob with this key."""

    disposition = Disposition.REJECT
    code = "blob_not_found"


class BlobsUnavailable(HeadwaterError):
    """The store failed; a retry may succeed."""

    disposition = Disposition.RETRY
    code = "blobs_unavailable"


class Blobs(Protocol):
    """A store of blobs by key.

    Keys are segments of letters, digits and `_=@+~.-`, separated by slashes, at most 512 characters
    in total. No segment begins with a dot. A prefix is some segments of a key with a trailing
    slash. All methods except `close` raise InvalidBlobKey and BlobsUnavailable.
    """

    async def write(self, key: str, content: bytes, content_type: str, **about: str) -> None:
        """Write or replace a blob; return when it is durable.

        Args:
            key: Key of the blob.
            content: The bytes.
            content_type: Media type, for stores that keep it.
            **about: Metadata, for stores that keep it.
        """

    async def read(self, key: str) -> bytes:
        """Return a blob.

        Raises:
            BlobNotFound: There is no blob with this key.
        """

    async def delete(self, key: str) -> bool:
        """Delete a blob; return whether it existed."""

    async def delete_prefix(self, prefix: str) -> int:
        """Delete the blobs under a prefix; return their number."""

    def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """Yield the keys that begin with a prefix, in any order."""

    async def close(self) -> None:
        """Close connections."""


def checked_key(key: str) -> str:
    """Validate a key and return it.

    Raises:
        InvalidBlobKey: The key is not valid.
    """
    segments = key.split("/")
    if len(key) > _KEY_MAX or not all(map(_SEGMENT.fullmatch, segments)):
        raise InvalidBlobKey(
            f"expected a key such as lab-uploads/user_1/report.pdf, of at most {_KEY_MAX} "
            f"characters, found {key[:_KEY_MAX]!a}"
        )
    return key


def checked_prefix(prefix: str) -> str:
    """Validate a prefix and return it; the empty prefix matches every key.

    Raises:
        InvalidBlobKey: The prefix is not valid.
    """
    if prefix and not prefix.endswith("/"):
        raise InvalidBlobKey(f"expected a prefix that ends with a slash, found {prefix!a}")
    return f"{checked_key(prefix[:-1])}/" if prefix else ""


def reports_of(user_id: str) -> str:
    """Return the prefix of a user's lab reports; other characters become their code between =."""
    user = _ESCAPED.sub(lambda match: f"={ord(match[0]):X}=", user_id)
    return f"lab-uploads/{user}/"
