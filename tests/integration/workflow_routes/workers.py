"""Workers outside: over HTTP as a test speaks it, and that of docs/graphs/jobs.md in Node.js."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

PAGE = Path(__file__).resolve().parents[3] / "docs" / "graphs" / "jobs.md"
NODE = shutil.which("node")
#: What the worker of the tests does; the page's own would always do the same.
TASKS = """
export async function charge_card({ amount, first }, { attempt, idempotencyToken }) {
  if (attempt === 1 && first === "fails") throw new RangeError("not yet");
  if (attempt === 1 && first === "stays") await new Promise(() => setTimeout(() => {}, 1e9));
  return { receipt: `${amount} ${attempt} ${idempotencyToken}` };
}
"""


def file_of(name: str, language: str = "js") -> str:
    """A file that the page shows."""
    result = re.search(
        rf"^```{language} {name}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert result, f"{PAGE} shows no {name}"
    return result[1]


@contextmanager
def node_workers(
    folder: Path, base_url: str, count: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers that are at work."""
    assert NODE
    (folder / "worker.mjs").write_text(file_of("worker.mjs"))
    (folder / "tasks.mjs").write_text(TASKS)
    env = {"HEADWATER_JOBS_URL": base_url, "LEASE_MS": "1500"}
    processes = [subprocess.Popen([NODE, "worker.mjs"], cwd=folder, env=env) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def python_worker() -> dict[str, Any]:
    """What the page's worker in Python has."""
    result: dict[str, Any] = {"__name__": "worker"}
    exec(compile(file_of("worker.py", "python"), "worker.py", "exec"), result)  # noqa: S102 (ours)
    return result


def activate(api: httpx2.Client, type: str, **more: object) -> list[dict[str, Any]]:  # noqa: A002
    answer = api.post(
        f"{_jobs(api)}/activate", json={"types": [type, "another", type], "worker": "test", **more}
    )
    assert answer.status_code == 200, answer.text
    return list(answer.json()["jobs"])


def end(api: httpx2.Client, job: dict[str, Any], verb: str, body: object) -> httpx2.Response:
    return api.post(f"{_jobs(api)}/{job['key']}/{verb}", json=body)


def listed(api: httpx2.Client, type: str, position: str) -> list[Any]:  # noqa: A002
    """The jobs that have not ended, as operators see them."""
    answer = api.get(_jobs(api), params={"type": type, "min_position": position})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["jobs"])


def _jobs(api: httpx2.Client) -> str:
    """Where jobs are, beside the workflows that a client asks for."""
    return str(api.base_url).replace("/api/workflows", "/api/jobs").rstrip("/")
