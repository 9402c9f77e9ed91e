"""What other users of the machine may not read."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.gateway.api.tokens.development import make_issuer
from headwater.gateway.cli.starting import stores_of
from headwater.gateway.local.processes import ChildProcess, ProcessSpec
from headwater.gateway.local.supervisor import Supervisor
from headwater.gateway.settings.environment import load_settings
from headwater.gateway.settings.privacy import exposing_ancestors, make_data_dir


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _careless() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_data_folder_is_its_users_alone(tmp_path: Path):
    data = tmp_path / "above" / ".headwater"
    with Supervisor(data_dir=data, report=print):
        part = ProcessSpec(name="part", argv=("true",), env={}, ready=lambda: True)
        child = ChildProcess(part, data / "logs" / "part.log")
        child.start()
        child.stop()
    stores_of(load_settings(data_dir=data), int)
    make_issuer(data)
    # Root's may be passed through, for the account that runs Postgres.
    assert mode(data) == (0o711 if os.geteuid() == 0 else 0o700)
    assert {mode(data / name) for name in ("logs", "state")} == {0o700}
    assert mode(data / "logs" / "part.log") == 0o600
    assert mode(data / "development-issuer.pem") == 0o600


def test_a_folder_that_an_operator_has_made_keeps_its_mode(tmp_path: Path):
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o750)
    make_data_dir(folder)
    assert mode(folder) == 0o750


def test_ancestors_that_expose_secrets_are_named(tmp_path: Path):
    def process(number: int, parent: int, name: str, environment: bytes) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "stat").write_text(f"{number} ({name}) S {parent} 1 1 0")
        (folder / "environ").write_bytes(environment)

    process(1, 0, "docker-init", b"PATH=/bin\0HEADWATER_ADMIN_KEY=a\0HEADWATER_READ_KEY=\0")
    process(7, 1, "a (b) c", b"HEADWATER_ADMIN_KEY_FILE=/run/key\0")
    secrets = {"HEADWATER_ADMIN_KEY", "HEADWATER_READ_KEY"}
    (line,) = exposing_ancestors(secrets, 7, tmp_path)
    assert line.startswith("the environment of process 1 (docker-init) has HEADWATER_ADMIN_KEY, ")
    assert list(exposing_ancestors(secrets, 8, tmp_path)) == []
