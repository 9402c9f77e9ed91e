"""The gateway as a process, met by what the network brings: raw bytes, lies, slow and rude peers.

Neither Kafka nor Postgres is there, which all of this must not need.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from tests.e2e.system import free_port, signed
from tests.waiting import ANSWERED_WITHIN_S

_UP_WITHIN_S = 60.0
_BODY_LIMIT = 1_000_000


@contextmanager
def gateway(log: Path, **settings: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = free_port()
    env = {
        **os.environ,
        "HEADWATER_PORT": str(port),
        "HEADWATER_KAFKA": "127.0.0.1:1",
        "HEADWATER_POSTGRES": "postgresql://headwater@127.0.0.1:1/headwater",
        "HEADWATER_MAX_BODY_BYTES": str(_BODY_LIMIT),
        "HEADWATER_APPEND_TIMEOUT_S": "0.5",
        **settings,
    }
    with log.open("wb") as output:
        argv = [sys.executable, "-m", "headwater", "serve"]
        process = subprocess.Popen(argv, env=env, stdout=output, stderr=output)
    try:
        _wait_until_it_listens(port, process, log)
        yield port, process
    finally:
        process.kill()
        process.wait()


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _UP_WITHIN_S
    while True:
        try:
            httpx2.get(f"http://127.0.0.1:{port}/health/live")
        except httpx2.TransportError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="module")
def port(scratch: Path) -> Iterator[int]:
    with gateway(scratch / "bad-input.log") as (port, process):
        yield port
        assert process.poll() is None, (scratch / "bad-input.log").read_text()


def say(port: int, *pieces: bytes, within_s: float = 20.0) -> bytes:
    """Sends raw bytes and returns the answer; what there is of it, if the peer hangs up."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=within_s) as connection:
        # Who is refused may be answered, and hung up on, before everything is said.
        with suppress(ConnectionResetError, BrokenPipeError):
            for piece in pieces:
                connection.sendall(piece)
        with suppress(ConnectionResetError, TimeoutError):
            while not is_whole(answer) and (more := connection.recv(65536)):
                answer += more
    return answer


def is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"^content-length: *(\d+)", head, re.IGNORECASE | re.MULTILINE)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer[9:12])


HEAD = b"POST /webhooks/terra HTTP/1.1\r\nhost: x\r\n"


def test_a_huge_header_is_refused(port: int) -> None:
    answer = say(port, HEAD + b"x-filler: " + b"x" * 1_000_000 + b"\r\n\r\n")
    assert status(answer) in (400, 431)


def test_too_many_headers_are_refused(port: int) -> None:
    many = b"".join(b"x-%d: 1\r\n" % number for number in range(5_000))
    assert status(say(port, HEAD + many + b"\r\n")) in (400, 431)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GARBAGE\r\n\r\n",
        HEAD + b"content-length: -5\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n12345",
        HEAD + b"transfer-encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
def test_what_is_no_http_is_refused_or_hung_up_on(port: int, request_bytes: bytes) -> None:
    answer = say(port, request_bytes)
    assert not answer or 400 <= status(answer) < 500


def test_an_announced_body_above_the_limit_is_refused_without_reading_it(port: int) -> None:
    answer = say(port, HEAD + b"content-length: 99999999999\r\n\r\n{")
    assert status(answer) == 413
    assert b'"code":"body_too_large"' in answer


def test_a_chunked_body_above_the_limit_is_refused(port: int) -> None:
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    signature = f"terra-signature: t={time.time():.0f},v1={'0' * 64}\r\n".encode()
    head = HEAD + signature + b"transfer-encoding: chunked\r\n\r\n"
    answer = say(port, head, *[chunk] * 20)
    assert status(answer) == 413


def test_a_chunked_body_within_the_limit_is_read_whole(port: int) -> None:
    answer = say(port, HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
    assert status(answer) == 401  # read, and found unsigned
    assert b'"reason":"missing_header"' in answer


def test_a_sender_that_hangs_up_within_a_body_harms_nobody(port: int) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
    assert httpx2.get(f"http://127.0.0.1:{port}/health/live", timeout=ANSWERED_WITHIN_S).is_success


@pytest.mark.parametrize(
    "path", ["/webhooks/terra/", "//terra", "/webhooks/%00", "/webhooks/..", "/%ff"]
)
def test_odd_paths_are_problems_not_failures(port: int, path: str) -> None:
    answer = httpx2.post(f"http://127.0.0.1:{port}{path}", content=b"{}", timeout=ANSWERED_WITHIN_S)
    assert 400 <= answer.status_code < 500, answer.text


def test_a_host_that_is_none_is_refused(port: int) -> None:
    answer = say(port, b"GET /v1/sync HTTP/1.1\r\nhost: a b\r\n\r\n")
    assert 400 <= status(answer) < 500


def test_without_kafka_a_delivery_is_503_and_nothing_claims_to_be_ready(port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    body = b'{"type":"daily","user":{"user_id":"a"}}'
    answer = httpx2.post(
        f"{url}/webhooks/terra", content=body, headers=signed(body), timeout=ANSWERED_WITHIN_S
    )
    assert (answer.status_code, answer.json()["code"]) == (503, "broker_unavailable")
    assert answer.headers["retry-after"]
    assert httpx2.get(f"{url}/health/ready", timeout=ANSWERED_WITHIN_S).status_code == 503


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_gateway_ends_in_order_when_asked(scratch: Path, number: signal.Signals) -> None:
    log = scratch / f"ends-{number.name}.log"
    with gateway(log) as (_, process):
        process.send_signal(number)
        assert process.wait(_UP_WITHIN_S) == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_taken_port_is_one_line(scratch: Path) -> None:
    with gateway(scratch / "first.log") as (port, _):
        run = subprocess.run(
            [sys.executable, "-m", "headwater", "serve", "--port", str(port)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_UP_WITHIN_S,
        )
    assert run.returncode == 1
    start = f"headwater: The gateway cannot listen on 127.0.0.1:{port}: Address already in use. "
    assert run.stderr.startswith(start)
    assert run.stderr.count("\n") == 1
