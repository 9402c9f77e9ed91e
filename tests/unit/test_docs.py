"""Every Python example of the documents runs, and does what the document says.

The blocks of a document are run in their order, each as a module of its own. Tests in them are
tests here, given `WorkflowTest` as the plugin for pytest would; a workflow in them is run to its
end, with the events that it waits for, and has to end as `ENDS` says. Blocks with a name, such as
```python shop.py, are files that those which follow can import; the pages of a folder those of its
README.md, too. They are run by tests/e2e/test_workflow_docs.py, as is what needs a service,
```python service.

Definitions of graphs are blocks with a name, too, ```json order.json, and so are pictures of their
runs, which have the name in a comment before them. The examples of a page read them as files, and
run all of them. What another engine would run is marked with its name.
"""

import asyncio
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner

from headwater import Workflow, WorkflowTest
from headwater.gateway.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for folder in ("graphs", "workflows")
        for path in (ROOT / "docs" / folder).glob("*.md")
    ),
)
GRAPHS = [document for document in DOCUMENTS if document.startswith("docs/graphs/")]
BLOCK = re.compile(r"^```python ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEFINITION = re.compile(r"^```json ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^<!-- (\S+\.mmd) -->\n```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Marks of what is not run here: it needs a service, or is written for another engine.
NOT_RUN = {"service", "langgraph"}
#: Marks of JSON that is no definition of ours: Amazon States Language, bodies of requests.
NOT_OURS = {"asl", "body"}

#: Workflows by name: their params, and their output.
ENDS: dict[str, tuple[Any, Any]] = {
    "report": ({}, "written"),
    "intake": ({"customer": "acme"}, "read"),
    "order": ({"sku": "x"}, {"sku": "x", "price": 125, "by": {"by": "test"}}),
    "steps": (None, [2, "charge-1", "charge-1"]),
    "sleeps": (None, None),
    "events": (None, {"by": "test", "lines": 1}),
    "together": (None, ["amara", ["a", "b"], "user", "amara", 7]),
    "pages": (None, 100),
    "invoice": ({"amount": 1}, "invoice over 1"),
    "bill": (None, "invoice over 125"),
    "values": (None, {"at": "2026-01-01T00:00:00+00:00", "beta": False, "key_length": 36}),
    "talks": (None, None),
    "changed": (None, "answered"),
    "computes": (None, 499999500000),
    "approve": ({"to": "amara"}, {"by": "test"}),
    "failures": (None, [["charge", 1, "no such card"], [["bad"], "ConnectionError"]]),
}
#: Days after which a workflow of a document is stuck.
PATIENCE_DAYS = 400


def blocks() -> Iterator[Any]:
    of_readme: dict[Path, dict[str, str]] = {}
    for document in DOCUMENTS:
        text = (ROOT / document).read_text("utf-8")
        folder = Path(document).parent
        files = dict(of_readme.get(folder, {}))
        read = {name: block for name, block in DEFINITION.findall(text) if "." in name}
        read |= dict(PICTURE.findall(text))
        if Path(document).name == "README.md":
            of_readme[folder] = files
        for result in BLOCK.finditer(text):
            name, block = result.groups()
            if name.endswith(".py") and not name.startswith("test_"):
                files[name.removesuffix(".py")] = block
            elif name not in NOT_RUN:
                line = text.count("\n", 0, result.start()) + 1
                yield pytest.param(block, dict(files), read, id=f"{document}:{line}")


@pytest.mark.parametrize(("block", "files", "read"), list(blocks()))
def test_an_example_runs(
    block: str,
    files: dict[str, str],
    read: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in read.items():
        (tmp_path / name).write_text(text, "utf-8")
    for name, text in files.items():
        made = ModuleType(name)
        exec(compile(text, name, "exec"), vars(made))  # noqa: S102 (our own documents)
        monkeypatch.setitem(sys.modules, name, made)
    module: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, "example", "exec"), module)  # noqa: S102 (our own documents)
    tests = [value for name, value in module.items() if name.startswith("test_")]
    for test in tests:
        result = test(*([WorkflowTest] if inspect.signature(test).parameters else []))
        if inspect.iscoroutine(result):
            asyncio.run(result)
    workflows = [value for value in module.values() if isinstance(value, Workflow)]
    for workflow in workflows:
        if not tests:
            asyncio.run(run_to_its_end(workflow, workflows))
    assert tests or workflows, "expected a test or a workflow"


async def run_to_its_end(workflow: Workflow, app: list[Workflow]) -> None:
    params, output = ENDS[workflow.name]
    async with WorkflowTest(app, seed=1) as test:
        instance = await test.create(workflow.name, id="doc", params=params)
        await test.run_until_idle()
        for _ in range(PATIENCE_DAYS):
            status = await instance.status()
            if status.status != "waiting":
                break
            steps = (await instance.history()).steps
            waits = [s.wait_event_type for s in steps if s.status == "waiting"]
            kinds = [types if isinstance(types, str) else types[0] for types in waits if types]
            for kind in kinds:
                await instance.send_event(kind, {"by": "test"})
            await test.advance(0 if kinds else "1 day")
        assert (status.status, status.error, status.output) == ("complete", None, output)


def test_the_documents_have_examples_of_every_workflow_that_is_expected() -> None:
    result = {
        name
        for document in DOCUMENTS
        for name in re.findall(
            r'^@workflow\("([^"]+)"', (ROOT / document).read_text("utf-8"), re.MULTILINE
        )
    }
    assert ENDS.keys() <= result


def commands_of(document: str) -> list[list[str]]:
    """The words of every command that a page shows at a terminal."""
    text = (ROOT / document).read_text("utf-8").replace("\\\n", " ")
    lines = [line for script in SHELL.findall(text) for line in script.splitlines()]
    return [
        shlex.split(line.partition(" > ")[0])[1:] for line in lines if line.startswith("headwater ")
    ]


@pytest.mark.parametrize("document", GRAPHS)
def test_commands_of_a_page_are_accepted(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "review.json").write_text("{}", "utf-8")
    for words in commands_of(document):
        context = click.Context(cli, info_name="headwater")
        name, command, rest = cli.resolve_command(context, words)
        if isinstance(command, click.Group):
            context = click.Context(command, parent=context, info_name=name)
            name, command, rest = command.resolve_command(context, rest)
        assert command is not None
        command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("document", GRAPHS)
def test_definitions_of_a_page_have_no_warnings(document: str, tmp_path: Path) -> None:
    files = []
    for name, block in DEFINITION.findall((ROOT / document).read_text("utf-8")):
        if name not in NOT_OURS:
            files.append(tmp_path / name)
            files[-1].write_text(block, "utf-8")
    if files:
        answer = CliRunner().invoke(cli, ["graph", "validate", *map(str, files)])
        assert answer.exit_code == 0, answer.output
        assert "warning" not in answer.output.lower()


@pytest.mark.parametrize("document", GRAPHS)
def test_every_definition_of_a_page_is_run_by_an_example(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    examples = [block for name, block in BLOCK.findall(text) if name not in NOT_RUN]
    for name, block in DEFINITION.findall(text):
        if name in NOT_OURS:
            continue
        assert name.endswith(".json"), f"expected the name of a file, found {name!r}: {block}"
        assert any(f'"{name}"' in example and ".create(" in example for example in examples), name
    for name, _ in PICTURE.findall(text):
        assert any(f'"{name.removesuffix(".mmd")}"' in example for example in examples), name
