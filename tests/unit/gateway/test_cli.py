"""The command line: help everywhere, one line a failure, plain text in a pipe."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gateway.cli import cli
from gateway.demo_day import terra_signature
from gateway.output import print_rows

README = Path(__file__).parents[3] / "README.md"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def found(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


def headwater(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER")}
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        env={**ours, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    "path", list(commands(cli)), ids=lambda path: " ".join(path) or "headwater"
)
def test_every_command_explains_itself_its_flags_and_shows_examples(path: tuple[str, ...]) -> None:
    command = found(path)
    context = click.Context(command, info_name=" ".join(("headwater", *path)))
    text = command.get_help(context)
    assert command.help
    assert "Examples:\n    headwater" in text
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_help_works_from_outside() -> None:
    run = headwater("dlq", "replay", "--help")
    assert run.returncode == 0
    assert run.stdout.startswith("Usage: headwater dlq replay")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["nonsense"], 2, "headwater: No such command 'nonsense'. (see `headwater --help`)"),
        (["up", "--demo", "--no-demo"], 2, "headwater up: expected --demo or --no-demo"),
        (["dlq", "show", "here"], 2, "headwater dlq show: expected PARTITION/OFFSET"),
        (["dlq", "replay"], 2, "headwater dlq replay: expected either PARTITION/OFFSET or --all"),
        (["dlq", "list", "--url", "http://127.0.0.1:1"], 1, "headwater: expected Headwater at"),
        (["serve", "--port", "70000"], 2, "headwater: HEADWATER_PORT: expected 65535 or less"),
        (["serve", "--host", "0.0.0.0"], 2, "headwater: HEADWATER_HOST: expected a loopback"),
        (["sign", "/nowhere"], 2, "headwater sign: Invalid value for 'FILE'"),
        (
            ["migrate", "--postgres", "host=127.0.0.1 port=1"],
            1,
            "headwater: expected Postgres",
        ),
    ],
)
def test_every_failure_is_one_line_on_stderr(arguments: list[str], code: int, line: str) -> None:
    run = headwater(*arguments)
    assert (run.returncode, run.stdout) == (code, "")
    assert run.stderr.startswith(line)
    assert run.stderr.count("\n") == 1, run.stderr
    assert "Traceback" not in run.stderr


def test_settings_come_as_json_for_programs_without_secrets() -> None:
    run = headwater("settings", "--json", HEADWATER_ADMIN_KEY="hidden-key")
    rows = {row["variable"]: row for row in json.loads(run.stdout)}
    assert rows["HEADWATER_ADMIN_KEY"]["value"] == "(secret)"
    assert rows["HEADWATER_PORT"]["value"] == "8080"
    assert "hidden-key" not in run.stdout


def test_sign_makes_the_header_that_the_gateway_checks(tmp_path: Path) -> None:
    body = tmp_path / "delivery.json"
    body.write_bytes(b'{"type":"daily"}\n')
    signature = headwater("sign", str(body)).stdout.strip()
    at_s = int(signature.partition(",")[0].removeprefix("t="))
    assert signature == terra_signature("dev-terra-secret", body.read_bytes(), at_s)


def test_rows_in_a_pipe_are_tab_separated_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"a": "x\ty\nz", "b": None}, {"a": 1.5, "b": True}], ("a", "b"))
    assert capsys.readouterr().out == "a\tb\nx y z\t\n1.5\tyes\n"


def test_the_commands_of_the_readme_exist() -> None:
    words = [
        line.split()[1:]
        for line in README.read_text("utf-8").replace("$(headwater", "\nheadwater").splitlines()
        if line.startswith("headwater ")
    ]
    assert words
    for line in words:
        path = []
        command: click.Command = cli
        for word in line:
            if not isinstance(command, click.Group):
                break
            path.append(word)
            command = found(tuple(path))
