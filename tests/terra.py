"""A stand-in for Terra as a process of its own, and somebody who takes what it posts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx2

from headwater.gateway.builtin.terra.client import Terra
from headwater.gateway.settings.terra import TerraAccess
from tests.e2e.system import SECRET, free_port, signed
from tests.waiting import ANSWERED_WITHIN_S, wait_until

#: A client's pauses are so much shorter.
HASTE = 50
KEYS = {"dev-id": "test", "x-api-key": "test"}


class Taken(ThreadingHTTPServer):
    """Takes deliveries, as Headwater would; the first of `refusals` are answered with a status."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.refusals: list[int] = []
        self.unsigned = 0
        self.url = f"http://127.0.0.1:{self.server_port}/webhooks/terra"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def types(self) -> list[str]:
        return [body.get("type", "untyped") for body in self.bodies]

    def days_of(self, kind: str) -> list[str]:
        """The days whose records have come, as often as they have."""
        result = [body["data"] for body in self.bodies if body.get("type") == kind]
        records = [record for data in result for record in data]
        return sorted(record["metadata"]["start_time"][:10] for record in records)


class _Handler(BaseHTTPRequestHandler):
    server: Taken

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        at_s = int(self.headers["terra-signature"].split(",")[0].removeprefix("t="))
        fits = signed(body, at_s)["terra-signature"] == self.headers["terra-signature"]
        self.server.unsigned += not fits
        refused = self.server.refusals.pop() if self.server.refusals else None
        if refused is None:
            self.server.bodies.append(json.loads(body))
        self.send_response(refused or 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class StandIn:
    """The stand-in, which may be started again after it has died."""

    def __init__(self, directory: Path, target: str, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = directory / "stand-in.log"
        self._file = directory / "terra.sqlite"
        self._target = target
        self._options = options
        self.process: subprocess.Popen[bytes]
        self.slept: list[float] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def start(self) -> None:
        argv = [sys.executable, "-m", "headwater", "terra-stand-in", "--port", str(self.port)]
        argv += ["--target", self._target, "--file", str(self._file), *self._options]
        env = os.environ | {"HEADWATER_TERRA_SECRETS": SECRET}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
        wait_until(self._answers, "the stand-in to answer")

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/stand-in").is_success
        except httpx2.TransportError:
            return False

    def look(self) -> dict[str, Any]:
        result: dict[str, Any] = httpx2.get(
            f"{self.url}/stand-in", timeout=ANSWERED_WITHIN_S
        ).json()
        return result

    def fail(self, kind: str, **more: object) -> None:
        result = httpx2.post(
            f"{self.url}/stand-in/faults", json={"kind": kind, **more}, timeout=ANSWERED_WITHIN_S
        )
        assert result.is_success, result.text

    def work(self) -> None:
        httpx2.post(
            f"{self.url}/stand-in/faults/clear", timeout=ANSWERED_WITHIN_S
        ).raise_for_status()

    def add(self, *user_ids: str, provider: str = "GARMIN", reference: str = "user_1") -> None:
        more = {"scopes": "DAILY", "created_at": "2026-01-01T00:00:00+00:00"}
        people = [
            {"user_id": item, "provider": provider, "reference_id": reference, **more}
            for item in user_ids
        ]
        httpx2.post(
            f"{self.url}/stand-in/people", json=people, timeout=ANSWERED_WITHIN_S
        ).raise_for_status()

    def has(self, reference: str) -> bool:
        """Whether a user has a connection there."""
        answer = httpx2.get(
            f"{self.url}/v2/userInfo",
            params={"reference_id": reference},
            headers=KEYS,
            timeout=ANSWERED_WITHIN_S,
        )
        return bool(answer.raise_for_status().json())

    def access(self, **more: object) -> TerraAccess:
        known = {"api": f"{self.url}/v2", "dev_id": "test", "api_key": "test", "rate": 1_000.0}
        return TerraAccess(**{**known, **more})

    def client(self, haste: float = HASTE, **more: object) -> Terra:
        """A client whose pauses are short; `slept` has how long they should have been."""

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            await asyncio.sleep(seconds / haste)

        return Terra(
            self.access(**more), draw=lambda: 0.0, wall_s=time.time, sleep=sleep, speedup=haste
        )


@contextmanager
def taking() -> Iterator[Taken]:
    server = Taken()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
