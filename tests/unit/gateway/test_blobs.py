"""Stores of blobs: a folder, and a bucket of a real S3 server."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import obstore
import pytest
from obstore.store import S3Store

from headwater.gateway.builtin.blobs.folder import blobs_at
from headwater.gateway.builtin.blobs.store import (
    BlobNotFound,
    Blobs,
    BlobsUnavailable,
    InvalidBlobKey,
)
from tests.e2e.system import free_port
from tests.waiting import wait_until

KEY = "lab-uploads/user_1/a.pdf"


def _is_there(url: str) -> bool:
    try:
        return httpx2.get(url).is_success
    except httpx2.TransportError:
        return False


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", url)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_REGION", "us-east-1")
        argv = (
            sys.executable,
            "-m",
            "moto.server",
            "-H",
            "127.0.0.1",
            "-p",
            url.rpartition(":")[2],
        )
        server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: _is_there(url), "an S3 server")
            httpx2.put(f"{url}/system").raise_for_status()
            yield "s3://system/blobs"
        finally:
            server.kill()
            server.wait()


@pytest.fixture(params=["folder", "bucket"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "folder":
        return blobs_at(str(tmp_path / "blobs"))
    store = blobs_at(request.getfixturevalue("bucket"))
    asyncio.run(store.delete_prefix(""))
    return store


async def keys(blobs: Blobs, prefix: str = "") -> list[str]:
    return sorted([key async for key in blobs.keys(prefix)])


def test_what_is_written_is_read_listed_and_deleted(blobs: Blobs):
    async def act() -> None:
        await blobs.write(KEY, b"one", "application/pdf")
        await blobs.write(KEY, b"\0two", "application/pdf")
        await blobs.write("lab-uploads/user_10/b.png", b"", "image/png")
        assert await blobs.read(KEY) == b"\0two"
        assert await keys(blobs) == [KEY, "lab-uploads/user_10/b.png"]
        assert await keys(blobs, "lab-uploads/user_1/") == [KEY]
        assert await keys(blobs, "nothing/") == []
        assert await blobs.delete(KEY) is True
        assert await blobs.delete(KEY) is False
        with pytest.raises(BlobNotFound, match=KEY):
            await blobs.read(KEY)
        await blobs.close()

    asyncio.run(act())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Labs (July) #2.pdf", "Labs (July) #2.pdf"),
        ("Blut 5 %é\r\nx: y.pdf", "Blut 5 %25%C3%A9%0D%0Ax: y.pdf"),
        ("é" * 255, None),
    ],
)
def test_an_object_of_a_bucket_says_what_it_is_and_whose(bucket: str, name: str, shown: str | None):
    about = {"user_id": "user_1", "original_name": name}
    asyncio.run(blobs_at(bucket).write(KEY, b"x", "application/pdf", **about))
    store = S3Store("system", prefix="blobs", client_options={"allow_http": True})
    result = dict(obstore.get(store, KEY).attributes)
    assert result.pop("Content-Type") == "application/pdf"
    assert result.pop("user_id") == "user_1"
    assert result.pop("original_name", None) == shown


def test_the_blobs_of_one_prefix_are_deleted_and_no_others(blobs: Blobs):
    async def act() -> None:
        for name in ("user_1/a", "user_1/b/c", "user_10/a"):
            await blobs.write(f"lab-uploads/{name}", b"x", "application/pdf")
        assert await blobs.delete_prefix("lab-uploads/user_1/") == 2
        assert await blobs.delete_prefix("lab-uploads/user_1/") == 0
        assert await keys(blobs) == ["lab-uploads/user_10/a"]

    asyncio.run(act())


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "../a",
        "a/../b",
        "a//b",
        "a/",
        "./a",
        "a/.b",
        "a\0b",
        "a\nb",
        "a\\b",
        "é",
        "a" * 513,
    ],
)
def test_a_key_that_could_name_another_place_is_refused(blobs: Blobs, key: str):
    async def act() -> None:
        for refused in (
            blobs.write(key, b"x", "text/plain"),
            blobs.read(key),
            blobs.delete(key),
            blobs.delete_prefix(f"{key}/" if key else "x"),
        ):
            with pytest.raises(InvalidBlobKey, match="expected a"):
                await refused

    asyncio.run(act())


def test_half_of_a_blob_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blobs = blobs_at(str(tmp_path))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device", "disk")

    async def act() -> None:
        await blobs.write(KEY, b"whole", "application/pdf")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(BlobsUnavailable, match="No space left"):
            await blobs.write(KEY, b"other", "application/pdf")
        assert await blobs.read(KEY) == b"whole"
        assert await keys(blobs) == [KEY]

    asyncio.run(act())
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.pdf"]


def test_a_bucket_that_is_not_there_is_unavailable(bucket: str):
    del bucket
    blobs = blobs_at("s3://no-such-bucket")
    with pytest.raises(BlobsUnavailable, match="no-such-bucket"):
        asyncio.run(blobs.write(KEY, b"x", "application/pdf"))
