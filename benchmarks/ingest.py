"""Accepting deliveries: rate and latency of the signed POST, compared with two minimal servers.

Method. All three servers run all the time, in separate processes with the gateway's HTTP server.
A generator in a process of its own posts from 64 connections; a connection sends its next request
when it has a response (a closed loop). All deliveries differ, and are signed beforehand. Every
target has the same time in every round, after a warm-up. No pipeline worker runs.

The generator shares the machine with what it measures. `busy` is the share of a core that it used;
it is not the bottleneck as long as that stays well below 1 and the empty server, which it drives
in the same way, answers more requests than the others.
"""

import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from benchmarks.children import BenchmarkFailed, Child
from benchmarks.results import Comparison, Round, Target, turns
from benchmarks.servers import TOPIC
from benchmarks.system import System, free_port, log_progress, opened
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS

CONNECTIONS: Final = 64
_READY_WITHIN_S: Final = 30.0
_PATIENCE_S: Final = 60.0
#: Numbers of deliveries reserved for one measurement, so that no two post the same.
_APART: Final = 1_000_000

HEADWATER: Final = "headwater"
BARE: Final = "bare"
NOTHING: Final = "nothing"

_WHAT: Final = {
    HEADWATER: "POST /webhooks/terra: verify, read the envelope, drop duplicates, append",
    BARE: "the same server: verify, append (acks=all), nothing else",
    NOTHING: "the same server: answer 200",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Rounds, and the seconds of one measurement and of its warm-up."""

    rounds: int
    seconds: float
    warm_s: float


FULL: Final = Sizes(rounds=7, seconds=2.0, warm_s=0.5)
QUICK: Final = Sizes(rounds=2, seconds=1.2, warm_s=0.3)


@dataclass(frozen=True, slots=True)
class Server:
    """A server under test."""

    name: str
    port: int
    process: Child

    def wait_until_ready(self) -> None:
        """Wait until it accepts requests; the gateway also until it is connected to Kafka."""
        path = "/health/ready" if self.name == HEADWATER else "/"
        deadline = time.monotonic() + _READY_WITHIN_S
        while not _answers(f"http://127.0.0.1:{self.port}{path}", any_status=path == "/"):
            self.process.check()
            if time.monotonic() > deadline:
                raise self.process.failure("was not ready in time")
            time.sleep(0.05)


def run(sizes: Sizes) -> Comparison:
    """Measure all three in turn, for the requested number of rounds."""
    with opened() as system, ExitStack() as stack:
        system.make_topics(TOPIC)
        servers = _servers(system, stack)
        for server in servers:
            server.wait_until_ready()
        rounds: dict[str, list[Round]] = {server.name: [] for server in servers}
        first = 0
        for number in range(sizes.rounds):
            for server in turns(servers, number):
                measured = measure(system, server, sizes, first)
                first += _APART
                rounds[server.name].append(measured)
                rate = measured.values["requests_s"]
                log_progress(f"Round {number + 1}: {server.name} {rate:,.0f} requests/s")
    return Comparison(
        name="ingest",
        title=f"Taking 2 KB deliveries over {CONNECTIONS} connections",
        measure="requests_s",
        subject=HEADWATER,
        targets={name: Target(what=_WHAT[name], rounds=rounds[name]) for name in _WHAT},
    )


def _servers(system: System, stack: ExitStack) -> list[Server]:
    secret = DEVELOPMENT_SECRETS["terra_secrets"]
    ports = {name: free_port() for name in (NOTHING, HEADWATER, BARE)}
    gateway = system.start_process("serve", port=str(ports[HEADWATER]), terra_secrets=secret)
    module, port = "benchmarks.servers", str(ports[BARE])
    return [
        Server(name, ports[name], stack.enter_context(process))
        for name, process in (
            (NOTHING, system.child(NOTHING, module, NOTHING, str(ports[NOTHING]))),
            (HEADWATER, gateway),
            (BARE, system.child(BARE, module, BARE, port, system.bootstrap, secret)),
        )
    ]


def measure(system: System, server: Server, sizes: Sizes, first: int) -> Round:
    """Post to a server for a while. `first` is the number of the first delivery."""
    secret = DEVELOPMENT_SECRETS["terra_secrets"]
    numbers = (server.port, CONNECTIONS, first, sizes.seconds, sizes.warm_s)
    with system.child("load", "benchmarks.load", *map(str, numbers), secret) as load:
        load.expect("ready", within_s=_PATIENCE_S)
        before = system.meter(server=server.process)
        load.send_line("go")
        _, report = load.expect("requests_s", within_s=_PATIENCE_S)
        after = system.meter(server=server.process)
    if report["failed"]:
        raise BenchmarkFailed(
            f"{server.name}: expected 200 for all of {report['requests']} requests, found "
            f"{report['failed']} others"
        )
    others = before.others(after, also_ours=report["busy"] * report["seconds"])
    return Round(
        values={**report, "others": others}, cpu_us=before.us_per_event(after, report["requests"])
    )


def _answers(url: str, *, any_status: bool) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 (a loopback address of ours)
            return True
    except urllib.error.HTTPError:
        return any_status
    except OSError:
        return False
