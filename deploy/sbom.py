"""Write a software bill of materials (CycloneDX 1.6, JSON) of what an installation contains.

It is made from a lock file, so it has the versions and the hashes that `pip install
--require-hashes` accepts, and it is the same whenever it is made from the same files. Standard
library only.
"""

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]

_NAME: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;]+)(?:\s*;\s*(.+))?")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
#: Of serial numbers, which are computed from the contents.
_NAMESPACE: Final = uuid.UUID("6f8b7a52-7c9b-5d0e-9d4c-0d6f6a3f0f5e")


class Package(NamedTuple):
    """A package of a lock file.

    Attributes:
        name: Its normalized name.
        version: Its version.
        marker: When it is installed, as an environment marker; empty for always.
        hashes: SHA-256 of its files, any of which may be installed.
    """

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def packages(lock: str) -> Iterator[Package]:
    """Yield the packages of a lock file that `uv pip compile --generate-hashes` has written.

    Raises:
        ValueError: A line is not a pinned package, or has no hash.
    """
    logical = re.sub(r"\\\n", " ", lock)
    for line in filter(None, (line.partition(" #")[0].strip() for line in logical.splitlines())):
        if line.startswith("#"):
            continue
        pinned, hashes = _HASH.sub("", line).strip(), tuple(sorted(_HASH.findall(line)))
        match = _NAME.fullmatch(pinned)
        if match is None or not hashes:
            raise ValueError(f"expected name==version and hashes, found {line[:100]!r}")
        name = re.sub(r"[-_.]+", "-", match[1]).lower()
        yield Package(name, match[2], (match[3] or "").strip(), hashes)


def bill(project: dict[str, Any], lock: str) -> dict[str, Any]:
    """Return the bill of a project with the packages of a lock file.

    Args:
        project: The table `project` of pyproject.toml.
        lock: The lock file.
    """
    root = _component(Package(project["name"], project["version"], "", ()), "application")
    root |= {
        "description": project["description"],
        "licenses": [{"license": {"id": project["license"]}}],
    }
    components = [_component(package, "library") for package in sorted(packages(lock))]
    references = [component["bom-ref"] for component in components]
    content = {
        "metadata": {"component": root},
        "components": components,
        "dependencies": [
            {"ref": root["bom-ref"], "dependsOn": references},
            *({"ref": reference} for reference in references),
        ],
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        **content,
    }


def _component(package: Package, kind: str) -> dict[str, Any]:
    name, version, marker, hashes = package
    purl = f"pkg:pypi/{name}@{version}"
    component: dict[str, Any] = {
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if hashes:
        component["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in hashes]
    if marker:
        component["properties"] = [{"name": "headwater:marker", "value": marker}]
    return component


def main() -> None:
    """Write the bill of the lock file of the servers, or of another one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=Path, default=ROOT / "requirements.txt")
    parser.add_argument("--output", type=Path, help="Default: standard output.")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = json.dumps(bill(project, options.lock.read_text("utf-8")), indent=2) + "\n"
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
