"""Choose the blob store for an address."""

from pathlib import Path
from typing import Final

from headwater.gateway.builtin.blobs.folder import FolderBlobs
from headwater.gateway.builtin.blobs.store import Blobs

#: Prefix of the address of a bucket.
S3: Final = "s3://"


def blobs_at(address: str) -> Blobs:
    """Return the store at a folder, or at s3://bucket/prefix.

    Raises:
        ValueError: The address of a bucket has no bucket.
    """
    if not address.startswith(S3):
        return FolderBlobs(Path(address))
    # Imported on use, because the library is slow to import.
    from headwater.gateway.builtin.blobs.bucket import BucketBlobs  # noqa: PLC0415

    return BucketBlobs(address)
