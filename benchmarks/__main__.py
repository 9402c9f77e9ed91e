"""`python -m benchmarks`: measure, show a table at a terminal, and write JSON to a pipe."""

import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from benchmarks import (
    gate,
    graphs,
    ingest,
    pipeline,
    rebuild,
    reconcile,
    service,
    size,
    tables,
    workflows,
)
from benchmarks.children import BenchmarkFailed
from benchmarks.machine import facts
from benchmarks.profiles import Profiler, profiler
from benchmarks.results import Comparison
from benchmarks.system import log_progress

#: Every run is kept here, next to the code and ignored by git.
_OUT: Final = Path(__file__).parent / "out"
_TOP: Final = 25


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "which",
    type=click.Choice(
        [
            *("ingest", "pipeline", "rebuild", "reconcile", "workflows", "graphs", "gate"),
            *("service", "size"),
        ]
    ),
    required=False,
)
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of each. Default: 5; quick, 2.")
@click.option("--quick", is_flag=True, help="A few minutes rather than ten; figures vary more.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write JSON to FILE."
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, file_okay=False),
    help="Record py-spy profiles of the workers into this folder (pipeline, workflows and graphs).",
)
def main(
    which: str | None, rounds: int | None, quick: bool, file: Path | None, profile: Path | None
) -> None:
    """Measure Headwater and minimal alternatives.

    Without WHICH, all but `size`, which takes an hour and 20 GB of disk.
    """
    signal.signal(signal.SIGTERM, _end)
    machine = facts()
    profiled = which not in {"ingest", "rebuild", "reconcile", "gate", "service", "size"}
    recorder = profiler(profile) if profile and profiled else None
    try:
        results = _measured(which, quick, rounds, recorder)
    except BenchmarkFailed as failure:
        raise click.ClickException(str(failure)) from failure
    document = {
        "machine": machine,
        "options": {"quick": quick, "rounds": rounds, "profiled": recorder is not None},
        "benchmarks": {result.name: result.document() for result in results},
    }
    if recorder is not None:
        document["profile"] = recorder.top(_TOP)
    _write(document, file)
    if sys.stdout.isatty():
        tables.show(results, machine)
        if recorder is not None:
            tables.show_profile(recorder.top(_TOP))


def _measured(
    which: str | None, quick: bool, rounds: int | None, recorder: Profiler | None
) -> list[Comparison | size.Sized]:
    results: list[Comparison | size.Sized] = []
    if which in {None, "pipeline"}:
        results.append(_pipeline(quick, rounds, recorder))
    if which in {None, "ingest"}:
        results.append(_ingest(quick, rounds))
    if which in {None, "rebuild"}:
        results.append(_rebuild(quick, rounds))
    if which in {None, "reconcile"}:
        results.append(_reconcile(quick, rounds))
    if which in {None, "workflows"}:
        results += _workflows(quick, rounds, recorder)
    if which in {None, "graphs"}:
        results += _graphs(quick, rounds, recorder)
    if which in {None, "gate"}:
        results.append(_gate(quick, rounds))
    if which in {None, "service"}:
        results += _service(quick, rounds)
    if which == "size":
        results.append(size.run(size.QUICK if quick else size.FULL))
    return results


def _pipeline(quick: bool, rounds: int | None, recorder: Profiler | None) -> Comparison:
    sizes = pipeline.QUICK if quick else pipeline.FULL
    if rounds:
        sizes = dataclasses.replace(sizes, rounds=rounds)
    return pipeline.run(sizes, recorder)


def _ingest(quick: bool, rounds: int | None) -> Comparison:
    sizes = ingest.QUICK if quick else ingest.FULL
    if rounds:
        sizes = dataclasses.replace(sizes, rounds=rounds)
    return ingest.run(sizes)


def _rebuild(quick: bool, rounds: int | None) -> Comparison:
    sizes = rebuild.QUICK if quick else rebuild.FULL
    if rounds:
        sizes = dataclasses.replace(sizes, rounds=rounds)
    return rebuild.run(sizes)


def _reconcile(quick: bool, rounds: int | None) -> Comparison:
    sizes = reconcile.QUICK if quick else reconcile.FULL
    if rounds:
        sizes = dataclasses.replace(sizes, rounds=rounds)
    return reconcile.run(sizes)


def _workflows(quick: bool, rounds: int | None, recorder: Profiler | None) -> list[Comparison]:
    sizes = workflows.QUICK if quick else workflows.FULL
    if rounds:
        sizes = dataclasses.replace(sizes, rounds=rounds)
    return workflows.run(sizes, recorder)


def _graphs(quick: bool, rounds: int | None, recorder: Profiler | None) -> list[Comparison]:
    sizes = graphs.QUICK if quick else graphs.FULL
    if rounds:
        sizes = dataclasses.replace(sizes, rounds=rounds)
    return graphs.run(sizes, recorder)


def _gate(quick: bool, rounds: int | None) -> Comparison:
    sizes = gate.QUICK if quick else gate.FULL
    if rounds:
        sizes = dataclasses.replace(sizes, rounds=rounds)
    return gate.run(sizes)


def _service(quick: bool, rounds: int | None) -> list[Comparison]:
    sizes = service.QUICK if quick else service.FULL
    if rounds:
        sizes = dataclasses.replace(sizes, rounds=rounds)
    return service.run(sizes)


def _write(document: dict[str, Any], file: Path | None) -> None:
    """Keep the JSON, and write it to the requested file, or into a pipe."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    _OUT.mkdir(exist_ok=True)
    name = str(document["machine"]["at"]).replace(":", "").replace("+0000", "Z")
    kept = _OUT / f"{name}.json"
    kept.write_text(text, "utf-8")
    log_progress(f"Kept in {kept.relative_to(_OUT.parent.parent)}")
    if file is not None:
        file.write_text(text, "utf-8")
    elif not sys.stdout.isatty():
        sys.stdout.write(text)


def _end(_number: int, _frame: object) -> NoReturn:
    """Let SIGTERM stop the children and servers on the way out."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
