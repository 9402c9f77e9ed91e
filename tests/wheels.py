"""Tiny wheels that tests install, so that no test needs an index."""

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def build_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    requires: Sequence[str] = (),
    requires_python: str = "",
) -> str:
    """Writes a wheel, and gives its line of a requirements.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    path.write_bytes(wheel_bytes(name, version, files, requires, requires_python))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{name}=={version} --hash=sha256:{digest}\n"


def wheel_bytes(
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    requires: Sequence[str] = (),
    requires_python: str = "",
) -> bytes:
    """The bytes of a wheel of these files."""
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {item}" for item in requires]
    metadata += [f"Requires-Python: {requires_python}"] if requires_python else []
    contents = {
        path: text.encode() if isinstance(text, str) else text for path, text in files.items()
    }
    contents[f"{info}/METADATA"] = "\n".join([*metadata, ""]).encode()
    contents[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(
        f"{path},{_hash(content)},{len(content)}\n" for path, content in contents.items()
    )
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as zipped:
        for path, content in contents.items():
            zipped.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), content)
    return written.getvalue()


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"sha256={digest}"
