"""One turn of `make bench-guard`: a few short measurements of this working tree, as JSON.

Steps of workflows at 1, 50 and 500 at once; deliveries of which five make a row, and deliveries
that each make one; deliveries that the gateway accepts; and workflows that are created, and events
that are sent, over HTTP.
"""

import json
import sys
import time
from contextlib import ExitStack
from typing import Final

from benchmarks import ingest, service
from benchmarks.children import BenchmarkFailed
from benchmarks.pipeline import Headwater
from benchmarks.results import Round
from benchmarks.system import System, free_port, log_progress, opened
from benchmarks.workflows import RAW_TOPIC, WorkflowBench
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS
from headwater.schemas.topics import WEBHOOKS

#: Workflows of a measurement, by concurrency.
_WORKFLOWS: Final = {1: 100, 50: 1_000, 500: 2_000}
_DELIVERIES: Final = 15_000
_WARM_DELIVERIES: Final = 3_000
#: Number of the first delivery with a row of its own. Those before belong to earlier days.
_DISTINCT_FROM: Final = 1_000_000
_REQUESTS: Final = 1_000
_RATES: Final = ("rate", "steps_s", "requests_s", "creates_s", "events_s")
_PATIENCE_S: Final = 120.0
_INGEST: Final = ingest.Sizes(rounds=1, seconds=4.0, warm_s=2.0)


def measure() -> dict[str, Round]:
    """Measure everything once, on servers of its own."""
    with opened() as system:
        system.make_topics(RAW_TOPIC)
        measured = {**_steps(system), **_pipeline(system), "ingest": _ingest(system)}
        return {**measured, **_service(system)}


def _steps(system: System) -> dict[str, Round]:
    with ExitStack() as stack:
        bench = WorkflowBench(system, stack)
        bench.warm_up()
        return {
            f"steps, {at_once} at once": bench.steps(count, at_once)[0]
            for at_once, count in _WORKFLOWS.items()
        }


def _pipeline(system: System) -> dict[str, Round]:
    with ExitStack() as stack:
        headwater = Headwater(system, stack)
        _deliver(system, headwater, 0, 0, _WARM_DELIVERIES)
        had = _WARM_DELIVERIES
        repeating = _deliver(system, headwater, had, had, _DELIVERIES)
        had += _DELIVERIES
        single = _deliver(system, headwater, had, _DISTINCT_FROM, _DELIVERIES, "distinct")
        return {"deliveries, five a row": repeating, "deliveries, one a row": single}


def _deliver(
    system: System, headwater: Headwater, had: int, first: int, count: int, *options: str
) -> Round:
    """Append deliveries while the worker is suspended, then measure until all are in Postgres."""
    arguments = (system.bootstrap, WEBHOOKS, str(first), str(count), *options)
    with system.child("preload", "benchmarks.preload", *arguments) as preload:
        preload.expect("built", within_s=_PATIENCE_S)
        headwater.consumer.suspend()
        preload.send_line("go")
        preload.expect("appended", within_s=_PATIENCE_S)
    before, began = system.meter(**headwater.parts), time.perf_counter()
    headwater.consumer.resume()
    ended, _ = headwater.wait(had + count)
    after = system.meter(**headwater.parts)
    rate = round(count / (ended - began), 1)
    values = {"rate": rate, "others": before.others(after)}
    return Round(values=values, cpu_us=before.us_per_event(after, count))


def _ingest(system: System) -> Round:
    port = free_port()
    secret = DEVELOPMENT_SECRETS["terra_secrets"]
    with system.start_process("serve", port=str(port), terra_secrets=secret) as gateway:
        server = ingest.Server(ingest.HEADWATER, port, gateway)
        server.wait_until_ready()
        return ingest.measure(system, server, _INGEST, 0)


def _service(system: System) -> dict[str, Round]:
    cases = [case for case in service.CASES if case.callers > 1]
    with ExitStack() as stack:
        bench = service.ServiceBench(system, stack)
        bench.warm_up()
        return {case.name: bench.round(case, service.ASYNC, _REQUESTS) for case in cases}


def _figures(measured: Round) -> dict[str, float]:
    values = measured.values
    rate = next(values[name] for name in _RATES if name in values)
    return {"rate": rate, "cpu_us": measured.cpu_us["all"], "others": values["others"]}


if __name__ == "__main__":
    try:
        _result = {name: _figures(measured) for name, measured in measure().items()}
    except BenchmarkFailed as _failure:
        sys.exit(f"the measurement failed: {_failure}")
    log_progress("Done")
    sys.stdout.write(json.dumps(_result) + "\n")
