"""`Client`: the workflows of a server, over HTTP alone."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from secrets import SystemRandom
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, overload
from urllib.parse import urlsplit

from headwater.gateway.client.deployments import Deployments
from headwater.gateway.client.graphs import Deployable, Graphs
from headwater.gateway.client.handles import WorkflowHandle
from headwater.gateway.client.jobs import LEASE, JobHandle, TakenJob, activate, open_jobs
from headwater.gateway.client.listing import Listing, Wanted
from headwater.gateway.client.retries import Policy
from headwater.gateway.client.runs import Runs
from headwater.gateway.redaction import redacted
from headwater.gateway.request_ids import ulid_source
from headwater.processors.runs.durations import Duration, timeout_of
from headwater.schemas.answers import InstanceFound, InstancePage, WorkflowList, WorkflowListed
from headwater.schemas.graph_answers import GraphDefinition, GraphVersion
from headwater.streams.authoring.workflow_values import Named, P_contra, R_co, WorkflowOf
from headwater.streams.clock import now_ms

if TYPE_CHECKING:
    import httpx

    from headwater.gateway.client.session import Session
    from headwater.schemas.answers import JobPage


_new_ulid: Final = ulid_source(now_ms, os.urandom)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a client needs of the world beside a network."""

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    #: 0 <= drawn < 1.
    draw: Callable[[], float] = SystemRandom().random
    new_id: Callable[[], str] = _new_ulid


_REAL: Final = World()


class Client:
    """The workflows of a server.

    It reads what it has written: its reads wait for its writes. Requests that may be repeated are,
    after a delay that grows.

        async with Client("http://127.0.0.1:8080/api/workflows", key="…") as client:
            instance = await client.workflow("order").create(params={"sku": "x"})
            output = await instance.result(timeout="1 minute")
    """

    def __init__(  # noqa: PLR0913 (each is a setting of its own)
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        admin_key: str | None = None,
        timeout: Duration = "30 seconds",
        retries: int = 3,
        transport: "httpx.AsyncBaseTransport | None" = None,
        world: World = _REAL,
    ) -> None:
        """Makes a client; it connects when it is entered.

        Shape:  base_url is whole, as in https://host/api/workflows; key goes into Authorization,
                or, if the headers have one of their own, into x-api-key; admin_key is that of
                operators, for those who deploy; timeout is that of one
                attempt, a number is milliseconds; retries is how often an attempt is repeated;
                transport and world are for tests.
        Errors: ValueError.
        """
        self._base_url = _checked(base_url)
        self._headers = _headers(headers or {}, key)
        self._admin_key = _printable("admin_key", admin_key) if admin_key else None
        self._timeout_s = timeout_of("the timeout of a Client", timeout) / 1000
        self._policy = Policy(retries=retries)
        self._network = transport
        self._world = world
        self._http: httpx.AsyncClient | None = None
        self._session: Session | None = None

    async def __aenter__(self) -> Self:
        # They take longer to load than all else of Headwater, and the processes that run authors'
        # code import this module without ever needing them.
        import httpx  # noqa: PLC0415

        from headwater.gateway.client.session import Session  # noqa: PLC0415
        from headwater.gateway.client.transport import Transport  # noqa: PLC0415

        self._http = httpx.AsyncClient(
            base_url=self._base_url,
            headers=self._headers,
            timeout=self._timeout_s,
            transport=self._network,
        )
        transport = Transport(self._http, self._policy, self._world.sleep, self._world.draw)
        self._session = Session(transport, self._world.new_id)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        http, self._http, self._session = self._http, None, None
        if http is not None:
            await http.aclose()

    async def workflows(self) -> list[WorkflowListed]:
        """The workflows that the server knows, each with its `.name`."""
        found = await self._entered.read("/workflows", WorkflowList)
        return found.workflows

    def instances(
        self, status: str | None = None, **wanted: Unpack[Wanted]
    ) -> AsyncGenerator[InstanceFound]:
        """Every instance of every workflow, the newest first, as `WorkflowHandle.instances`."""
        return self._listing.instances(status, **wanted)

    async def page(
        self, status: str | None = None, *, cursor: str | None = None, **wanted: Unpack[Wanted]
    ) -> InstancePage:
        """A page of the instances of all workflows, as `WorkflowHandle.page`."""
        return await self._listing.page(status, cursor=cursor, **wanted)

    @overload
    def workflow(self, workflow: WorkflowOf[P_contra, R_co]) -> WorkflowHandle[P_contra, R_co]: ...

    @overload
    def workflow(self, workflow: str | Named) -> WorkflowHandle[Any, Any]: ...

    def workflow(self, workflow: str | Named) -> WorkflowHandle[Any, Any]:
        """The handle of a workflow, given itself or by its name; nothing is asked for yet.

        Shape:  that of a workflow made by @workflow(...) has its types.
        Errors: TypeError, ValueError.
        """
        return WorkflowHandle(self._entered, workflow)

    async def deploy(
        self, definition: "Mapping[str, Any] | Deployable", *, after: str = ""
    ) -> GraphVersion:
        """Deploys a graph: the next instance of its name is made from it.

        Shape:  a definition as JSON has it, or a GraphWorkflow; after is the digest that the newest
                version has to have, "" for any. The same definition twice is one version.
        Errors: every ClientError; CommandRefusedError, which says all that is wrong.
        """
        return await Graphs(self._entered).deploy(definition, after)

    async def graphs(self) -> list[GraphVersion]:
        """The newest version of each graph that is deployed."""
        return await Graphs(self._entered).newest()

    async def graph(self, name: str, version: int | None = None) -> GraphDefinition:
        """A graph that is deployed, with its `.definition`: the newest version or another."""
        return await Graphs(self._entered).definition(name, version)

    async def graph_versions(self, name: str) -> list[GraphVersion]:
        """The versions of a graph, the newest first."""
        return await Graphs(self._entered).versions(name)

    @property
    def deployments(self) -> Deployments:
        """The deployments of code: to deploy, activate, roll back, and see."""
        return Deployments(self._entered, self._admin_key)

    async def activate_jobs(
        self,
        types: str | Iterable[str],
        *,
        worker: str,
        max: int = 1,  # noqa: A002 (as authors call it)
        lease: Duration = LEASE,
        wait: Duration = 0,
    ) -> list[TakenJob]:
        """Takes jobs of external nodes of graphs, those that have waited longest first.

        Shape:  types are the tasks of the nodes; worker is who asks, for people; each job is the
                worker's for the lease; while there are none the server waits, for `wait` at most.
        Errors: every ClientError.
        """
        return await activate(self._entered, types, worker=worker, most=max, lease=lease, wait=wait)

    async def jobs(
        self,
        type: str | None = None,  # noqa: A002 (as authors call it)
        *,
        page_size: int = 50,
        cursor: str | None = None,
    ) -> "JobPage":
        """A page of the jobs that have not ended, of one type or of all; `.cursor` goes on.

        Shape:  taken or not, the oldest first; to look takes none of them.
        Errors: every ClientError.
        """
        return await open_jobs(self._entered, type, page_size=page_size, cursor=cursor)

    @property
    def runs(self) -> Runs:
        """Runs by their ids alone: to create them once under a key, see and cancel them."""
        return Runs(self._entered)

    def job(self, key: str) -> JobHandle:
        """The handle of a job, by the key that it was activated with; nothing is asked for yet."""
        return JobHandle(self._entered, key)

    @property
    def _listing(self) -> Listing:
        return Listing(self._entered, "/instances")

    @property
    def _entered(self) -> "Session":
        if self._session is None:
            raise RuntimeError("expected `async with Client(…) as client`, found it not entered")
        return self._session


def _checked(base_url: str) -> str:
    place = urlsplit(base_url)
    if place.scheme not in ("http", "https") or not place.hostname or place.query or place.fragment:
        raise ValueError(
            "expected a whole base URL, as in https://host/api/workflows, found "
            + redacted(base_url)
        )
    return base_url.rstrip("/")


def _headers(given: Mapping[str, str], key: str | None) -> dict[str, str]:
    """The headers of every request. Values are not shown in errors: they are secrets."""
    headers = {name.lower(): value for name, value in given.items()}
    if key and "authorization" not in headers:
        headers["authorization"] = f"Bearer {key}"
    elif key:
        headers.setdefault("x-api-key", key)
    return {name: _printable(f"the header {name}", value) for name, value in headers.items()}


def _printable(where: str, value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise ValueError(f"expected printable ASCII in {where}, found other characters")
    return value
