"""Blobs as objects in a bucket of S3 or a compatible service.

Credentials, region and endpoint are configured as for AWS's own tools: by variables such as
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL, or by the machine's role.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from urllib.parse import quote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from headwater.gateway.builtin.blobs.store import (
    BlobNotFound,
    BlobsUnavailable,
    checked_key,
    checked_prefix,
)

#: Timeout of a request, and of all its retries together.
_TRIES: Final = 4
_TIMEOUT: Final = timedelta(seconds=30)
#: Characters that are not escaped in metadata, which is sent in headers.
_UNESCAPED: Final = " !#$&'()+,/:;=?@[]|"
#: Characters of a metadata value; longer ones are left out. S3 accepts 2 KB of metadata in total.
_METADATA_CHARS: Final = 900


class BucketBlobs:
    """The blobs of a bucket, optionally under a prefix."""

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        if not url.netloc:
            raise ValueError(f"expected s3://bucket or s3://bucket/prefix, found {address!r}")
        self._address = address
        self._store = S3Store(
            url.netloc,
            prefix=url.path.strip("/") or None,
            client_options={"allow_http": True, "timeout": _TIMEOUT},
            retry_config={"max_retries": _TRIES - 1, "retry_timeout": _TIMEOUT},
        )

    async def write(self, key: str, content: bytes, content_type: str, **about: str) -> None:
        """See `Blobs.write`; `about` is stored as metadata, escaped as in a URL."""
        escaped = {name: quote(value, safe=_UNESCAPED) for name, value in about.items()}
        metadata = {name: text for name, text in escaped.items() if len(text) <= _METADATA_CHARS}
        attributes = {"Content-Type": content_type, **metadata}
        with self._translated_errors():
            await obstore.put_async(self._store, checked_key(key), content, attributes=attributes)

    async def read(self, key: str) -> bytes:
        """See `Blobs.read`."""
        with self._translated_errors(key):
            response = await obstore.get_async(self._store, checked_key(key))
            return bytes(await response.bytes_async())

    async def delete(self, key: str) -> bool:
        """See `Blobs.delete`."""
        checked_key(key)
        try:
            with self._translated_errors(key):
                # S3 does not report whether a deleted object existed.
                await obstore.head_async(self._store, key)
                await obstore.delete_async(self._store, key)
        except BlobNotFound:
            return False
        return True

    async def delete_prefix(self, prefix: str) -> int:
        """See `Blobs.delete_prefix`."""
        deleted = 0
        with self._translated_errors():
            async for keys in self._pages(prefix):
                await obstore.delete_async(self._store, keys)
                deleted += len(keys)
        return deleted

    async def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """See `Blobs.keys`."""
        with self._translated_errors():
            async for page in self._pages(prefix):
                for key in page:
                    yield key

    async def _pages(self, prefix: str) -> AsyncIterator[list[str]]:
        async for page in obstore.list(self._store, checked_prefix(prefix) or None):
            yield [entry["path"] for entry in page]

    async def close(self) -> None:
        """Do nothing: the library manages connections."""

    @contextmanager
    def _translated_errors(self, key: str | None = None) -> Iterator[None]:
        """Translate errors of the library; with a key, a missing object is `BlobNotFound`."""
        try:
            yield
        except (BaseError, OSError) as error:
            # The library raises FileNotFoundError for a missing object.
            if key is not None and isinstance(error, FileNotFoundError):
                message = f"there is no blob {key} in {self._address}"
                raise BlobNotFound(message) from error
            raise BlobsUnavailable(
                f"cannot access blobs at {self._address}: {str(error).splitlines()[0]}"
            ) from error
