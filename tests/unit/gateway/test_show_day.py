"""What `headwater up` suggests to try runs as it is printed, from any folder and at any port."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.gateway.cli.demo import DayShow
from headwater.gateway.local.demo_day import Posted
from headwater.gateway.settings.environment import load_settings

PROGRAMS = {"headwater", "psql"}


def print_hints(waited: Posted | None = None, **settings: object) -> None:
    show = DayShow(load_settings(postgres="postgresql://nobody@127.0.0.1:1/x", **settings), int)
    show._waited = waited
    show.print_hints()


def commands(capsys: pytest.CaptureFixture[str], **settings: object) -> list[list[str]]:
    print_hints(**settings)
    lines = capsys.readouterr()
    words = [shlex.split(line, comments=True) for line in (lines.err + lines.out).splitlines()]
    return [result for result in words if result and Path(result[0]).name in PROGRAMS]


def test_the_program_is_found_wherever_the_shell_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    result = commands(capsys)
    assert [words[1] for words in result[1:]] == ["trace", "instances", "sync", "dlq"]
    for words in result:
        done = subprocess.run(
            [*words[:2], "--help"], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_the_program_has_its_short_name_where_the_shell_knows_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert {words[0] for words in commands(capsys)[1:]} == {"headwater"}


def test_psql_is_that_which_comes_with_headwater_where_the_shell_knows_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    psql, address = commands(capsys)[0]
    assert address == "postgresql://nobody@127.0.0.1:1/x"
    requested = subprocess.run([psql, "--version"], capture_output=True, text=True, check=True)
    assert requested.stdout.startswith("psql (PostgreSQL) 18")
    (tmp_path / "psql").write_text("#!/bin/sh\n")
    (tmp_path / "psql").chmod(0o755)
    assert commands(capsys)[0][0] == "psql"


@pytest.mark.parametrize(
    ("duplicate", "shown"), [(False, "trace request-1"), (True, "deliveries show delivery-1")]
)
def test_the_journey_of_who_waited_is_shown_also_when_the_day_is_posted_again(
    capsys: pytest.CaptureFixture[str], duplicate: bool, shown: str
):
    named = {"name": "early", "type": "daily", "event_id": "delivery-1", "request_id": "request-1"}
    print_hints(Posted(**named, duplicate=duplicate))
    assert shown in capsys.readouterr().err


def test_it_is_said_where_the_logs_are(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    print_hints(data_dir=tmp_path)
    assert f"logs of the processes are in {tmp_path / 'logs'}" in capsys.readouterr().err


def test_a_gateway_at_another_port_is_asked_there(capsys: pytest.CaptureFixture[str]):
    assert all("--url" not in words for words in commands(capsys, port=8080))
    for words in commands(capsys, port=18080)[1:]:
        assert words[-2:] == ["--url", "http://127.0.0.1:18080"]
