"""`headwater workflows` and `headwater instances`: what they read and print, and failures."""

import io
import json
from collections.abc import Iterator
from typing import Any

import click
import httpx2
import pytest
from click.testing import Result

from headwater.gateway.cli import output
from headwater.gateway.cli.api import CliEnvironment, explained
from headwater.gateway.cli.main import cli
from headwater.gateway.cli.on_demand import OnDemand
from headwater.gateway.cli.workflow_service import header_of
from headwater.gateway.client.texts import from_unix_ms
from tests.unit.gateway.command_line import ON, failure, headwater, sent
from tests.unit.gateway.workflow_network import (
    BASE_URL,
    Network,
    Turn,
    answer,
    current,
    described,
    event,
    line,
    listed_as,
    message,
    problem,
    queries,
    stands,
    step,
    stream,
)


def history(*lines: dict[str, Any], **more: object) -> dict[str, Any]:
    return {
        "runNumber": 0, "steps": [], "stepsHasNextPage": False, "events": [],
        "eventsHasNextPage": False, "tokens": [], "tokensHasNextPage": False,
        "logs": list(lines), "logsHasNextPage": False, **more,
    }  # fmt: skip


# -- what is printed in a pipe


def test_workflows_are_listed():
    result = headwater(Network(answer({"workflows": [{"name": "order"}]})), "workflows", "list")
    assert result.stdout == "workflow\norder\n"
    nothing = headwater(Network(answer({"workflows": []})), "workflows", "list")
    assert "`headwater worker --app …`" in nothing.stderr


def test_instances_are_listed_up_to_a_limit_over_pages():
    def page(*ids: str, cursor: str) -> httpx2.Response:
        listed = [
            listed_as(item, "waiting", currentStep=current("ok?", "sleep", status="waiting"))
            for item in ids
        ]
        return answer({"instances": listed, "hasNextPage": True, "cursor": cursor})

    network = Network(page("c", "b", cursor="n1"), page("a", cursor="n2"))
    result = headwater(
        network, *("instances", "list", "-w", "order", "--status", "waiting"),
        *("--limit", "3", "--page-size", "2", "--cursor", "n0"),
    )  # fmt: skip
    assert result.stdout.splitlines() == [
        "instance\tstatus\tage\tupdated\tdeployment\twhat",
        *[f"order/{item}\twaiting\t0 ms\tnow\t\tok?: sleeping" for item in "cba"],
    ]
    assert result.stderr == "There are more: --cursor n2\n"
    assert queries(network.asked) == [
        {"status": "waiting", "pageSize": "2", "cursor": "n0"},
        {"status": "waiting", "pageSize": "1", "cursor": "n1"},
    ]
    nothing = headwater(
        Network(answer({"instances": [], "hasNextPage": False})),
        *("instances", "list", "-w", "order", "--status", "errored"),
    )
    assert nothing.stderr == "There are no instances of order that are errored.\n"


def test_instances_of_all_workflows_are_listed_without_one():
    page = {"instances": [listed_as("a", workflowName="ship")], "hasNextPage": False}
    network = Network(answer(page))
    result = headwater(network, "instances", "list", "--status", "active")
    assert result.stdout.splitlines()[1].startswith("ship/a\tactive\t")
    assert network.asked[0].url.path == "/api/workflows/instances"


def test_json_is_what_the_service_has_answered():
    page = {"instances": [listed_as("a", "waiting")], "hasNextPage": False}
    listed = headwater(Network(answer(page)), "instances", "list", "-w", "order", "--json")
    assert json.loads(listed.stdout) == page["instances"]
    whole = described("waiting", {"sku": "x" * 100})
    one = headwater(Network(answer(whole)), "instances", "get", *ON, "--json")
    result = json.loads(one.stdout)
    assert result["meta"]["params"] == {"sku": "x" * 100}
    assert (result["id"], result["meta"]["workflowName"]) == ("order-1", "order")
    reported = headwater(Network(answer(history(line(1)))), "instances", "history", *ON, "--json")
    assert json.loads(reported.stdout)["runNumber"] == 0
    names = headwater(
        Network(answer({"workflows": [{"name": "b"}]})), "workflows", "list", "--json"
    )
    assert json.loads(names.stdout) == [{"name": "b"}]


NO_MORE: dict[str, Any] = {"hasNextPage": False, "hasMore": False, "cursor": None}
#: Commands that list things, with the name of the rows in the service's answer.
LISTINGS = [
    (("instances", "list"), "instances"),
    (("jobs", "list"), "jobs"),
    (("runs", "list"), "data"),
    (("deployments", "list"), "deployments"),
    (("deliveries", "list"), "rows"),
    (("dlq", "list"), "rows"),
    (("audit", "list"), "entries"),
    (("workflows", "list"), "workflows"),
    (("graph", "list"), "graphs"),
    (("instances", "logs", *ON), "logs"),
]


@pytest.mark.parametrize(("command", "rows"), LISTINGS)
def test_a_listing_for_programs_says_only_that_there_is_more(command: tuple[str, ...], rows: str):
    page = {**history(), **NO_MORE, rows: []}
    result = headwater(Network(answer(page)), *command, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    result = headwater(Network(answer(page)), *command)
    assert result.stderr.strip() != ""


def test_a_listing_that_is_cut_says_so_to_programs_too():
    page = {"instances": [listed_as("a")], "hasNextPage": True, "cursor": "n2"}
    arguments = ("instances", "list", "--limit", "1")
    for more in ((), ("--json",)):
        result = headwater(Network(answer(page)), *arguments, *more)
        assert result.stderr == "There are more: --cursor n2\n"


def test_log_lines_are_objects_a_line_in_json():
    network = Network(answer(history(line(1), line(2))))
    result = headwater(network, "instances", "logs", *ON, "--json")
    lines = [json.loads(item) for item in result.stdout.splitlines()]
    assert [item["message"] for item in lines] == [line(1)["message"], line(2)["message"]]


#: Commands that run until they are ended, or whose output is a file in a form of its own.
_WITHOUT_JSON = {
    "audit export", "graph show", "instances draw", "mcp",
    "project", "serve", "terra-stand-in", "trace export", "up", "worker",
}  # fmt: skip


def commands_of(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    command = command.load() if isinstance(command, OnDemand) else command
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    for name, beneath in command.commands.items():
        yield from commands_of(beneath, *path, name)


def test_every_command_that_shows_something_has_json_examples_and_one_name_for_the_gateway():
    for name, command in commands_of(cli):
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert command.epilog, name
        assert "Examples:" in command.epilog, name
        assert ("--json" in flags) != (name in _WITHOUT_JSON), name
        assert not {flag for flag in flags if "-url" in flag} - {"--url"}, name


def test_a_pipe_gets_values_whole():
    long = step("a", result="x" * 100)
    network = Network(answer(history(steps=[long])))
    assert f'"{"x" * 100}"' in headwater(network, "instances", "history", *ON).stdout


def test_an_instance_is_summed_up():
    step = current(
        "ok?",
        "wait_for_event",
        status="waiting",
        waitEventType="approval",
        wakeAt="2026-11-22T13:00:00Z",
    )
    whole = described("waiting", {"sku": "x"}, meta={"currentStep": step})
    short = headwater(Network(answer(whole)), "instances", "get", *ON)
    rows = dict(row.split("\t") for row in short.stdout.splitlines())
    assert rows["step"] == "ok? (wait_for_event)"
    assert rows["state"] == "waiting for event approval, until 2026-11-22 13:00:00 UTC (in 23 h)"
    assert rows["updated"] == "2026-11-21 14:00:00 UTC (now)"
    assert "params" not in rows
    assert '\nparams\t{"sku": "x"}\n' in headwater(
        Network(answer(whole)), "instances", "get", *ON, "--full"
    ).stdout  # fmt: skip


def test_a_history_is_printed_with_its_events_and_logs():
    began, ended = "2026-11-21T13:59:58Z", "2026-11-21T13:59:59Z"
    steps = [step("a", result=7, createdAt=began, completedAt=ended)]
    events = [event(None, createdAt=ended)]
    network = Network(answer(history(line(1, createdAt=ended), steps=steps, events=events)))
    result = headwater(
        network, *("instances", "history", *ON, "--run", "0", "--include-logs"),
        *("--log-level", "info", "--log-category", "x"),
    )  # fmt: skip
    assert result.stdout.splitlines() == [
        "# order/order-1, run 0",
        "began\tstate\tstep\ttype\tattempts\ttook\twhat",
        "+0 ms\t✓ completed\ta\tdo\t1 of 6\t1 s\t7",
        "# events",
        "at\ttype\tconsumed by\tpayload",
        "2026-11-21 13:59:59.000 UTC\tgo\tno step yet\tnull",
        "# logs",
        "at\tlevel\tcategory\tstep\tdata\tmessage",
        "2026-11-21 13:59:59.000 UTC\tinfo\tx\t-\t\tline 1",
    ]
    assert queries(network.asked) == [
        {"pageSize": "100", "runNumber": "0", "includeLogs": "true", "logLevel": "info",
         "logCategory": "x"},
    ]  # fmt: skip


def messages(result: Result) -> list[str]:
    return [row.split("\t")[4] for row in result.stdout.splitlines()[1:]]


def test_the_last_lines_are_printed_in_their_order():
    network = Network(answer(history(line(9), line(8), line(7))))
    result = headwater(network, "instances", "logs", *ON, "--limit", "2")
    assert messages(result) == ["line 8", "line 9"]
    assert queries(network.asked)[0]["order"] == "desc"


def test_lines_are_followed_to_the_end_each_printed_once():
    network = Network(
        answer(history(line(1), line(2))),
        stream(
            message("log", 2, line(2)),
            message("step", 3, step("a")),
            message("log", 4, line(4, "error")),
        ),
        stream(message("log", 5, line(5)), message("end", 6, stands("complete"))),
    )  # fmt: skip
    result = headwater(
        network, "instances", "logs", *ON, "--follow", "--log-level", "info", "--log-category", "x"
    )
    assert messages(result) == ["line 1", "line 2", "line 5"]
    assert result.stderr == "order/order-1 has ended: complete\n"


def test_workflow_events_are_shown_among_the_lines_that_are_followed():
    event = {
        **line(3), "name": "task.failed", "sequence": 7, "position": 0, "nodeRef": "vote",
        "tokenId": "2", "payload": {"attempt": 1},
    }  # fmt: skip
    network = Network(
        answer(history(line(1))),
        stream(
            message("task.failed", 2, event),
            message("log", 3, line(3)),
            message("end", 6, stands("complete")),
        ),
    )
    names = ("--names", "task.failed,fan_in.completed")
    result = headwater(network, "instances", "logs", *ON, "--follow", *names)
    shown = result.stdout.splitlines()
    assert any("vote #2" in row and "task.failed" in row and "attempt" in row for row in shown)
    (followed,) = [query for query in queries(network.asked) if "names" in query]
    assert sorted(followed["names"].split(",")) == [
        *("fan_in.completed", "log", "status", "task.failed"),
    ]
    alone = headwater(Network(), "instances", "logs", *ON, *names)
    assert "add --follow" in alone.output
    unknown = headwater(Network(), "instances", "logs", *ON, "--follow", "--names", "task.lost")
    assert "found 'task.lost'" in unknown.output


def test_a_run_is_followed_until_the_next_begins():
    network = Network(
        answer(history(line(1))),
        stream(
            message("status", 2, stands("active")),
            message("log", 3, line(3)),
            message("status", 5, stands("active", runNumber=1)),
            message("log", 6, line(6)),
        ),
        answer(history(line(1), line(3), line(4))),
    )
    result = headwater(network, "instances", "logs", *ON, "--follow", "--run", "0")
    assert messages(result) == ["line 1", "line 3", "line 4"]
    assert result.stderr == "run 0 of order/order-1 has ended: run 1 has begun\n"
    assert [query.get("runNumber") for query in queries(network.asked)] == ["0", None, "0"]


def test_no_lines_are_said_to_be_none():
    result = headwater(Network(answer(history())), "instances", "logs", *ON)
    assert result.stderr == "order/order-1 has logged no such lines.\n"


# -- what is asked


def test_where_the_service_is_and_which_headers_it_gets():
    network = Network(answer({"workflows": []}))
    headwater(
        network, *("workflows", "list", "-H", "X-Tenant: b", "-H", "X-More:c"),
        HEADWATER_URL="https://host/api/workflows/",
        HEADWATER_HEADERS="X-Tenant: a\nX-Other: a: b\n",
        HEADWATER_WORKFLOW_KEY="mine",
    )  # fmt: skip
    assert str(network.asked[0].url) == "https://host/api/workflows/workflows"
    assert [sent(network, name) for name in ("x-tenant", "x-more", "x-other", "authorization")] == [
        "b", "c", "a: b", "Bearer mine",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "variables", "url", "key"),
    [
        ([], {}, f"{BASE_URL}/workflows", "Bearer dev-workflow-key"),
        (
            [], {"HEADWATER_PORT": "9000"},
            "http://127.0.0.1:9000/api/workflows/workflows", "Bearer dev-workflow-key",
        ),
        (["--url", "https://host"], {}, "https://host/api/workflows/workflows", None),
        ([], {"HEADWATER_URL": "http://[::1]:90/"}, "http://[::1]:90/api/workflows/workflows",
         "Bearer dev-workflow-key"),
        (["--url", "http://localhost/x"], {}, "http://localhost/x/workflows",
         "Bearer dev-workflow-key"),
        (["--url", "https://host/x"], {}, "https://host/x/workflows", None),
        (["--url", "https://host/x", "--key", "k"], {}, "https://host/x/workflows",
         "Bearer k"),
    ],
)  # fmt: skip
def test_the_key_that_everybody_knows_stays_on_this_machine(
    arguments: list[str], variables: dict[str, str], url: str, key: str | None
):
    network = Network(answer({"workflows": []}))
    headwater(network, "workflows", "list", *arguments, **variables)
    assert (str(network.asked[0].url), sent(network, "authorization")) == (url, key)


# -- failures


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "-w", "order", "--params", "{sku: x}"], "expected JSON, found '{sku: x}'"),
        (["create", "-w", "order", "--params", "NaN"], "found 'NaN'"),
        (["create", "-w", "order", "--params", "@nowhere.json"], "found: No such file"),
        (["create", "-w", "order", "--params", "[" * 9999], "found too many levels"),
        (["send-event", *ON], "Missing option '--type'"),
        (["send-event", *ON, "--type", "go", "--params", "1"], "--params needs --start-if-missing"),
        (["get", "-w", "order"], "such as order/order-1, found --workflow alone"),
        (["get", "-i", "o-1"], "such as order/order-1, found --id alone"),
        (["get"], "such as order/order-1, found none"),
        (["get", "order"], "such as order/order-1, found 'order'"),
        (["get", "/o-1"], "such as order/order-1, found '/o-1'"),
        (["get", "order/o-1", "-w", "order"], "--workflow and --id, found both"),
        (["list", "-w", "order", "--label", "blue"], "expected NAME=VALUE, found 'blue'"),
        (["retry", "--status", "errored"], "expected -w WORKFLOW with --status or --label"),
        (["retry", *ON, "--status", "errored"], "no option of a single instance"),
        (["retry", *ON, "--dry-run"], "--dry-run needs --status or --label"),
        (["list", "-w", "order", "--status", "done"], "'done' is not one of 'active', 'waiting'"),
        (["history", *ON, "--log-level", "info"], "need --include-logs"),
        (["list", "-w", "order", "-H", "geheim"], "expected 'Name: value'"),
        (["list", "-w", "order", "--url", "host:80"], "expected a whole base URL"),
    ],
)
def test_misuse_is_said_before_anything_is_asked(arguments: list[str], words: str):
    network = Network()
    result = headwater(network, "instances", *arguments)
    assert result.exit_code == 2
    assert words in failure(result)
    assert "geheim" not in result.output
    assert network.asked == []


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            problem(404, "INSTANCE_NOT_FOUND", "There is no such instance."),
            "INSTANCE_NOT_FOUND: There is no such instance; `headwater instances list` shows those "
            "that exist",
        ),
        (
            problem(404, "WORKFLOW_NOT_FOUND", "found order"),
            "WORKFLOW_NOT_FOUND: found order; `headwater workflows list` shows those that exist; "
            "if this one is among them, not every worker was started with its app",
        ),
        (problem(409, "MAILBOX_FULL", "full"), "MAILBOX_FULL: full"),
        (problem(401, "unauthorized", "expected the key"), "unauthorized: expected the key; set "
         "HEADWATER_WORKFLOW_KEY, or give a key or a header of your own"),
        (
            httpx2.ConnectError("refused"),
            f"expected Headwater at {BASE_URL}, found no answer (refused); start it with "
            "`headwater up`, or set its URL with --url or HEADWATER_URL",
        ),
    ],
)  # fmt: skip
def test_a_failure_is_one_line_that_says_what_to_do(given: Turn, line: str):
    result = headwater(Network(given), "instances", "get", *ON, "--retries", "0")
    assert result.exit_code == 1
    assert failure(result) == line


def test_headers_are_read_and_errors_never_show_them():
    assert header_of("X-Tenant:  a: b ") == ("x-tenant", "a: b")
    for wrong in ("geheim", ": geheim", "a b: geheim", "ü: geheim"):
        with pytest.raises(ValueError, match=r"^expected 'Name: value', found something else$"):
            header_of(wrong)
    result = headwater(Network(), "workflows", "list", HEADWATER_HEADERS="geheim")
    assert failure(result) == "HEADWATER_HEADERS: expected 'Name: value', found something else"


def test_an_error_is_one_line_whatever_the_server_says():
    assert explained("X", "a\nb\tc") == "X: a b c"


# -- at a terminal


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Makes standard output a terminal of 120 columns with colours."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stdout", screen)
    return screen


def test_a_person_sees_a_table_in_colours_and_no_tricks(monkeypatch: pytest.MonkeyPatch):
    terminal = at_terminal(monkeypatch)
    rows = [{"id": "a", "status": "errored", "what": "E: \x1b[2J\x07gone"}]
    styles = {"status": {"errored": "bold red"}}
    output.print_rows(rows, ("id", "status", "what"), styles=styles)
    shown = terminal.getvalue()
    assert "\x1b[1;31merrored" in shown
    assert "E: \\x1b[2J\\x07gone" in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize(
    ("width", "left_out"), [(120, []), (100, ["moved"]), (80, ["moved", "age"])]
)
def test_a_narrow_terminal_has_fewer_columns_and_whole_ids(
    monkeypatch: pytest.MonkeyPatch, width: int, left_out: list[str]
):
    terminal = at_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(width))
    name = "order/0197c1f2-7f0a-7c1e-9d5b-8a2b3c4d5e6f"
    rows = [
        {"instance": name, "status": "waiting", "age": "3 min 5 s", "moved": "12 min ago",
         "what": "ok?: waiting for event approval, until tomorrow"},
    ]  # fmt: skip
    columns = ("instance", "status", "age", "moved", "what")
    output.print_rows(rows, columns, drops=("moved", "age"))
    shown = terminal.getvalue()
    assert name in shown
    assert [value for value in ("moved", "age") if value not in shown] == left_out


def test_lines_are_aligned_as_they_come(monkeypatch: pytest.MonkeyPatch):
    terminal = at_terminal(monkeypatch)
    widths, styles = {"level": 5, "message": 0}, {"level": {"warn": "yellow"}}
    output.print_line({"level": "warn", "message": "a [bold]\nb"}, widths, styles)
    assert terminal.getvalue() == "\x1b[33mwarn \x1b[0m  a [bold] b\n"


def test_the_clock_of_the_system_is_the_default():
    assert from_unix_ms(CliEnvironment().clock()).year >= 2026
    assert click.Context(cli).find_object(CliEnvironment) is None
