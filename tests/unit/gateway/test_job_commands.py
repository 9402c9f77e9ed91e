"""`headwater jobs`: what it asks, prints, and says when it fails."""

import json

import pytest

from tests.unit.gateway.command_line import headwater
from tests.unit.gateway.test_job_clients import JOB, KEY, LISTED, OK, UNTIL
from tests.unit.gateway.workflow_network import Network, answer, problem, queries

HEADING = "key\ttype\tinstance\tnode\tattempt\tlease until\tinput\n"


def test_jobs_are_taken_and_shown_with_their_keys():
    network = Network(answer({"jobs": [JOB]}))
    result = headwater(
        network, "jobs", "activate", "charge", "ship", "--worker", "me", "--max", "5",
        "--lease", "10 s", "--wait", "20 seconds",
    )  # fmt: skip
    assert result.stdout.startswith(HEADING + f"{KEY}\tcharge\torder/order-1\tpay\t1\t2026-07-01 ")
    assert result.stdout.endswith('\t{"amount": 5}\n')
    assert network.asked[0].url.path == "/api/jobs/activate"
    assert network.body() == {
        "types": ["charge", "ship"], "worker": "me", "max": 5,
        "leaseMs": 10_000, "waitMs": 20_000,
    }  # fmt: skip


def test_jobs_that_have_not_ended_are_listed_over_pages_up_to_a_limit():
    pages = [{"jobs": [LISTED], "hasNextPage": True, "cursor": value} for value in ("a", "b")]
    network = Network(*map(answer, pages))
    result = headwater(network, "jobs", "list", "--type", "charge", "--limit", "2")
    heading, *lines = result.stdout.splitlines()
    assert heading.split("\t") == [
        "since", "type", "instance", "node", "token", "attempt", "status", "worker", "until"
    ]  # fmt: skip
    assert [line.split("\t")[1:8] for line in lines] == [
        ["charge", "order/order-1", "pay", "4", "1", "taken", "node 7"]
    ] * 2
    assert "There are more: --cursor b" in result.stderr
    assert [one["pageSize"] for one in queries(network.asked)] == ["2", "1"]


def test_that_there_are_no_open_jobs_is_said():
    result = headwater(Network(answer({"jobs": [], "hasNextPage": False})), "jobs", "list")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    assert "There are no open jobs." in result.stderr
    page = {"jobs": [LISTED], "hasNextPage": False}
    result = headwater(Network(answer(page)), "jobs", "list", "--json")
    assert [load["worker"] for load in json.loads(result.stdout)] == ["node 7"]


def test_jobs_are_printed_as_the_route_answers_them():
    result = headwater(Network(answer({"jobs": [JOB]})), "jobs", "activate", "charge", "--json")
    assert json.loads(result.stdout) == [JOB]


def test_a_machine_asks_in_its_name_and_is_told_when_there_are_none():
    network = Network(answer({"jobs": []}))
    result = headwater(network, "jobs", "activate", "charge")
    assert (result.exit_code, result.stdout) == (0, HEADING)
    assert "No job of charge waits for a worker." in result.stderr
    assert network.body()["worker"]


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (("complete",), {"output": None}),
        (("complete", "--output", '{"r": 1}'), {"output": {"r": 1}}),
        (
            ("fail", "--message", "no", "--name", "Declined", "--retry-after", "1 hour"),
            {
                "error": {"name": "Declined", "message": "no"},
                "retryable": True,
                "retryAfterMs": 3_600_000,
            },
        ),
        (
            ("fail", "--message", "no", "--no-retry"),
            {"error": {"name": "Error", "message": "no"}, "retryable": False},
        ),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_job_is_ended_by_its_key(arguments: tuple[str, ...], body: object, as_json: bool):
    network = Network(answer(OK))
    flags = ("--json",) if as_json else ()
    result = headwater(network, "jobs", arguments[0], KEY, *arguments[1:], *flags)
    assert result.exit_code == 0, result.output
    assert network.asked[0].url.path == f"/api/jobs/{KEY}/{arguments[0]}"
    assert network.body() == body
    if as_json:
        assert json.loads(result.stdout) == {"key": KEY, "ok": True}
    else:
        assert result.stdout == ""
        assert KEY in result.stderr


def test_a_job_is_kept_for_longer():
    network = Network(answer({"leaseUntil": UNTIL}), answer({"leaseUntil": UNTIL}))
    result = headwater(network, "jobs", "extend", KEY, "--lease", "10 minutes")
    assert "until 2026-07-01 08:01:00 UTC" in result.stderr
    assert network.body() == {"leaseMs": 600_000}
    reported = headwater(network, "jobs", "extend", KEY, "--json")
    assert json.loads(reported.stdout) == {"key": KEY, "leaseUntil": UNTIL}


def test_a_refusal_is_a_line_on_standard_error():
    network = Network(problem(409, "JOB_LEASE_LOST", "the lease ran out"))
    result = headwater(network, "jobs", "complete", KEY)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "JOB_LEASE_LOST: the lease ran out; `headwater jobs activate`" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("activate",), "Missing argument"),
        (("activate", "charge", "--lease", "soon"), "expected"),
        (("activate", "charge", "--max", "0"), "not in the range"),
        (("fail", KEY), "Missing option '--message'"),
        (
            ("fail", KEY, "--message", "no", "--no-retry", "--retry-after", "1 s"),
            "expected --no-retry or --retry-after, found both",
        ),
        (("complete", KEY, "--output", "{"), "expected JSON"),
        (("complete", ""), "expected the key of a job"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_is_sent(
    arguments: tuple[str, ...], told: str
):
    result = headwater(Network(), "jobs", *arguments)
    assert result.exit_code == 2
    assert told in result.output
