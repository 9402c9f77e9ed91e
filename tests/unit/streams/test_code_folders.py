"""The code of deployments on a machine: read-only, exactly what was deployed, and its metadata."""

import asyncio
import hashlib
import os
import stat
import sys
from pathlib import Path

import pytest

from headwater.processors.deployments import Deployments
from headwater.schemas.deployments import REQUESTED, DeploymentCreated, EnvironmentReported
from headwater.streams.code_host.artifact_metadata import check_metadata
from headwater.streams.code_host.artifacts import ArtifactInvalid, unpack
from headwater.streams.code_host.requirements import Requirements
from headwater.streams.workflows.code_folders import (
    ArtifactFolders,
    CodeFolders,
    ScratchFolders,
    trial_problem,
)
from headwater.streams.workflows.environments import (
    EnvironmentFailed,
    EnvironmentPolicy,
    Environments,
)
from headwater.streams.workflows.host_process import declarations_of
from tests.deployed_apps import content_of, zipped
from tests.wheels import wheel_bytes

APP = """
from pathlib import Path
from headwater import workflow

{more}

@workflow("{name}")
async def order(event, step): ...
"""


class Artifacts:
    """A log with one artifact."""

    def __init__(self, artifact: bytes) -> None:
        self.content = artifact
        self.fetched = 0
        self.fold = Deployments()
        self.deployment = DeploymentCreated(
            id="dep_1",
            app="shop",
            digest=hashlib.sha256(artifact).hexdigest(),
            size=len(artifact),
            offset=0,
            workflows=(),
            by="tests",
            at_ms=0,
            content=content_of(artifact),
        )

    async def artifact(self, _deployment: DeploymentCreated) -> bytes:
        self.fetched += 1
        return self.content


def code(name: str, more: str = "") -> str:
    return APP.format(name=name, more=more)


# -- read-only, and verified


def test_unpacked_code_is_read_only_and_unpacked_once(tmp_path: Path):
    log = Artifacts(zipped(code("one")))
    folder = asyncio.run(ArtifactFolders(log, tmp_path).folder_of(log.deployment))  # type: ignore[arg-type]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o555
    assert stat.S_IMODE((folder / "shop.py").stat().st_mode) == 0o444
    assert asyncio.run(ArtifactFolders(log, tmp_path).folder_of(log.deployment)) == folder  # type: ignore[arg-type]
    assert log.fetched == 1


@pytest.mark.parametrize("change", ["edited", "added", "removed", "linked"])
def test_a_changed_folder_is_unpacked_again_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
):
    log = Artifacts(zipped(code("one")))
    folders = ArtifactFolders(log, tmp_path)  # type: ignore[arg-type]
    module = asyncio.run(folders.folder_of(log.deployment)) / "shop.py"
    original = module.read_text()
    module.parent.chmod(0o755)
    module.chmod(0o644)
    if change == "edited":
        module.write_text(code("two"))
    elif change == "added":
        (module.parent / "other.py").touch()
    else:
        module.unlink()
    if change == "linked":
        (tmp_path / "shop.py").write_text(original)
        module.symlink_to(tmp_path / "shop.py")
    asyncio.run(folders.folder_of(log.deployment))
    assert [path.name for path in module.parent.iterdir()] == ["shop.py"]
    assert (module.read_text(), module.is_symlink()) == (original, False)
    assert "was changed since it was unpacked; unpacking it again" in caplog.text
    assert log.fetched == 2


def test_a_workflow_cannot_change_the_code_of_the_next_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    overwrites = """
path = Path(__file__)
try:
    path.chmod(0o644)
    path.write_text(path.read_text().replace('"one"', '"two"'))
except OSError:
    pass
Path("out.csv").write_text("relative to the scratch folder")
"""
    log = Artifacts(zipped(code("one", overwrites)))

    async def scenario() -> None:
        folders = CodeFolders(log, tmp_path, EnvironmentPolicy())  # type: ignore[arg-type]
        for _ in range(2):
            host = await folders.code_of(log.deployment)
            assert (await declarations_of("shop", code=host)).workflows == ("one",)
            assert host.scratch is not None
            assert [path.name for path in host.scratch.iterdir()] == ["out.csv"]
            assert not (host.folder / "__pycache__").exists()
        folders.close()
        assert list((tmp_path / "scratch").iterdir()) == []

    asyncio.run(scenario())
    assert "was changed since it was unpacked" in caplog.text


def test_scratch_folders_of_others_are_removed_when_they_have_ended(tmp_path: Path):
    one, two = ScratchFolders(tmp_path), ScratchFolders(tmp_path)
    first = one.new_folder("dep_1")
    (first / "file").touch()
    second = two.new_folder("dep_1")
    assert first.exists()
    assert second.exists()
    assert list(one.new_folder("dep_1").iterdir()) == []
    # As the kernel does when a process ends.
    os.close(one._descriptor)
    ScratchFolders(tmp_path).new_folder("dep_1")
    assert not first.exists()
    assert second.exists()


def test_a_deployment_is_tried_without_a_worker(tmp_path: Path):
    def problem(artifact: bytes, state: Path, **policy: Path) -> str:
        log = Artifacts(artifact)
        return asyncio.run(
            trial_problem(
                log,  # type: ignore[arg-type]
                log.deployment,
                state=state,
                policy=EnvironmentPolicy(**policy),
                passed=(),
            )
        )

    pin = f"absent==1.0 --hash=sha256:{'0' * 64}\n"
    absent = tmp_path / "absent"
    assert problem(zipped(code("one")), absent) == ""
    assert not absent.exists()
    assert "absent==1.0" in problem(zipped(code("one"), pin), absent, wheels=tmp_path)
    assert "line 1: expected hashes" in problem(zipped(code("one"), "a==1\n"), tmp_path)


# -- metadata


def refusal(folder: Path) -> str:
    with pytest.raises(ArtifactInvalid) as caught:
        check_metadata(folder)
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        (".python-version", "# pyenv\n3.8.1\n", "expected Python ==3.8.*, as .python-version"),
        (".python-version", "pypy3.9", ".python-version: expected a version of Python, found 'py"),
        ("pyproject.toml", '[project]\nrequires-python = ">=4"', "expected Python >=4, as pyproj"),
        ("pyproject.toml", '[project]\nrequires-python = "?"', "pyproject.toml: expected a versi"),
        ("pyproject.toml", "[project", "expected TOML in pyproject.toml"),
    ],
)
def test_code_of_another_python_is_refused(tmp_path: Path, name: str, content: str, named: str):
    (tmp_path / name).write_text(content)
    assert named in refusal(tmp_path)


def test_code_of_this_python_is_not(tmp_path: Path):
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / ".python-version").write_text(f"{here}.1\n")
    (tmp_path / "pyproject.toml").write_text(f'[project]\nrequires-python = ">={here}"\n')
    assert check_metadata(tmp_path) is None


def unzipped(folder: Path, artifact: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    unpack(artifact, folder)
    return folder


def test_what_a_wheel_requires_and_is_not_there_is_named(tmp_path: Path):
    requires = [
        "headwater>=0",
        "msgspec>=0.1",
        "stripe>=5",
        "click<1",
        "colorama; sys_platform == 'none'",
        "flask; extra == 'web'",
    ]
    wheel = unzipped(tmp_path / "wheel", wheel_bytes("shop", "1.0", {"shop.py": ""}, requires))
    message = refusal(wheel)
    assert "stripe>=5 (required by shop-1.0.dist-info)" in message
    assert "click<1, not " in message
    assert "flask" not in message
    assert "colorama" not in message
    pins = "".join(
        f"{name} --hash=sha256:{'0' * 64}\n"
        for name in ("Stripe==6.0", "click==0.9", "msgspec==0.22")
    )
    (wheel / "requirements.txt").write_text(pins)
    requirements = check_metadata(wheel)
    assert requirements is not None
    assert requirements.versions["stripe"] == "6.0"
    # With requirements, the packages of the worker are not there.
    (wheel / "requirements.txt").write_text(pins.replace("msgspec==0.22", "attrs==1"))
    assert "msgspec>=0.1 (required by" in refusal(wheel)


def test_a_wheel_of_another_python_is_refused(tmp_path: Path):
    wheel = unzipped(
        tmp_path / "wheel", wheel_bytes("shop", "1.0", {"shop.py": ""}, requires_python="<3")
    )
    assert "expected Python <3, as shop-1.0.dist-info states" in refusal(wheel)


def test_an_installation_that_failed_is_repeated_only_when_that_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = f"late==1.0 --hash=sha256:{'0' * 64}\n"
    artifacts = Artifacts(zipped(code("one"), lines))
    artifacts.fold.apply(artifacts.deployment)
    installed: list[str] = []

    async def install(_: Environments, requirements: Requirements) -> None:
        installed.append(requirements.digest)
        raise EnvironmentFailed("late==1.0 is not there")

    monkeypatch.setattr(Environments, "install", install)
    folders = CodeFolders(artifacts, tmp_path, EnvironmentPolicy())  # type: ignore[arg-type]

    def prepare() -> int:
        with pytest.raises(EnvironmentFailed, match="is not there"):
            asyncio.run(folders.prepare(artifacts.deployment))
        return len(installed)

    assert [prepare(), prepare()] == [1, 1]
    artifacts.fold.apply(EnvironmentReported(id="dep_1", state=REQUESTED, at_ms=1))
    assert [prepare(), prepare()] == [2, 2]
