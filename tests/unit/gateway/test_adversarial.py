"""No request stops the gateway: whatever is sent to whichever route is answered, and blocks nobody.

Law: each request has an answer, none is a 500, and the watch in the process has seen no callback of
the event loop compute for a quarter of a second. Processor time is what counts: the machine may be
busy with other things.

Kafka is in memory and Postgres is away. Routes come from the application's own table.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from psycopg import AsyncConnection
from typing_extensions import override

from headwater.gateway.api.app import LOOP_WATCH
from headwater.gateway.api.front import front_of
from headwater.gateway.api.json_bodies import BODY, BodySize
from headwater.gateway.settings.settings import Settings
from headwater.gateway.settings.sources import sources_with_secrets
from headwater.processors.signatures import sign
from headwater.processors.sources import Source
from headwater.projections.deliveries.queries import Reader
from headwater.schemas.errors import StoreUnavailable
from headwater.streams.loop_watch import BLOCKED_S, LoopWatch
from tests.conftest import SEEDS
from tests.unit.gateway.adversary import ITEMS, RAW, Call, Headers, Target, filled, targets_of
from tests.unit.gateway.issuer import NOW_S, token
from tests.unit.gateway.memory_app import memory_workflows
from tests.unit.gateway.test_all_routes import application
from tests.unit.gateway.workflow_fakes import MemoryCommands

ANSWERED_WITHIN_S = 60.0
MIB = 1024 * 1024
INDEX_KEY_BYTES_MAX = 2_704
#: Deliveries of every scheme, and of places in a body that nobody checks for us.
SOURCES = """
every_provider = true
[[source]]
name = "shop"
scheme = "plain"
secrets = ["a secret of the shop"]
type = "/type"
subject = "/data/0/id"
[[source]]
name = "slack"
scheme = "slack"
secrets = ["a secret of slack"]
[[source]]
name = "github"
scheme = "github"
secrets = ["a secret of github"]
subject = "/repository/owner/id"
"""
#: Keys by the beginning of a path, the longest first.
KEYS: dict[str, Headers] = {
    "/v1/deployments": [(b"x-admin-key", b"dev-admin-key")],
    "/v1/audit": [(b"x-admin-key", b"dev-admin-key")],
    "/v1/diagnostics": [(b"x-admin-key", b"dev-admin-key")],
    "/admin": [(b"x-admin-key", b"dev-admin-key")],
    "/v1/runs": [(b"authorization", b"Bearer dev-workflow-key")],
    "/v1/world": [(b"authorization", b"Bearer dev-world-key")],
    "/v1": [(b"authorization", b"Bearer " + token().encode())],
    "/api": [(b"authorization", b"Bearer dev-workflow-key")],
    "/console/log": [],
}


class AwayReader(Reader):
    """A Postgres that is away, and says so at once."""

    @override
    def with_own_pool(self, statement_timeout_s: float = 0) -> "AwayReader":
        return AwayReader("postgresql://headwater@127.0.0.1:1/headwater", connect_timeout_s=0.1)

    @override
    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        raise StoreUnavailable("expected Postgres, found none")
        yield


class Gateway:
    """A gateway that runs in this event loop, as a server would call it."""

    def __init__(self, folder: Path) -> None:
        file = folder / "sources.toml"
        file.write_text(SOURCES)
        self.settings = Settings(sources=str(file), terra_secrets="a secret of terra")
        self.sources = sources_with_secrets(self.settings, {})
        self.commands = MemoryCommands()
        self.app = application(
            folder,
            sources=str(file),
            workflows=memory_workflows(commands=self.commands),
            reader=AwayReader("postgresql://headwater@127.0.0.1:1/headwater"),
        )
        self.front = front_of(self.app)
        self.watch: LoopWatch = self.app.state[LOOP_WATCH]
        self.failures: list[str] = []
        #: The calls that cost the loop's thread most, in seconds, for the message of a failure.
        self.dearest: list[tuple[float, str]] = []

    async def ask(self, call: Call) -> int:
        """Sends a request; returns the status of its answer."""
        started: list[int] = []
        pieces = [call.body[at : at + 65_536] for at in range(0, len(call.body), 65_536)] or [b""]

        async def receive() -> dict[str, Any]:
            if not pieces:
                await asyncio.sleep(0)
                return {"type": "http.disconnect"}
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                started.append(message["status"])
                for name, value in message["headers"]:
                    assert b"\n" not in name + value, (call, name, value)

        before = time.thread_time()
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                await self.front(call.scope(self.app), receive, send)  # type: ignore[arg-type]
        except TimeoutError:
            self.failures.append(f"not answered: {call!r}")
            return 0
        cost = time.thread_time() - before
        self.dearest = sorted([*self.dearest, (cost, repr(call))], reverse=True)[:10]
        if len(started) != 1 or started[0] == 500:
            self.failures.append(f"{started}: {call!r}")
        return started[0] if started else 0


def check(gateway: Gateway) -> None:
    assert not gateway.failures, "\n".join(gateway.failures[:20])
    assert gateway.commands.sent
    for sent in gateway.commands.sent:
        assert all(map(is_index_key, (sent.workflow, sent.instance_id))), sent
    longest = gateway.watch.longest_cpu
    dearest = "\n".join(f"{cost:.3f} s: {call}" for cost, call in gateway.dearest)
    assert longest.cpu_seconds < BLOCKED_S, f"{longest}\n{dearest}"


def is_index_key(text: str) -> bool:
    """Whether Postgres can have a text in an index, with another one beside it."""
    return "\0" not in text and len(text.encode()) <= INDEX_KEY_BYTES_MAX // 2


def bytes_max(handler: Any) -> int:  # noqa: ANN401 (Litestar's)
    settings = Settings()
    size: BodySize = handler.opt.get(BODY, BodySize.SMALL)
    return size.bytes_max(settings.limits, settings.max_body_bytes)


def calls(targets: list[Target], random: Random, rounds: int, large: int) -> Iterator[Call]:
    """Odd paths, queries, headers and bodies for every route; large bodies for some of them."""
    for target in targets:
        for _ in range(rounds):
            for odd in ("path", "query", "headers"):
                yield target.call(random, odd=odd, body=b"{}" if target.body_max else b"")
            if target.body_max:
                for body in target.bodies(random, large=False):
                    yield target.call(random, body)
    with_body = [target for target in targets if target.body_max]
    for target in random.sample(with_body, min(large, len(with_body))):
        for body in target.bodies(random, large=True):
            yield target.call(random, body)


def deliveries(sources: tuple[Source, ...], random: Random, rounds: int) -> Iterator[Call]:
    """Signed deliveries of every source: small ones of all kinds, and as large as they may be."""
    for source in sources:
        for size in [0] * rounds * 8 + [10 * MIB - 256] * rounds:
            body = filled(random, size) if size else random.choice([*RAW, *ITEMS])
            if random.random() < 0.3:
                body = (
                    b'{"type":"daily","user":{"user_id":"u","scopes":%s},"data":[{"id":1}]}' % body
                )
            headers = sign(source.scheme, body, source.secrets[0], NOW_S, "delivery-1")
            sent = [(name.encode(), value.encode()) for name, value in headers.items()]
            yield Call("POST", source.paths[0], [(b"host", b"x"), *sent], body)


async def made(drawn: Iterator[Call]) -> AsyncIterator[Call]:
    """Makes calls in a thread: what large bodies cost to make is not the gateway's."""
    while (call := await asyncio.to_thread(next, drawn, None)) is not None:
        yield call


async def campaign(folder: Path, seed: int, *, rounds: int, large: int) -> None:
    random, gateway = Random(seed), Gateway(folder)
    targets = targets_of(gateway.app, KEYS, bytes_max)
    assert len(targets) > 100
    async with gateway.app.lifespan():
        async for call in made(calls(targets, random, rounds, large)):
            await gateway.ask(call)
        async for call in made(deliveries(gateway.sources, random, rounds)):
            # A signed delivery is kept, whatever it is, also without a body.
            assert await gateway.ask(call) == 200, call
    check(gateway)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_request_blocks_the_gateway_or_is_left_without_an_answer(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    asyncio.run(campaign(tmp_path, seed, rounds=1, large=4))


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_no_request_of_a_long_campaign_blocks_the_gateway(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    asyncio.run(campaign(tmp_path, seed, rounds=20, large=1_000))


def test_every_route_of_the_application_is_among_those_that_are_sent_to(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    sent = {(target.method, target.template) for target in targets_of(gateway.app, KEYS, bytes_max)}
    described = gateway.app.openapi_schema.paths or {}
    assert len(described) > 60
    templates = {re.sub(r":\w+}", "}", template) for _, template in sent}
    assert set(described) <= templates
    assert {"/console/login", "/webhooks/terra", "/webhooks/shop", "/"} <= {
        path for _, path in sent
    }
