"""The base install has no server: what loads none of it, and what says which extra is missing."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from headwater.gateway.cli.main import EXTRAS, cli, missing_extra
from headwater.gateway.cli.on_demand import OnDemand

ROOT = Path(__file__).parents[3]
#: Those that are served on this machine, or read Kafka or Postgres themselves.
OF_THE_SERVER = {"terra-stand-in"}

LOADS = """
import asyncio, sys
from importlib import import_module

import headwater
from headwater.gateway.cli.main import cli

for command in {commands!r}:
    cli.commands[command].load()

async def enter():
    async with headwater.Client("http://127.0.0.1:1/api/workflows"):
        pass

asyncio.run(enter())
for name in headwater.__all__:
    getattr(headwater, name)
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_client_the_commands_over_http_and_the_public_face_load_no_server_library():
    on_demand = {name for name, item in cli.commands.items() if isinstance(item, OnDemand)}
    names = sorted(on_demand - OF_THE_SERVER)
    assert {"workflows", "instances", "jobs", "graph", "dlq", "sync", "doctor"} <= on_demand
    program = LOADS.format(commands=names)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert {"headwater", "httpx2", "click"} <= loaded
    # httpx2 takes zstandard where it is there, and does without it elsewhere.
    of_extras = {module for modules in EXTRAS.values() for module in modules} - {"zstandard"}
    assert loaded.isdisjoint(of_extras)


def test_every_package_of_an_extra_is_known_by_what_is_imported_of_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    distributions = packages_distributions()
    for extra, modules in EXTRAS.items():
        expected = {
            normal(re.split(r"[\[=<>]", item)[0])
            for item in project["optional-dependencies"][extra]
            if not item.startswith("headwater")
        } | ({"psycopg-pool"} if extra == "server" else set())
        found = {normal(name) for module in modules for name in distributions[module]}
        # It has a module of the same name, which forwards to that of multipart.
        result = found - {"python-multipart"}
        assert result == expected


def test_only_what_an_extra_brings_is_said_to_be_missing_from_one():
    missing = missing_extra(ModuleNotFoundError("…", name="aiokafka.structs"))
    assert missing is not None
    assert "pip install 'headwater[server]'" in missing.message
    assert missing_extra(ModuleNotFoundError("…", name="my_package")) is None
