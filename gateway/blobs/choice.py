"""Which store of blobs an address names."""

from pathlib import Path
from typing import Final

from headwater.gateway.blobs.folder import FolderBlobs
from headwater.gateway.blobs.store import Blobs

#: What the address of a bucket begins with.
S3: Final = "s3://"


def blobs_at(address: str) -> Blobs:
    """The store at a folder, or at s3://bucket/prefix.

    Errors: ValueError for an address of a bucket that names none.
    """
    if not address.startswith(S3):
        return FolderBlobs(Path(address))
    # Its library takes long to load, and only this needs it.
    from headwater.gateway.blobs.bucket import BucketBlobs  # noqa: PLC0415

    return BucketBlobs(address)
