"""`headwater instances export-test`: a recorded run as a test of pytest."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headwater.gateway.cli.options import examples
from headwater.gateway.cli.results import Result, prints
from headwater.gateway.cli.workflow_service import (
    ENVIRONMENT,
    InstanceName,
    instance_named,
    service_options,
)

if TYPE_CHECKING:
    from headwater.gateway.client.sync_client import SyncClient

_NOT_OF_A_NAME: Final = re.compile(r"\W+", re.ASCII)
#: Characters of a line that the file quotes.
_LINE_MAX: Final = 90


@click.command(
    "export-test",
    epilog=examples(
        "headwater instances export-test order/o-1 --app shop.workflows",
        "headwater instances export-test order/o-1 --app shop.workflows --folder tests/runs",
        "headwater instances export-test review/r-1          of a graph deployed over HTTP",
    )
    + ENVIRONMENT,
)
@instance_named
@click.option("--app", metavar="MODULE[:NAME]", help="The code that the test replays.")
@click.option("--run", type=click.IntRange(min=0), help="Number of the run. Default: the current.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tests"),
    show_default=True,
    help="Where the files are written.",
)
@prints
@service_options
def export_test(
    client: "SyncClient",
    *,
    instance: InstanceName,
    app: str | None,
    run: int | None,
    folder: Path,
) -> Result:
    """Write a test that fails as a run has failed, until the code is fixed.

    Writes a Python file for pytest and the history of the run beside it; of a graph also its
    definition, which the test uses without --app. Sensitive values of the history are replaced,
    as for `histories export`.
    """
    text = client.run(instance.handle(client).export_history(run))
    written = files_of_test(str(instance), text, app)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in written.items():
        (folder / name).write_text(content, encoding="utf-8")
    files = [str(folder / name) for name in written]
    return Result(answer={"files": files}, text="".join(f"{file}\n" for file in files))


def files_of_test(instance: str, text: str, app: str | None) -> dict[str, str]:
    """Return the contents of a test's files, by name.

    Args:
        instance: The instance, as workflow/id.
        text: The exported history of a run.
        app: The app with the code; None for a graph that was deployed over HTTP.

    Raises:
        click.UsageError: The run is one of code, and no app is named.
    """
    header, *records = (json.loads(line) for line in text.splitlines())
    name = _NOT_OF_A_NAME.sub("_", instance).strip("_").lower()
    document = _definition_of(records)
    if app is None and document is None:
        raise click.UsageError("--app: expected the app with the workflow's code, found none")
    written = {f"{name}.jsonl": text}
    if app is None:
        written[f"{name}.graph.json"] = json.dumps(document, indent=2) + "\n"
    events = _events(records, header["runNumber"])
    return written | {f"test_{name}.py": _source(instance, name, app, header, events)}


def _events(records: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    return [
        event for record in records if record["run_number"] == number for event in record["events"]
    ]


def _definition_of(records: list[dict[str, Any]]) -> Any:  # noqa: ANN401 (JSON)
    """Return the latest definition of a graph's run; None for a run of code."""
    documents = [
        event["document"]
        for record in records
        for event in record["events"]
        if event["_"] in {"GraphStarted", "GraphMigrated"}
    ]
    return documents[-1] if documents else None


def _source(
    instance: str, name: str, app: str | None, header: dict[str, Any], events: list[dict[str, Any]]
) -> str:
    """Return the source of the test."""
    failure = _failure_of(events)
    failed = _failed_call(events, failure) if app else None
    outcome = f"was {header['status']}"
    if failure is not None:
        outcome = f"failed: {failure['name']}: {failure['message']}"
    imports = read = ""
    if app is None:
        imports = "import json\n"
        read = f'GRAPH = json.loads((FOLDER / "{name}.graph.json").read_text())\n'
    code, calls = repr(app) if app else "[GRAPH]", f", calls=[{failed!r}]" if failed else ""
    return (
        f'"""Run {header["runNumber"]} of {instance} {_line(outcome)}\n\n'
        f"Written by `headwater instances export-test`, {header['redacted']} values redacted.\n"
        f'"""\n\n{imports}from pathlib import Path\n\n'
        "from headwater import replay_history\n\n"
        f"FOLDER = Path(__file__).parent\n{read}\n\n"
        f"def test_{name}() -> None:\n{_comment(failure, failed)}"
        f'    replay_history(FOLDER / "{name}.jsonl", {code}{calls})\n'
    )


def _line(text: str) -> str:
    """Return text as part of a docstring's first line."""
    printable = " ".join(text.split()).replace("\\", "/").replace('"', "'")
    return printable if len(printable) <= _LINE_MAX else f"{printable[: _LINE_MAX - 1]}…"


def _comment(failure: dict[str, Any] | None, failed: str | None) -> str:
    if failure is None:
        return "    # The run has not failed: it has to fit.\n"
    if failed is None:
        return "    # Fails as the run did, until the code is fixed.\n"
    return (
        "    # Calls the code of the failed step: replace the services that it reaches.\n"
        "    # Fails as the run did, until the code is fixed.\n"
    )


def _failure_of(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    ends = [event["failure"] for event in events if event["_"] in {"RollbackStarted", "RunErrored"}]
    return ends[0] if ends else None


def _failed_call(events: list[dict[str, Any]], failure: dict[str, Any] | None) -> str | None:
    """Return the step or node with whose error a run failed, if it is one."""
    if failure is None:
        return None
    nodes: dict[int, str] = {}
    failed = None
    for event in events:
        if event["_"] == "TokensCreated" and event.get("task") and not event.get("external"):
            numbers = range(event["first"], event["first"] + event["count"])
            nodes |= dict.fromkeys(numbers, event["node"])
        elif event["_"] in {"StepFailed", "TokenFailed"} and "retry_at_ms" not in event:
            # A failure with a result is one of the definition.
            failed = None if "result" in event else event
    if failed is None or failed["failure"]["message"] != failure["message"]:
        return None
    return str(failed["key"]) if failed["_"] == "StepFailed" else nodes.get(failed["token"])
