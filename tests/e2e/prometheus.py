"""A real Prometheus with the alert rules of deploy/, in a hurry."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.waiting import ANSWERED_WITHIN_S

DEPLOYED = Path(__file__).parents[2] / "deploy" / "prometheus"
#: Where a rule waits, or looks back: minutes become seconds.
_WAITS = re.compile(r"^( +for:) \w+$", re.MULTILINE)
_WINDOWS = re.compile(r"\[\d+[mh]\]")
#: Ages that are compared with a limit of minutes.
_AGES = re.compile(r"(_seconds(?:\{[^}]*\})?\)) > \d+")
_SECONDS_AGO = "30s"


def impatient(rules: str) -> str:
    """Return rules that fire after seconds, not minutes; their metrics and labels are the same."""
    rules = _WAITS.sub(r"\1 1s", rules)
    rules = _WINDOWS.sub(f"[{_SECONDS_AGO}]", rules)
    return _AGES.sub(r"\1 > 2", rules)


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire; none while it starts."""
        try:
            answer = httpx2.get(f"{self._url}/api/v1/alerts", timeout=ANSWERED_WITHIN_S)
            alerts = answer.raise_for_status().json()["data"]["alerts"]
        except httpx2.HTTPError:
            return set()
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def need_prometheus() -> str:
    """Return the program of Prometheus; skip the test where there is none."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    return program


@contextmanager
def prometheus(directory: Path, port: int, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes processes every three seconds.

    Args:
        directory: For its files.
        port: Where it listens.
        targets: Addresses by the names of processes.
    """
    program = need_prometheus()
    directory.mkdir()
    configuration = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text())
    # A busy machine may take seconds to answer.
    configuration["global"] = {
        "scrape_interval": "3s",
        "scrape_timeout": "3s",
        "evaluation_interval": "1s",
    }
    configuration["scrape_configs"] = [
        {
            "job_name": "headwater",
            "static_configs": [
                {"targets": [address], "labels": {"name": name}}
                for name, address in targets.items()
            ],
        }
    ]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    (directory / "alerts.yml").write_text(impatient((DEPLOYED / "alerts.yml").read_text()))
    command = [
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()
