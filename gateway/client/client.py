"""`Client`: workflows of a server, over HTTP."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from secrets import SystemRandom
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, Unpack, overload
from urllib.parse import urlsplit

from headwater.gateway.client.deployments import Deployments
from headwater.gateway.client.handles import WorkflowHandle
from headwater.gateway.client.jobs import LEASE, JobHandle, TakenJob
from headwater.gateway.client.listing import InstanceFilter, Listing
from headwater.gateway.client.queues import Queues
from headwater.gateway.client.requests import Policy, Query, Repeat, Request, ulid_source
from headwater.gateway.client.runs import Runs
from headwater.gateway.settings.exposure import redacted
from headwater.processors.runs.durations import Duration, milliseconds_of, timeout_of
from headwater.schemas.answers import (
    InstanceFound,
    InstancePage,
    JobList,
    JobPage,
    WorkflowList,
    WorkflowListed,
)
from headwater.schemas.graph_answers import (
    GraphDefinition,
    GraphDeployment,
    GraphList,
    GraphVersion,
    GraphVersions,
)
from headwater.streams.authoring.workflow_values import Named, P_contra, R_co, WorkflowOf
from headwater.streams.clock import now_ms

if TYPE_CHECKING:
    import httpx2

    from headwater.gateway.client.answers import StreamItem
    from headwater.gateway.client.requests import HttpAnswer
    from headwater.gateway.client.session import Session


_new_ulid: Final = ulid_source(now_ms, os.urandom)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDependencies:
    """What a client needs besides a network; tests replace it.

    Attributes:
        sleep: Waits a number of seconds.
        draw: Returns a random number, 0 <= number < 1.
        new_id: Returns a new ULID.
    """

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    draw: Callable[[], float] = SystemRandom().random
    new_id: Callable[[], str] = _new_ulid


_DEFAULTS: Final = ClientDependencies()

T = TypeVar("T")


class Deployable(Protocol):
    """Anything with a definition, for example a GraphWorkflow."""

    def to_dict(self) -> dict[str, Any]:
        """The definition."""


class Client:
    """Client of a server's workflows.

    A client reads its own writes: its reads wait until the server's rows have what it wrote.
    Requests that are safe to repeat are repeated with exponential backoff.

        async with Client("http://127.0.0.1:8080/api/workflows", key="…") as client:
            instance = await client.workflow("order").create(params={"sku": "x"})
            output = await instance.result(timeout="1 minute")
    """

    def __init__(  # noqa: PLR0913 (independent settings)
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        admin_key: str | None = None,
        timeout: Duration = "30 seconds",
        retries: int = 3,
        transport: "httpx2.AsyncBaseTransport | None" = None,
        dependencies: ClientDependencies = _DEFAULTS,
    ) -> None:
        """Make a client; it connects when it is entered.

        Args:
            base_url: Whole URL, as in https://host/api/workflows.
            headers: Headers of every request.
            key: API key. Sent as Authorization, or as x-api-key if `headers` has Authorization.
            admin_key: Operator's key, needed to deploy code.
            timeout: Limit of one attempt; a number is milliseconds.
            retries: How often an attempt is repeated.
            transport: Network, for tests.
            dependencies: Clock, randomness and ids, for tests.

        Raises:
            ValueError: An argument is invalid.
        """
        self._base_url = _checked_url(base_url)
        self._headers = _headers(headers or {}, key)
        self._admin_key = _printable("admin_key", admin_key) if admin_key else None
        self._timeout_s = timeout_of("the timeout of a Client", timeout) / 1000
        self._policy = Policy(retries=retries)
        self._network = transport
        self._dependencies = dependencies
        self._http: httpx2.AsyncClient | None = None
        self._session: Session | None = None

    async def __aenter__(self) -> Self:
        # Imported here because they take longer to load than the rest of Headwater, and processes
        # that run authors' code import this module without needing them.
        import httpx2  # noqa: PLC0415

        from headwater.gateway.client.session import Session  # noqa: PLC0415
        from headwater.gateway.client.transport import Transport  # noqa: PLC0415

        self._http = httpx2.AsyncClient(
            base_url=self._base_url,
            headers=self._headers,
            timeout=self._timeout_s,
            transport=self._network,
        )
        transport = Transport(
            self._http, self._policy, self._dependencies.sleep, self._dependencies.draw
        )
        self._session = Session(transport, self._dependencies.new_id)
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
        """Return the workflows that the server knows."""
        listing = await self._entered.read("/workflows", WorkflowList)
        return listing.workflows

    def instances(
        self, status: str | None = None, **filters: Unpack[InstanceFilter]
    ) -> AsyncGenerator[InstanceFound]:
        """Yield instances of all workflows, newest first, as `WorkflowHandle.instances` does."""
        return self._listing.instances(status, **filters)

    async def page(
        self,
        status: str | None = None,
        *,
        cursor: str | None = None,
        **filters: Unpack[InstanceFilter],
    ) -> InstancePage:
        """Return a page of instances of all workflows, as `WorkflowHandle.page` does."""
        return await self._listing.page(status, cursor=cursor, **filters)

    @overload
    def workflow(self, workflow: WorkflowOf[P_contra, R_co]) -> WorkflowHandle[P_contra, R_co]: ...

    @overload
    def workflow(self, workflow: str | Named) -> WorkflowHandle[Any, Any]: ...

    def workflow(self, workflow: str | Named) -> WorkflowHandle[Any, Any]:
        """Return a handle of a workflow, by the workflow itself or its name; sends no request.

        The handle of a workflow made by @workflow(...) has its types.

        Raises:
            TypeError, ValueError: The workflow or its name is invalid.
        """
        return WorkflowHandle(self._entered, workflow)

    async def deploy(
        self, definition: Mapping[str, Any] | Deployable, *, after: str = ""
    ) -> GraphDeployment:
        """Deploy a graph: later instances of its name run this version.

        Deploying the same definition again creates no new version. `.warnings` of the answer lists
        parts that will not do what their author expects, with `.code`, `.path` and `.message`.

        Args:
            definition: Definition as JSON has it, or a GraphWorkflow.
            after: Digest that the newest version must have; "" for any.

        Raises:
            CommandRefusedError: The definition is invalid; the message lists all problems.
            ClientError: The request failed.
        """
        document = definition if isinstance(definition, Mapping) else definition.to_dict()
        name = document.get("name")
        if not isinstance(name, str):
            raise ValueError(f"expected a definition with a name, found {name!r}")  # noqa: TRY004
        request = Request(
            method="PUT",
            path=self._entered.sibling_path("graphs", name),
            # Repeating it deploys the same version, unless another was deployed in between.
            repeat=Repeat.UNSAFE if after else Repeat.SAFE,
            body=json.dumps(document, ensure_ascii=False, allow_nan=False).encode(),
            headers={"if-match": f'"{after}"'} if after else {},
        )
        return await self._entered.send(request, GraphDeployment)

    async def graphs(self) -> list[GraphVersion]:
        """Return the newest version of every deployed graph."""
        return (await self._read_graphs(GraphList)).graphs

    async def graph(self, name: str, version: int | None = None) -> GraphDefinition:
        """Return a deployed graph with its `.definition`: the newest version or the one named."""
        number = () if version is None else ("versions", str(version))
        return await self._read_graphs(GraphDefinition, name, *number)

    async def graph_versions(self, name: str) -> list[GraphVersion]:
        """Return the versions of a graph, newest first."""
        return (await self._read_graphs(GraphVersions, name, "versions")).versions

    async def _read_graphs(self, kind: type[T], *segments: str) -> T:
        where = self._entered.sibling_path("graphs", *segments)
        return await self._entered.send(Request(method="GET", path=where, repeat=Repeat.READ), kind)

    @property
    def deployments(self) -> Deployments:
        """Deployments of code: deploy, activate, roll back and read them."""
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
        """Activate jobs of external graph nodes, those that have waited longest first.

        Args:
            types: Tasks of the nodes.
            worker: Name of the worker, shown to operators.
            max: Largest number of jobs to return.
            lease: How long the worker holds a job.
            wait: How long the server may wait while there are no jobs.

        Raises:
            ClientError: The request failed.
        """
        wait_ms = milliseconds_of("wait", wait)
        body = {
            "types": [types] if isinstance(types, str) else list(types),
            "worker": worker,
            "max": max,
            "leaseMs": milliseconds_of("lease", lease),
            "waitMs": wait_ms,
        }
        request = Request(
            method="POST",
            path=self._entered.sibling_path("jobs", "activate"),
            repeat=Repeat.SAFE,  # The leases of jobs in a lost answer expire either way.
            body=json.dumps(body).encode(),
            waits_s=wait_ms / 1000,
        )
        answer = await self._entered.send(request, JobList)
        return [TakenJob(self._entered, job) for job in answer.jobs]

    async def jobs(
        self,
        type: str | None = None,  # noqa: A002 (as authors call it)
        *,
        page_size: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """Return a page of open jobs, oldest first, of one type or all.

        Activated jobs are included. Listing activates none.

        Args:
            type: Task of the jobs; None for all.
            page_size: Rows of the page.
            cursor: `.cursor` of the previous page.

        Raises:
            ClientError: The request failed.
        """
        query: Query = {"type": type, "pageSize": page_size, "cursor": cursor}
        return await self._entered.read(self._entered.sibling_path("jobs"), JobPage, query)

    @property
    def runs(self) -> Runs:
        """Runs by their ids alone: create them once per idempotency key, read and cancel them."""
        return Runs(self._entered)

    @property
    def queues(self) -> Queues:
        """Queues: publish messages."""
        return Queues(self._entered)

    def job(self, key: str) -> JobHandle:
        """Return a handle of a job, by the key it was activated with; sends no request."""
        return JobHandle(self._entered, key)

    async def send(self, request: Request) -> "HttpAnswer":
        """Send a request to any route of the gateway, below its URL; repeat it as it allows.

        Raises:
            ClientError: The request failed.
        """
        return await self._entered.transport.send(self._of_gateway(request))

    async def exchange(self, request: Request) -> "HttpAnswer":
        """Send a request as `send`, but once; return the answer of any status.

        Raises:
            ClientError: There was no answer.
        """
        return await self._entered.transport.exchange(self._of_gateway(request))

    def follow(self, request: Request, last_id: str = "") -> "AsyncGenerator[StreamItem[Any]]":
        """Yield the items of any stream of the gateway, below its URL, reconnecting as needed.

        Args:
            request: The request.
            last_id: Id after which to continue.

        Raises:
            ClientError: The stream cannot be opened again.
        """
        return self._entered.follow(self._of_gateway(request), last_id)

    def _of_gateway(self, request: Request) -> Request:
        return replace(request, path=f"{self._entered.gateway}{request.path}")

    @property
    def _listing(self) -> Listing:
        return Listing(self._entered, "/instances")

    @property
    def _entered(self) -> "Session":
        if self._session is None:
            raise RuntimeError("expected `async with Client(…) as client`, found it not entered")
        return self._session


def _checked_url(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(
            "expected a whole base URL, as in https://host/api/workflows, found "
            + redacted(base_url)
        )
    return base_url.rstrip("/")


def _headers(provided: Mapping[str, str], key: str | None) -> dict[str, str]:
    """Return the headers of every request. Values are secrets, so errors do not show them."""
    headers = {name.lower(): value for name, value in provided.items()}
    if key and "authorization" not in headers:
        headers["authorization"] = f"Bearer {key}"
    elif key:
        headers.setdefault("x-api-key", key)
    return {name: _printable(f"the header {name}", value) for name, value in headers.items()}


def _printable(where: str, value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise ValueError(f"expected printable ASCII in {where}, found other characters")
    return value
