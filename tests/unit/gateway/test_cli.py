"""The command line: help everywhere, one line a failure, plain text in a pipe."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import httpx2
import pytest
from click.testing import CliRunner

from headwater.gateway.cli.api import CliEnvironment
from headwater.gateway.cli.main import cli
from headwater.gateway.cli.on_demand import OnDemand
from headwater.gateway.cli.output import print_rows
from headwater.gateway.cli.up import process_specs
from headwater.gateway.cli.work import steps_dsn_of
from headwater.gateway.settings.environment import load_settings
from tests.commands import called, variables_of

README = Path(__file__).parents[3] / "README.md"
GATEWAY = Path(__file__).parents[3] / "gateway"


def loaded(command: click.Command) -> click.Command:
    return command.load() if isinstance(command, OnDemand) else command


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, listed in group.commands.items():
        command = loaded(listed)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def found(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = loaded(command.commands[name])
    return command


def headwater(*arguments: str | bytes, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, as a shell runs it."""
    return subprocess.run(
        [sys.executable, "-m", "headwater", *arguments],
        env=variables_of(**variables),
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


@pytest.mark.parametrize(
    "group",
    [cli, *filter(lambda item: isinstance(item, click.Group), map(loaded, cli.commands.values()))],
    ids=lambda group: group.name,
)
def test_commands_are_listed_by_whole_sentences(group: click.Group) -> None:
    text = group.get_help(click.Context(group, info_name=group.name, terminal_width=80))
    listed = text.partition("\nCommands:\n")[2].partition("\n\n")[0]
    assert listed
    assert "..." not in listed
    assert max(map(len, listed.splitlines())) <= 80


@pytest.mark.parametrize(
    "listed",
    [command for command in cli.commands.values() if isinstance(command, OnDemand)],
    ids=lambda listed: listed.name,
)
def test_a_command_is_listed_as_it_describes_itself(listed: OnDemand) -> None:
    command = listed.load()
    assert (listed.name, listed.hidden) == (command.name, command.hidden)
    for width in range(10, 200):  # of the terminal
        assert listed.get_short_help_str(width) == command.get_short_help_str(width)


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        (
            "headwater.gateway.cli.main",
            {"asyncio", "httpx2", "pydantic", "rich", "headwater.gateway.cli.instances"},
        ),
        ("headwater.gateway.cli.instances", {"asyncio", "httpx2", "pydantic", "rich"}),
        ("headwater.gateway.cli.work", {"httpx2", "litestar", "rich"}),
        (
            "headwater.streams.code_host.child",
            {"aiokafka", "headwater.schemas.codec", "gateway", "psycopg", "pydantic"},
        ),
    ],
)
def test_what_loads_slowly_is_loaded_by_those_alone_who_need_it(
    module: str, slow: set[str]
) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not slow & set(run.stdout.split())


def test_help_works_from_outside() -> None:
    run = headwater("dlq", "replay", "--help")
    assert run.returncode == 0
    assert run.stdout.startswith("Usage: headwater dlq replay")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["nonsense"], 2, "headwater: No such command 'nonsense'. (see `headwater --help`)"),
        (["instance", "list"], 2, "headwater: No such command 'instance'; did you mean instances?"),
        (["dlq", "lst"], 2, "headwater dlq: No such command 'lst'; did you mean list?"),
        (["export", "users"], 2, "headwater export: Missing option '--format'. Choose from: parq"),
        (["migrate", "--postgres", "localhost"], 2, "headwater: HEADWATER_POSTGRES: expected post"),
        (
            ["topics", "check", "--kafka", "127.0.0.1:1"],
            1,
            "headwater: expected Kafka at 127.0.0.1",
        ),
        (
            ["instances", "list", "--url", "localhost:8080"],
            2,
            "headwater instances list: expected a whole base URL, as in "
            "https://host/api/workflows, found localhost:8080 (see",
        ),
        (["up", "--demo", "--no-demo"], 2, "headwater up: expected --demo or --no-demo"),
        (["dlq", "show", "here"], 2, "headwater dlq show: expected PARTITION/OFFSET"),
        (["dlq", "replay"], 2, "headwater dlq replay: expected either PARTITION/OFFSET or --all"),
        (["dlq", "list", "--url", "http://127.0.0.1:1"], 1, "headwater: expected Headwater at"),
        (["serve", "--port", "70000"], 2, "headwater: HEADWATER_PORT: expected 65535 or less"),
        (["serve", "--host", "0.0.0.0"], 2, "headwater: HEADWATER_HOST: expected a loopback"),
        (["webhook", "sign", "/nowhere"], 2, "headwater webhook sign: Invalid value for 'FILE'"),
        (
            ["migrate", "--postgres", "host=127.0.0.1 port=1"],
            1,
            "headwater: expected Postgres",
        ),
        (
            ["topics", "accept-loss", "--postgres", "host=127.0.0.1 port=1"],
            1,
            "headwater: expected Postgres",
        ),
        (["worker", "--app", "no_such_app"], 2, "headwater: expected a module no_such_app in"),
        (["worker", "--app", "apps/mine.py"], 2, "headwater: expected an app as package.module"),
        (["up", "--app", "no_such_app"], 2, "headwater: expected a module no_such_app in"),
        (["terra-stand-in", "--port", "99999"], 2, "headwater terra-stand-in: Invalid value for '"),
        (["terra-stand-in", "--port", "0"], 2, "headwater terra-stand-in: Invalid value for '--po"),
        (
            ["terra-stand-in", "--port", "47113", "--file", __file__],
            2,
            "headwater terra-stand-in: --file: expected a file of a stand-in, found",
        ),
        (["graph", "show", ""], 2, "headwater graph show: expected a name or an id, found nothing"),
        (["instances", "get", "-w", "order", "-i", ""], 2, "headwater instances get: expected "),
        (
            ["user", "show", b"\xff"],
            2,
            "headwater: expected arguments in UTF-8, found b'\\xff' (see",
        ),
        (
            ["instances", "create", "-w", "order", "--params", "1e400"],
            2,
            "headwater instances create: Invalid value for '--params': expected JSON, found '1e4",
        ),
        (
            ["instances", "create", "-w", "order", "--params", r'["\udc00"]'],
            2,
            "headwater instances create: Invalid value for '--params': expected JSON, found '[",
        ),
        (["user", "show", ""], 2, "headwater user show: expected a name or an id, found nothing"),
    ],
)
def test_every_failure_is_one_line_on_stderr(
    arguments: list[str | bytes], code: int, line: str
) -> None:
    # A worker sets up its process before it reads its app.
    run = headwater(*arguments) if arguments[0] == "worker" else called(*arguments)
    assert (run.returncode, run.stdout) == (code, "")
    assert run.stderr.startswith(line)
    assert run.stderr.count("\n") == 1, run.stderr
    assert "Traceback" not in run.stderr


def test_what_is_no_text_is_no_header(tmp_path: Path) -> None:
    captured, body = tmp_path / "captured", tmp_path / "body"
    captured.write_bytes(bytes(range(128, 256)) + b"\nterra-signature: t=1,v1=\xff\n")
    body.write_bytes(bytes(range(256)))
    run = called("webhook", "verify", "--headers", str(captured), str(body))
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("Refused")


def test_who_has_no_postgres_hears_where_one_is() -> None:
    said = called("migrate", HEADWATER_POSTGRES_PORT="1").stderr
    assert "`headwater up` runs one on this machine" in said
    assert "--postgres and HEADWATER_POSTGRES name another" in said


def failed(network: httpx2.MockTransport, *arguments: str) -> str:
    environment = CliEnvironment(network=network)
    result = CliRunner().invoke(cli, arguments, obj=environment)
    assert result.exit_code == 1
    return result.stderr


def refusing(status: int, code: str, detail: str) -> httpx2.MockTransport:
    problem = {"status": status, "code": code, "detail": detail}
    return httpx2.MockTransport(lambda _: httpx2.Response(status, json=problem))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("dlq", "list"), "; set HEADWATER_ADMIN_KEY, or use --admin-key"),
        (("deployments", "list"), "; set HEADWATER_ADMIN_KEY, or use --admin-key"),
        (
            ("runs", "list"),
            "; set HEADWATER_WORKFLOW_KEY, or give a key or a header of your own",
        ),
    ],
)
def test_an_operator_who_is_refused_hears_which_variable_has_the_key(
    arguments: tuple[str, ...], hint: str
) -> None:
    said = failed(refusing(401, "unauthorized", "expected a key"), *arguments)
    assert said == f"Error: unauthorized: expected a key{hint}\n"


def test_who_names_a_deployment_that_is_none_hears_where_they_are_listed() -> None:
    network = refusing(404, "deployment_not_found", "found none")
    assert failed(network, "deployments", "activate", "dep_1") == (
        "Error: deployment_not_found: found none; `headwater deployments list` shows those that "
        "exist\n"
    )


def test_what_is_not_found_outside_of_the_service_is_no_wrong_url() -> None:
    network = refusing(404, "not_found", "there is no dead letter 0/9")
    assert failed(network, "dlq", "show", "0/9") == (
        "Error: not_found: there is no dead letter 0/9\n"
    )


def test_each_problem_of_a_file_of_sources_has_a_line(tmp_path: Path) -> None:
    file = tmp_path / "sources.toml"
    file.write_text(
        '[[source]]\nname = "a"\nscheme = "strip"\nsecrets = ["x"]\n'
        '[[source]]\nname = "b"\nscheme = "plain"\ntipe = "x"\n'
    )
    run = called("sources", HEADWATER_SOURCES=str(file))
    first, second, third = run.stderr.splitlines()
    assert first == f"headwater: HEADWATER_SOURCES, {file}:"
    assert second.startswith("source a: scheme: expected one of")
    assert third.startswith("source b: unknown field `tipe`: expected one of")


def test_without_a_command_it_explains_itself() -> None:
    run = called()
    assert run.returncode == 2
    assert run.stderr.startswith("Usage: headwater [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    "command",
    [
        ("settings",),
        ("sources",),
        ("deliveries", "list"),
        ("workflows", "list"),
        ("export", "daily_summary", "--format", "csv"),
    ],
    ids=" ".join,
)
def test_a_typing_error_in_a_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HEADWATER_PROT", "9000")
    monkeypatch.setenv("HEADWATER_PORT", "1")  # Where nobody listens.
    monkeypatch.setenv("HEADWATER_POSTGRES", "postgresql://127.0.0.1:1/nothing")
    run = CliRunner().invoke(cli, command)
    assert "did you mean HEADWATER_PORT?" in run.stderr


def test_settings_are_read_where_typing_errors_are_named() -> None:
    callers = {
        str(path.relative_to(GATEWAY))
        for path in GATEWAY.rglob("*.py")
        if re.search(r"(?<!def )load_settings\(", path.read_text("utf-8"))
    }
    children = {
        "builtin/rebuilding/__main__.py",
        "builtin/rebuilding/reading.py",
        "builtin/__main__.py",
    }
    # Children are started by a process that has named them.
    assert callers == {"cli/options.py", *children}


def test_progress_that_nobody_reads_stops_nothing() -> None:
    code = "from headwater.gateway.cli.output import say; say('a'); say('b'); print('done')"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        run = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writing, check=False
        )
    finally:
        os.close(writing)
    assert (run.returncode, run.stdout) == (0, b"done\n")


def test_a_closed_output_ends_a_command_as_shells_expect() -> None:
    script = f"{sys.executable} -m headwater topics list | true; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (141, "")


def test_settings_come_as_json_for_programs_without_secrets() -> None:
    run = called("settings", "--json", HEADWATER_ADMIN_KEY="hidden-key")
    rows = {row["variable"]: row for row in json.loads(run.stdout)}
    assert rows["HEADWATER_ADMIN_KEY"]["value"] == "(secret)"
    assert rows["HEADWATER_PORT"]["value"] == "8080"
    assert "hidden-key" not in run.stdout


def test_a_worker_takes_its_app_from_the_environment() -> None:
    run = headwater("worker", HEADWATER_APP="no_such_app")
    assert run.returncode == 2
    assert run.stderr.startswith("headwater: expected a module no_such_app in")


def test_an_app_that_raises_is_shown_with_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def load():\n    return {}['key']\n\nload()\n")
    run = headwater("worker", "--app", "broken", PYTHONPATH=str(tmp_path))
    assert run.returncode == 2
    first, *trace = run.stderr.splitlines()
    assert first == "headwater: expected to import broken, found that it raises KeyError: 'key'"
    assert any(line.strip() == "return {}['key']" for line in trace)
    assert "gateway/" not in run.stderr


def test_a_worker_ends_in_order_at_sigterm_even_while_it_waits_for_kafka(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from headwater import workflow\n\n"
        "@workflow('mine')\nasync def mine(event, step):\n    pass\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "headwater", *("worker", "--app", "mine", "--kafka", "127.0.0.1:1")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stderr is not None
        # A busy machine may add a warning about a blocked event loop.
        said = ""
        while "waiting for Kafka" not in said:
            line = worker.stderr.readline()
            assert line, said
            said += line
        worker.send_signal(signal.SIGTERM)
        try:
            _, rest = worker.communicate(timeout=20)
        finally:
            worker.kill()
    assert "no Postgres (HEADWATER_POSTGRES): steps that use tx.execute wait" in said
    assert worker.returncode == 0, rest
    assert "Traceback" not in rest


def test_of_the_parts_of_up_only_the_workflow_worker_knows_the_app() -> None:
    dsn = "postgresql://me@db/rows"
    parts = process_specs(load_settings(app="mine.workflows", postgres=dsn), reload=True)
    assert {part.name: " ".join(part.argv[2:]) for part in parts} == {
        "gateway": "headwater serve",
        "pipeline": "headwater worker",
        "projector": "headwater project",
        "workflows": "headwater worker --app mine.workflows --reload",
    }
    assert {part.env["HEADWATER_APP"] for part in parts} == {""}
    assert {part.env["HEADWATER_POSTGRES"] for part in parts} == {dsn}
    members = [part.env["HEADWATER_MEMBER"] for part in parts]
    assert len(set(members)) == len(members)
    assert process_specs(load_settings())[-1].argv[3:] == ("worker", "--app", "headwater")


@pytest.mark.parametrize(
    ("flags", "dsn"),
    [
        ({"postgres": "postgresql://db/x"}, "postgresql://db/x"),
        ({"kafka": "k:9092", "postgres": "postgresql://db/x"}, "postgresql://db/x"),
        (
            {"data_dir": "/a b"},
            "postgresql://headwater@127.0.0.1:15432/headwater?passfile=/a%20b/postgres/pgpass",
        ),
        ({"kafka": "k:9092"}, None),
        ({"postgres_port": 0}, None),
    ],
)
def test_steps_have_the_postgres_that_belongs_to_kafka(
    flags: dict[str, object], dsn: str | None
) -> None:
    assert steps_dsn_of(load_settings(**flags)) == dsn


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
