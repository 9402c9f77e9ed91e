"""One system for all of them: two gateways, a worker, a projector, Kafka and Postgres."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.databases import new_database
from tests.deployed_apps import code_of, deploying
from tests.e2e.system import System, opened
from tests.integration.workflow_routes.asking import KEY, MISSING, base, create, of, until
from tests.ticked import Ticked, serving


@pytest.fixture(scope="package")
def ticked() -> Iterator[Ticked]:
    with serving() as server:
        yield server


@pytest.fixture(scope="package")
def database(postgres: str) -> Iterator[str]:
    with new_database(postgres) as dsn:
        yield dsn


@pytest.fixture(scope="package")
def parts(scratch: Path, database: str, ticked: Ticked) -> Iterator[System]:
    directory = scratch / "workflow-routes"
    directory.mkdir()
    system = System(
        directory,
        database,
        HEADWATER_APP="tests.apps.service",
        HEADWATER_MAX_STEPS="20",
        HEADWATER_TICK_URL=ticked.url,
        HEADWATER_TICK_KEY="the-tick-key",
        HEADWATER_HOOK_KEYS="a key of hooks, of the tests",
    )
    with opened(system, ("worker", "project", "gateway", "gateway2")):
        system.wait(lambda: knows_all(system), "the workflows to be known")
        yield system


@pytest.fixture(scope="package")
def system(parts: System) -> System:
    """The parts; the tests of a module may have it with more than is there at first."""
    return parts


@pytest.fixture(scope="module")
def first(parts: System) -> str:
    """The deployment that is active from now on."""

    async def release() -> str:
        async with deploying(parts.bootstrap) as deployer:
            return await deployer.release(code_of("first", steps=1))

    return asyncio.run(release())


def knows_all(system: System) -> bool:
    answer = httpx2.get(f"{base(system)}/workflows", headers=KEY)
    positions = answer.headers.get("headwater-position", "").count("@")
    return answer.is_success and bool(answer.json()["workflows"]) and positions == 4


@pytest.fixture(scope="package")
def api(parts: System) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=base(parts), headers=KEY, timeout=30) as client:
        yield client


@pytest.fixture(scope="package", autouse=True)
def never(parts: System) -> Iterator["Future[httpx2.Response]"]:
    """The answer to a read of what never comes, which takes as long as a reader waits."""
    with ThreadPoolExecutor(1) as pool:
        url = f"{base(parts)}/workflows?min_position={MISSING}"
        yield pool.submit(httpx2.get, url, headers=KEY, timeout=30)


@pytest.fixture(scope="package")
def told(api: httpx2.Client) -> str:
    """An instance with seven steps and three lines, that has ended."""
    name = create(api, "telling", 7)
    assert api.post(of("telling", name, "events"), json={"type": "end"}).status_code == 200
    until(api, "telling", name, "complete")
    return name
