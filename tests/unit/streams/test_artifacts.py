"""Artifacts are unpacked within their folder, whatever they say of themselves; or not at all."""

import io
import random
import stat
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.streams.code_host import artifacts
from headwater.streams.code_host.apps import AppNotLoaded
from headwater.streams.code_host.artifacts import ArtifactInvalid, check_app, unpack

SOURCE = b"PRICES = {}\n"


def zip_of(files: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None] = lambda _: None):
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as zipped:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            change(entry)
            zipped.writestr(entry, content)
    return written.getvalue()


def refusal(artifact: bytes, folder: Path) -> str:
    with pytest.raises(ArtifactInvalid) as caught:
        unpack(artifact, folder)
    return caught.value.message


def test_what_was_zipped_is_there(tmp_path: Path):
    files = {
        "shop/__init__.py": b"",
        "shop/orders.py": SOURCE,
        "data/größe.txt": b"\0\xff" * 99_999,
    }
    unpack(zip_of({"shop/": b"", **files}), tmp_path)
    result = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*")}
    assert {name: item.read_bytes() for name, item in result.items() if item.is_file()} == files


@pytest.mark.parametrize(
    "name",
    [
        *("../out.py", "shop/../../out.py", "/etc/out.py", "//out.py", "shop//out.py", "./out.py"),
        *("..", "shop/..", "/", "..\\out.py", "C:/out.py", "shop\\out.py"),
        *("a\nb.py", "a\x1b[2Jb.py", "a" * 256 + ".py", "shop/" * 300 + "out.py"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str):
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "expected names within the artifact" in refusal(zip_of({name: SOURCE}), folder)
    assert list(tmp_path.rglob("*")) == [folder]


def test_a_name_that_is_cut_at_a_nul_is_refused(tmp_path: Path):
    artifact = zip_of({"out.pyXsafe": SOURCE}).replace(b"out.pyXsafe", b"out.py\0safe")
    assert "expected names within the artifact" in refusal(artifact, tmp_path)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_a_link_or_a_device_is_refused(tmp_path: Path, kind: int):
    def changed(entry: zipfile.ZipInfo) -> None:
        entry.external_attr = (kind | 0o777) << 16

    reported = refusal(zip_of({"passwd": b"/etc/passwd"}, changed), tmp_path)
    assert "found 'passwd', a link or a device" in reported
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "files",
    [
        {"a.py": b"1", "./a.py": b"2"},
        {"a": b"1", "a/b.py": b"2"},
        {"a/b.py": b"1", "a": b"2"},
        {"a": b"1", "a/": b""},
    ],
)
def test_a_name_that_is_there_already_is_refused(tmp_path: Path, files: dict[str, bytes]):
    assert "expected " in refusal(zip_of(files), tmp_path)


def test_the_same_name_twice_is_refused(tmp_path: Path):
    artifact = zip_of({"a.py": b"1", "b.py": b"2"}).replace(b"b.py", b"a.py")
    assert "expected each name once, found 'a.py' twice" in refusal(artifact, tmp_path)


def test_what_grows_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(artifacts, "UNPACKED_BYTES_MAX", 1024 * 1024)
    bomb = zip_of({f"{number}.txt": b"\0" * 200_000 for number in range(6)})
    assert len(bomb) < 10_000
    assert "expected at most 1 MiB once it is unpacked" in refusal(bomb, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_is_a_lie_is_not_believed(tmp_path: Path):
    honest = zip_of({"a.txt": b"\0" * 300_000})
    lie = honest.replace((300_000).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert "found it damaged" in refusal(lie, tmp_path)
    assert (tmp_path / "a.txt").stat().st_size <= 100


def test_files_that_lie_over_one_another_count_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Many names for the same bytes of the zip: small, and large once it is unpacked."""
    monkeypatch.setattr(artifacts, "UNPACKED_BYTES_MAX", 1024 * 1024)
    one = zip_of({"a.txt": b"\0" * 400_000})
    start = one.index(b"PK\x01\x02")
    end = one.index(b"PK\x05\x06")
    directory = b"".join(one[start:end].replace(b"a.txt", b"%d.txt" % n) for n in range(4))
    tail = bytearray(one[end:])
    tail[8:12] = (4).to_bytes(2, "little") * 2
    tail[12:16] = len(directory).to_bytes(4, "little")
    assert "expected at most 1 MiB" in refusal(one[:start] + directory + bytes(tail), tmp_path)


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(artifacts, "ENTRIES_MAX", 3)
    reported = refusal(zip_of({f"{number}.py": b"" for number in range(4)}), tmp_path)
    assert reported == "expected at most 3 files and folders, found more"


def test_too_many_files_are_refused_before_their_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def opened(*_: object) -> None:
        raise AssertionError("expected the zip not to be opened")

    artifact = zip_of({f"{number}.py": b"" for number in range(4)})
    monkeypatch.setattr(artifacts, "ENTRIES_MAX", 3)
    monkeypatch.setattr(zipfile, "ZipFile", opened)
    assert "at most 3 files" in refusal(artifact, tmp_path)


def test_what_cannot_be_read_is_refused(tmp_path: Path):
    artifact = bytearray(zip_of({"a.py": SOURCE}))
    artifact[artifact.index(b"PK\x01\x02") + 8] |= 1
    assert "found 'a.py' encrypted" in refusal(bytes(artifact), tmp_path)

    def packed(entry: zipfile.ZipInfo) -> None:
        entry.compress_type = zipfile.ZIP_LZMA

    reported = refusal(zip_of({"a.py": SOURCE}, packed), tmp_path)
    assert "expected files deflated or stored, found 'a.py' with the method 14" in reported


@pytest.mark.parametrize(
    "artifact", [b"", b"{}", b"PK\x05\x06", b"PK\x03\x04" + b"\0" * 40, SOURCE]
)
def test_what_is_no_zip_is_refused(tmp_path: Path, artifact: bytes):
    assert "expected a zip, found another file" in refusal(artifact, tmp_path)


WHOLE = zip_of({"shop/": b"", "shop/orders.py": SOURCE * 50, "größe.txt": b"x" * 300})


@given(st.randoms(use_true_random=False), st.integers(1, 20))
def test_whatever_is_torn_stays_within_its_folder(drawn: random.Random, changes: int):
    artifact = bytearray(WHOLE)
    for _ in range(changes):
        artifact[drawn.randrange(len(artifact))] = drawn.randrange(256)
    if drawn.random() < 0.2:
        del artifact[drawn.randrange(len(artifact)) :]
    with TemporaryDirectory() as outside:
        folder = Path(outside) / "folder"
        folder.mkdir()
        with suppress(ArtifactInvalid):
            unpack(bytes(artifact), folder)
        assert list(Path(outside).iterdir()) == [folder]


@pytest.mark.parametrize(
    ("app", "name"),
    [
        *(("orders", "orders.py"), ("orders:app", "orders.py")),
        *(("shop.orders", "shop/orders.py"), ("shop", "shop/__init__.py")),
        ("shop.fast", "shop/fast.cpython-311-x86_64-linux-gnu.so"),
    ],
)
def test_an_app_is_found_in_its_artifact(tmp_path: Path, app: str, name: str):
    unpack(zip_of({name: SOURCE}), tmp_path)
    check_app(app, tmp_path)


@pytest.mark.parametrize(
    ("app", "found"),
    [
        ("shop.orders", "as shop/orders.py or shop/orders/__init__.py, found at its top src"),
        ("click", "expected the module click in the artifact"),
        ("src", "expected the module src in the artifact"),
        ("json", "expected a module of your own, found json, which is Python's"),
        ("asyncio.tasks", "found asyncio.tasks, which is Python's"),
        ("headwater", "found headwater, which is Headwater's"),
        ("headwater.gateway", "which is Headwater's"),
    ],
)
def test_an_app_that_is_not_in_its_artifact_is_refused(tmp_path: Path, app: str, found: str):
    unpack(zip_of({"src/shop/orders.py": SOURCE}), tmp_path)
    with pytest.raises(ArtifactInvalid) as caught:
        check_app(app, tmp_path)
    assert found in caught.value.message


@pytest.mark.parametrize("app", ["", "a b", "shop/orders.py", "shop:a:b", "..", "shop.", "shop\n"])
def test_a_name_that_no_app_has_is_refused(tmp_path: Path, app: str):
    with pytest.raises(AppNotLoaded):
        check_app(app, tmp_path)
