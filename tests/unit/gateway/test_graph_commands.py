"""`headwater graph` and the client's graphs: what they ask, print, and say when it fails."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headwater import GraphWorkflow
from headwater.gateway.client.client import Client
from headwater.schemas.failures import CommandRefusedError
from tests.unit.gateway.command_line import headwater
from tests.unit.gateway.workflow_network import BASE_URL, Network, answer, problem

GRAPH = {"name": "g", "initialNodeRef": "a", "nodes": [{"ref": "a", "task": "noop"}]}
UNREACHED = GRAPH | {"nodes": [{"ref": "a", "task": "noop"}, {"ref": "b", "task": "noop"}]}
DIGEST = "0" * 64
VERSION: dict[str, Any] = {
    "name": "g",
    "version": 2,
    "digest": DIGEST,
    "deployedAt": "2026-07-01T08:00:00Z",
}
LINE = f"g\t2\t2026-07-01 08:00:00 UTC\t\t{DIGEST}\n"
HEADING = "name\tversion\tdeployed\tapp\tdigest\n"


def test_every_mistake_of_every_file_is_told_here(tmp_path: Path):
    right, wrong = tmp_path / "right.json", tmp_path / "wrong.json"
    right.write_text(json.dumps(GRAPH))
    wrong.write_text(json.dumps(GRAPH | {"initialNodeRef": "b", "nodes": [{"ref": "a"}]}))
    result = headwater(Network(), "graph", "validate", str(right), str(wrong))
    assert result.exit_code == 1
    reported = [line.split("\t")[:3] for line in result.stdout.splitlines()[1:]]
    assert sorted(reported) == sorted(
        [
            [str(wrong), "INVALID_NODE_REF", "initialNodeRef"],
            [str(wrong), "MISSING_OWNER", "nodes[0]"],
        ]
    )
    fine = headwater(Network(), "graph", "validate", str(right))
    assert (fine.exit_code, fine.stdout) == (0, "")
    assert "nothing is wrong" in fine.stderr


def test_a_definition_of_standard_input_is_checked():
    result = headwater(Network(), "graph", "validate", "-", "--json", given="{")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["errors"][0]["code"]) == (1, "INVALID_DEFINITION")
    assert answer["warnings"] == []


def test_warnings_are_printed_beside_the_errors(tmp_path: Path):
    file = tmp_path / "g.json"
    file.write_text(json.dumps(UNREACHED))
    result = headwater(Network(), "graph", "validate", str(file), "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["errors"]) == (0, [])
    (warning,) = answer["warnings"]
    assert {**warning, "message": ""} == {
        "file": str(file),
        "code": "UNREACHABLE_NODE",
        "path": "nodes[1]",
        "message": "",
    }
    printed = headwater(Network(), "graph", "validate", str(file))
    assert (printed.exit_code, printed.stdout) == (0, "")
    assert "Warning: UNREACHABLE_NODE at nodes[1]: " in printed.stderr


def test_a_deployment_has_warnings(tmp_path: Path):
    file = tmp_path / "g.json"
    file.write_text(json.dumps(UNREACHED))
    warning = {"code": "UNREACHABLE_NODE", "path": "nodes[1]", "message": "no way"}
    deployed = VERSION | {"warnings": [warning]}
    result = headwater(Network(answer(deployed)), "graph", "deploy", str(file), "--json")
    assert json.loads(result.stdout)[0]["warnings"] == [warning]
    printed = headwater(Network(answer(deployed)), "graph", "deploy", str(file))
    assert printed.stdout == HEADING + LINE
    assert "Warning: UNREACHABLE_NODE at nodes[1]: no way" in printed.stderr


def test_a_definition_is_deployed_beside_the_workflows(tmp_path: Path):
    file = tmp_path / "g.json"
    file.write_text(json.dumps(GRAPH))
    network = Network(answer(VERSION))
    result = headwater(network, "graph", "deploy", str(file), "--after", DIGEST)
    assert result.stdout == HEADING + LINE
    (requested,) = network.asked
    assert (requested.method, requested.url.path) == ("PUT", "/api/graphs/g")
    assert requested.headers["if-match"] == f'"{DIGEST}"'
    assert json.loads(requested.content) == GRAPH


def test_what_is_wrong_is_told_before_anything_is_sent(tmp_path: Path):
    file, network = tmp_path / "g.json", Network()
    file.write_text(json.dumps(GRAPH | {"nodes": []}))
    assert headwater(network, "graph", "deploy", str(file)).exit_code == 1
    assert network.asked == []


def test_graphs_and_their_versions_are_listed():
    assert headwater(Network(answer({"graphs": [VERSION]})), "graph", "list").stdout == (
        HEADING + LINE
    )
    network = Network(answer({"versions": [VERSION]}))
    assert headwater(network, "graph", "list", "g").stdout == HEADING + LINE
    assert network.asked[0].url.path == "/api/graphs/g/versions"
    nothing = headwater(Network(answer({"graphs": []})), "graph", "list")
    assert "headwater graph deploy" in nothing.stderr


@pytest.mark.parametrize(
    ("form", "begins"), [("json", '{"name": "g"'), ("mermaid", "flowchart"), ("svg", "<svg")]
)
def test_a_version_is_shown_as_it_is_or_drawn(form: str, begins: str):
    network = Network(answer(VERSION | {"definition": GRAPH}))
    result = headwater(network, "graph", "show", "g", "--version", "2", "--format", form)
    assert result.stdout.startswith(begins)
    assert network.asked[0].url.path == "/api/graphs/g/versions/2"


@pytest.mark.parametrize(("flags", "last"), [((), "mermaid"), (("--format", "svg"), "svg")])
def test_an_instance_is_drawn_as_it_runs(flags: tuple[str, ...], last: str):
    network = Network(httpx2.Response(200, text="the picture\n"))
    result = headwater(network, "graph", "show", "g", "--instance", "i-1", *flags)
    assert result.stdout == "the picture\n"
    path = network.asked[0].url.path
    assert path == f"/api/workflows/workflows/g/instances/i-1/graph/{last}"


@pytest.mark.parametrize("flags", [("--version", "1"), ("--format", "json")])
def test_an_instance_is_on_its_own_definition_and_drawn(flags: tuple[str, ...]):
    result = headwater(Network(), "graph", "show", "g", "--instance", "i-1", *flags)
    assert result.exit_code == 2
    assert "expected --instance without --version" in result.output


async def _deploys_one_that_is_an_apps() -> None:
    graph = GraphWorkflow(name="g", initial_node_ref="a", nodes=[{"ref": "a", "task": "noop"}])
    network = Network(problem(409, "GRAPH_OF_APP", "it is an app's"))
    async with Client(BASE_URL, transport=network) as client:
        with pytest.raises(CommandRefusedError) as refused:
            await client.deploy(graph)
    assert refused.value.code == "GRAPH_OF_APP"
    assert json.loads(network.asked[0].content) == graph.to_dict()


def test_a_program_deploys_what_it_has_built():
    asyncio.run(_deploys_one_that_is_an_apps())
