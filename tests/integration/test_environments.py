"""Environments of deployments: installed once, with hashes, read-only, and used by real hosts.

The wheels are made here; nothing is fetched.
"""

import asyncio
import os
import stat
from pathlib import Path

import msgspec
import pytest

from headwater.streams.code_host.apps import AppNotLoaded, Declarations
from headwater.streams.code_host.requirements import Requirements, parse_requirements
from headwater.streams.workflows.environments import (
    Environment,
    EnvironmentFailed,
    EnvironmentPolicy,
    Environments,
)
from headwater.streams.workflows.host_process import HostCode, declarations_of
from headwater.streams.workflows.replay_process import ReplayLimits, replay_runs
from tests.wheels import build_wheel

GREETING = {"greeting.py": "TEXT = 'hello'\n"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="module")
def greeting(wheels: Path) -> Requirements:
    return parse_requirements(build_wheel(wheels, "greeting", "1.0", GREETING))


def installing(folder: Path, wheels: Path, **limits: float) -> Environments:
    policy = EnvironmentPolicy(wheels=wheels)._replace(**limits)
    return Environments(folder, policy)


def install(environments: Environments, requirements: Requirements) -> Environment:
    return asyncio.run(environments.install(requirements))


def test_processes_that_install_at_once_share_one_environment(
    tmp_path: Path, wheels: Path, greeting: Requirements, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")

    async def both() -> list[Environment]:
        # Locks of files hold between these as they do between processes.
        several = [installing(tmp_path, wheels) for _ in range(3)]
        return await asyncio.gather(*(one.install(greeting) for one in several))

    first, *others = asyncio.run(both())
    assert others == [first, first]
    assert caplog.text.count("installing 1 packages") == 1
    assert install(installing(tmp_path, wheels), greeting) == first
    assert caplog.text.count("installing 1 packages") == 1
    environment = first.python.parent.parent
    assert first.size > 100
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in environment.rglob("*")}
    assert not [path for path, mode in modes.items() if mode & 0o222 and not path.is_symlink()]
    assert not (environment / "tmp").exists()
    assert len(list(environment.rglob("greeting.*.pyc"))) == 1


def test_an_installation_that_was_killed_is_done_again(
    tmp_path: Path, wheels: Path, greeting: Requirements
):
    one = installing(tmp_path, wheels)
    torn = one._path(greeting.digest)
    torn.mkdir()
    (torn / "torn").touch()
    assert install(one, greeting).python.exists()
    assert not (torn / "torn").exists()


def test_a_failed_installation_names_the_reason_and_leaves_nothing(tmp_path: Path, wheels: Path):
    late = tmp_path / "late"
    requirements = parse_requirements(build_wheel(late, "late", "1.0", {"late.py": ""}))
    one = installing(tmp_path / "environments", wheels)
    with pytest.raises(EnvironmentFailed) as caught:
        install(one, requirements)
    assert "found exit code 1" in caught.value.message
    assert "late==1.0" in caught.value.message
    assert not one._path(requirements.digest).exists()
    next(late.iterdir()).rename(wheels / "late-1.0-py3-none-any.whl")
    assert install(one, requirements).python.exists()


def test_another_file_than_the_hash_states_is_refused(tmp_path: Path):
    line = build_wheel(tmp_path / "wheels", "greeting", "1.0", GREETING)
    build_wheel(tmp_path / "wheels", "greeting", "1.0", {"greeting.py": "TEXT = 'other'\n"})
    with pytest.raises(EnvironmentFailed, match=r"(?i)hash"):
        install(installing(tmp_path / "e", tmp_path / "wheels"), parse_requirements(line))


def test_a_dependency_that_is_not_listed_is_named(tmp_path: Path):
    wheels = tmp_path / "wheels"
    line = build_wheel(wheels, "whole", "1.0", {"whole.py": ""}, requires=["missing-part>=2"])
    build_wheel(wheels, "missing_part", "2.0", {"part.py": ""})
    with pytest.raises(EnvironmentFailed, match=r"missing[-_]part"):
        install(installing(tmp_path / "e", wheels), parse_requirements(line))


def test_limits_are_named(tmp_path: Path, wheels: Path, greeting: Requirements):
    for limits, message in (
        ({"packages_max": 0}, "expected at most 0 packages"),
        ({"bytes_max": 100}, "HEADWATER_ENVIRONMENT_MIB"),
        ({"install_s": -1}, "HEADWATER_ENVIRONMENT_INSTALL_S"),
    ):
        one = installing(tmp_path / message[:8], wheels, **limits)
        with pytest.raises(EnvironmentFailed, match=message):
            install(one, greeting)
        assert [path for path in one._folder.glob("*") if path.is_dir()] == []


def test_what_no_deployment_has_is_removed_when_it_was_not_used_for_an_hour(
    tmp_path: Path, wheels: Path, greeting: Requirements
):
    one = installing(tmp_path, wheels)
    path = install(one, greeting).python.parent.parent
    asyncio.run(one.remove_unused(()))
    assert path.exists()
    os.utime(path / "environment.json", (0, 0))
    asyncio.run(one.remove_unused([greeting.digest]))
    assert path.exists()
    asyncio.run(one.remove_unused(()))
    assert not path.exists()


# -- hosts

APP = """
import os, sys
import greeting, msgspec
from headwater import workflow

@workflow(f"{greeting.TEXT}-{msgspec.MARK}")
async def order(event, step): ...

@workflow(os.path.basename(sys.prefix).partition("-")[0])
async def prefix(event, step): ...
"""


def msgspec_wheel(folder: Path, version: str, mark: str) -> str:
    """A wheel of the installed msgspec, under another version and with a mark."""
    package = Path(msgspec.__file__).parent
    files = {
        f"msgspec/{path.relative_to(package)}": path.read_bytes()
        for path in package.rglob("*")
        if path.suffix in {".py", ".so"}
    }
    files["msgspec/__init__.py"] += f"\nMARK = {mark!r}\n".encode()
    return build_wheel(folder, "msgspec", version, files)


def declared(code: Path, environment: Environment) -> Declarations:
    code.mkdir(exist_ok=True)
    (code / "shop.py").write_text(APP)
    return asyncio.run(declarations_of("shop", code=HostCode(code, python=environment.python)))


def test_two_deployments_have_two_versions_of_a_package_that_the_host_uses_too(
    tmp_path: Path, wheels: Path
):
    line = build_wheel(wheels, "greeting", "1.0", GREETING)
    one = installing(tmp_path / "environments", wheels)
    for version, mark in (("0.21.98", "old"), ("0.21.99", "new")):
        requirements = parse_requirements(line + msgspec_wheel(wheels, version, mark))
        environment = install(one, requirements)
        result = declared(tmp_path / mark, environment)
        assert f"hello-{mark}" in result.workflows
        assert requirements.digest[:32] in result.workflows


def test_packages_of_headwater_that_are_not_listed_are_not_there(
    tmp_path: Path, wheels: Path, greeting: Requirements
):
    environment = install(installing(tmp_path, wheels), greeting)
    code = tmp_path / "code"
    code.mkdir()
    (code / "shop.py").write_text("import greeting\nimport litestar\n")
    with pytest.raises(AppNotLoaded, match="No module named 'litestar'"):
        asyncio.run(declarations_of("shop", code=HostCode(code, python=environment.python)))


def test_runs_are_replayed_in_the_environment_of_their_code(
    tmp_path: Path, wheels: Path, greeting: Requirements
):
    environment = install(installing(tmp_path, wheels), greeting)
    code = tmp_path / "code"
    code.mkdir()
    (code / "shop.py").write_text(APP.replace("{msgspec.MARK}", "replayed"))
    # Packages of this process, which hosts of other apps import from there.
    variables = dict(os.environ) | {"PYTHONPATH": str(Path(msgspec.__file__).parents[1])}
    replays = asyncio.run(
        replay_runs(
            "shop",
            [],
            limits=ReplayLimits(),
            environment=variables,
            code=HostCode(code, python=environment.python),
        )
    )
    assert (replays.declared.error, "hello-replayed" in replays.declared.workflows) == ("", True)
