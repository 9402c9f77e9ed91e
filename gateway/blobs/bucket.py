"""Blobs as objects of a bucket, in S3 or in whatever speaks its protocol.

Credentials, region and endpoint are those that AWS's own tools take: from the variables
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL and so on, or from the
machine's role.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from urllib.parse import quote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from headwater.gateway.blobs.store import (
    BlobNotFound,
    BlobsUnavailable,
    checked_key,
    checked_prefix,
)

#: A request that takes longer is tried again, and all tries together take no longer than this.
_TRIES: Final = 4
_TIMEOUT: Final = timedelta(seconds=30)
#: Metadata are headers: visible ASCII, and blanks within.
_AS_IT_IS: Final = " !#$&'()+,/:;=?@[]|"
#: Of one of them; S3 refuses an object that has more than 2 KB in all. Longer ones are left out.
_METADATA_CHARS: Final = 900


class BucketBlobs:
    """The blobs of a bucket, or of those of its objects whose keys begin with a prefix."""

    def __init__(self, address: str) -> None:
        place = urlsplit(address)
        if not place.netloc:
            raise ValueError(f"expected s3://bucket or s3://bucket/prefix, found {address!r}")
        self._address = address
        self._store = S3Store(
            place.netloc,
            prefix=place.path.strip("/") or None,
            client_options={"allow_http": True, "timeout": _TIMEOUT},
            retry_config={"max_retries": _TRIES - 1, "retry_timeout": _TIMEOUT},
        )

    async def write(self, key: str, content: bytes, content_type: str, **about: str) -> None:
        """As `Blobs.write`; about is metadata of the object, escaped as in a URL."""
        escaped = {name: quote(value, safe=_AS_IT_IS) for name, value in about.items()}
        kept = {name: text for name, text in escaped.items() if len(text) <= _METADATA_CHARS}
        attributes = {"Content-Type": content_type, **kept}
        with self._edge():
            await obstore.put_async(self._store, checked_key(key), content, attributes=attributes)

    async def read(self, key: str) -> bytes:
        """As `Blobs.read`."""
        with self._edge(key):
            found = await obstore.get_async(self._store, checked_key(key))
            return bytes(await found.bytes_async())

    async def delete(self, key: str) -> bool:
        """As `Blobs.delete`."""
        checked_key(key)
        try:
            with self._edge(key):
                # S3 says nothing of objects that were not there.
                await obstore.head_async(self._store, key)
                await obstore.delete_async(self._store, key)
        except BlobNotFound:
            return False
        return True

    async def delete_prefix(self, prefix: str) -> int:
        """As `Blobs.delete_prefix`."""
        deleted = 0
        with self._edge():
            async for keys in self._pages(prefix):
                await obstore.delete_async(self._store, keys)
                deleted += len(keys)
        return deleted

    async def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """As `Blobs.keys`."""
        with self._edge():
            async for page in self._pages(prefix):
                for key in page:
                    yield key

    async def _pages(self, prefix: str) -> AsyncIterator[list[str]]:
        async for page in obstore.list(self._store, checked_prefix(prefix) or None):
            yield [each["path"] for each in page]

    async def close(self) -> None:
        """Connections end by themselves."""

    @contextmanager
    def _edge(self, key: str | None = None) -> Iterator[None]:
        """Translates the library's errors; with a key, nothing there is a blob that is not."""
        try:
            yield
        except (BaseError, OSError) as error:
            # What the library does not find is a plain FileNotFoundError.
            if key is not None and isinstance(error, FileNotFoundError):
                found = f"expected a blob {key}, found none in {self._address}"
                raise BlobNotFound(found) from error
            raise BlobsUnavailable(
                f"expected {self._address} to answer, found: {str(error).splitlines()[0]}"
            ) from error
