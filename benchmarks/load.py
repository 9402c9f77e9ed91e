"""The load generator: a fixed number of connections that post in a closed loop.

`python -m benchmarks.load PORT CONNECTIONS FIRST SECONDS WARM_SECONDS SECRET` posts deliveries from
number FIRST on, all different and signed before the clock runs, and reports `requests_s`, the
latencies and `busy`, the share of one core that it used itself.

It uses bare sockets because a client library costs several times what is measured. Only status and
length of responses are parsed.
"""

import asyncio
import gc
import hashlib
import hmac
import sys
import time
from typing import Final, cast

import uvloop
from typing_extensions import override

from benchmarks.payloads import delivery
from benchmarks.reporting import report

#: Requests prepared for the warm-up; its rate determines how many the measurement needs.
_WARM_REQUESTS: Final = 15_000
#: Factor above the rate of the warm-up.
_HEADROOM: Final = 1.5
_ENOUGH: Final = 2_000
_LENGTH: Final = b"content-length: "


def requests(first: int, count: int, port: int, secret: bytes) -> list[bytes]:
    """Return signed requests, ready to be sent."""
    now = str(int(time.time())).encode()
    prepared = []
    for number in range(first, first + count):
        body = delivery(number).body
        signature = hmac.digest(secret, now + b"." + body, hashlib.sha256).hex().encode()
        head = (
            b"POST /webhooks/terra HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
            b"content-type: application/json\r\nterra-signature: t=%b,v1=%b\r\n"
            b"content-length: %d\r\n\r\n" % (port, now, signature, len(body))
        )
        prepared.append(head + body)
    return prepared


class Run:
    """A run: requests left to send, and results."""

    def __init__(self, prepared: list[bytes], seconds: float, connections: int) -> None:
        self._prepared = iter(prepared)
        self.deadline = time.perf_counter() + seconds
        self.latencies: list[float] = []
        self.failed = 0
        self.ended = asyncio.Event()
        self._open = connections

    def next(self) -> bytes | None:
        """Return the next request; None when the run is over."""
        if time.perf_counter() >= self.deadline:
            return None
        return next(self._prepared, None)

    def finished(self) -> None:
        """Record that a connection is done."""
        self._open -= 1
        if self._open == 0:
            self.ended.set()


class Connection(asyncio.Protocol):
    """A connection: a request, its response, the next request."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._run: Run | None = None
        self._sent_at = 0.0
        self._rest = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is an asyncio.Transport in all but its type.
        self._transport = cast("asyncio.Transport", transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._run is not None:
            self._run.failed += 1
            self._run.finished()
            self._run = None

    def begin(self, run: Run) -> None:
        """Post until the run is over."""
        self._run = run
        self._post(run)

    def _post(self, run: Run) -> None:
        request = run.next()
        if request is None or self._transport is None:
            self._run = None
            run.finished()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    @override
    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        head = data.find(b"\r\n\r\n")
        if head < 0 or len(data) < head + 4 + _length(data, head):
            self._rest = data
            return
        self._rest = b""
        run = self._run
        assert run is not None
        run.latencies.append(time.perf_counter() - self._sent_at)
        if not data.startswith(b"HTTP/1.1 200"):
            run.failed += 1
        self._post(run)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


def _length(data: bytes, head: int) -> int:
    at = data.find(_LENGTH, 0, head) + len(_LENGTH)
    end = data.find(b"\r", at)
    return int(data[at:end])


async def _drive(
    connections: list[Connection], prepared: list[bytes], seconds: float
) -> dict[str, float]:
    run = Run(prepared, seconds, len(connections))
    began, cpu = time.perf_counter(), time.process_time()
    for connection in connections:
        connection.begin(run)
    await run.ended.wait()
    took, used = time.perf_counter() - began, time.process_time() - cpu
    latencies = sorted(run.latencies) or [0.0]
    return {
        "requests_s": round(len(run.latencies) / took, 1),
        "p50_ms": round(latencies[len(latencies) // 2] * 1e3, 3),
        "p99_ms": round(latencies[len(latencies) * 99 // 100] * 1e3, 3),
        "requests": len(run.latencies),
        "failed": run.failed,
        "seconds": round(took, 3),
        "busy": round(used / took, 3),
    }


async def _main(arguments: list[str]) -> None:
    port, count, first = (int(argument) for argument in arguments[:3])
    seconds, warm_s, secret = float(arguments[3]), float(arguments[4]), arguments[5].encode()
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(count)
    ]
    warm = await _drive(connections, requests(first, _WARM_REQUESTS, port, secret), warm_s)
    needed = int(warm["requests_s"] * seconds * _HEADROOM) + _ENOUGH
    prepared = requests(first + _WARM_REQUESTS, needed, port, secret)
    # A garbage collection here would show up as latency of the server.
    gc.collect()
    gc.disable()
    report(ready=needed)
    await asyncio.to_thread(sys.stdin.readline)
    report(**await _drive(connections, prepared, seconds))
    for connection in connections:
        connection.close()


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1:]))
