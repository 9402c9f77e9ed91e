"""What a store of blobs is, and which keys it takes."""

import re
from collections.abc import AsyncIterator
from typing import Final, Protocol

from headwater.schemas.errors import Disposition, HeadwaterError

#: One segment of a key: neither empty nor a name that a file system reads as another place.
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_=@+~-][A-Za-z0-9_=@+~.-]*")
_KEY_MAX: Final = 512
#: What is no part of a segment, or would be where it is; = begins a code.
_NO_SEGMENT: Final = re.compile(r"^\.|[^A-Za-z0-9_@+~.-]")


class InvalidBlobKey(HeadwaterError):
    """A key that could name a place outside the store, or that not every store can hold."""

    disposition = Disposition.REJECT
    code = "invalid_blob_key"


class BlobNotFound(HeadwaterError):
    """There is no blob of this key."""

    disposition = Disposition.REJECT
    code = "blob_not_found"


class BlobsUnavailable(HeadwaterError):
    """The store did not do what it was asked to; it may later."""

    disposition = Disposition.RETRY
    code = "blobs_unavailable"


class Blobs(Protocol):
    """A store of blobs by key.

    Shape:  keys are segments of letters, digits and `_=@+~.-` with a slash between them, none of
            which begins with a dot, 512 characters at most; a prefix is some segments of a key with
            a slash behind them.
    Errors: InvalidBlobKey, BlobsUnavailable.
    """

    async def write(self, key: str, content: bytes, content_type: str, **about: str) -> None:
        """Writes a blob whole, over one that is there; when it returns, that is durable.

        Shape:  about says more of it to people who look into the store, where that keeps such.
        """

    async def read(self, key: str) -> bytes:
        """A blob.

        Errors: BlobNotFound.
        """

    async def delete(self, key: str) -> bool:
        """Deletes a blob; says whether there was one."""

    async def delete_prefix(self, prefix: str) -> int:
        """Deletes the blobs whose keys begin with a prefix; says how many there were."""

    def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """The keys that begin with a prefix, in no order."""

    async def close(self) -> None:
        """Ends connections."""


def checked_key(key: str) -> str:
    """The key.

    Errors: InvalidBlobKey.
    """
    segments = key.split("/")
    if len(key) > _KEY_MAX or not all(map(_SEGMENT.fullmatch, segments)):
        raise InvalidBlobKey(
            f"expected a key such as lab-uploads/user_1/report.pdf, of at most {_KEY_MAX} "
            f"characters, found {key[:_KEY_MAX]!a}"
        )
    return key


def checked_prefix(prefix: str) -> str:
    """The prefix; an empty one is that of every key.

    Errors: InvalidBlobKey.
    """
    if prefix and not prefix.endswith("/"):
        raise InvalidBlobKey(f"expected a prefix that ends with a slash, found {prefix!a}")
    return f"{checked_key(prefix[:-1])}/" if prefix else ""


def reports_of(user_id: str) -> str:
    """The prefix of a user's lab reports; a character that no key has is its code between =."""
    user = _NO_SEGMENT.sub(lambda found: f"={ord(found[0]):X}=", user_id)
    return f"lab-uploads/{user}/"
