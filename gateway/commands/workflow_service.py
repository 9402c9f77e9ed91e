"""The workflow service as commands reach it: over HTTP alone, by options that all of them have."""

import functools
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click
from typing_extensions import override

from headwater.gateway.commands.options import (
    OF_DEPLOYMENTS,
    URL_VARIABLE,
    WORKFLOWS_PATH,
    settings_from,
    several,
    url_of,
)
from headwater.gateway.commands.times import at
from headwater.gateway.loopback import DEVELOPMENT_SECRETS, is_loopback
from headwater.gateway.paths import NothingNamed
from headwater.schemas.failures import (
    INSTANCE_EXISTS,
    INSTANCE_NOT_ERRORED,
    INSTANCE_NOT_FOUND,
    INSTANCE_TERMINAL,
    JOB_LEASE_LOST,
    STEP_NOT_FOUND,
    TOKEN_NOT_FOUND,
    WORKFLOW_NOT_FOUND,
    ClientError,
)
from headwater.streams.clock import now_ms

if TYPE_CHECKING:
    import httpx

    from headwater.gateway.client import Client, InstanceHandle

T = TypeVar("T")

_HEADERS: Final = "HEADWATER_HEADERS"
_BROKEN_PIPE: Final = 141
ENVIRONMENT: Final = (
    "\n\n\b\nEnvironment:\n"
    "  HEADWATER_URL           where the service is, as for --url\n"
    "  HEADWATER_WORKFLOW_KEY  key of the workflow service, as for --key\n"
    "  HEADWATER_HEADERS       headers of every request, one `Name: value` a line\n"
    "  NO_COLOR                set to anything: no colours"
)

#: What to do next about a refusal.
_NEXT: Final[Mapping[str, str]] = {
    WORKFLOW_NOT_FOUND: "`headwater workflows list` shows those that exist; if this one is among "
    "them, not every worker was started with its app",
    INSTANCE_NOT_FOUND: "`headwater instances list` shows those that exist",
    INSTANCE_EXISTS: "`headwater instances restart` begins a new run of it",
    INSTANCE_TERMINAL: "`headwater instances restart` begins a new run of it",
    INSTANCE_NOT_ERRORED: "`headwater instances restart` begins a new run of any instance",
    JOB_LEASE_LOST: "`headwater jobs activate` takes it anew, if nobody else has it",
    "RUN_NOT_FOUND": "`headwater instances get` names the current run; the first is 0",
    "run_not_found": "`headwater runs list` shows those that exist",
    "ambiguous_run": "-w names one",
    **OF_DEPLOYMENTS,
    STEP_NOT_FOUND: "`headwater instances history` shows the keys of steps",
    TOKEN_NOT_FOUND: "`headwater instances tokens` shows those that live",
    "invalid_cursor": "leave out --cursor to begin anew",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the commands need of the world; tests have a clock and a network of their own."""

    clock: Callable[[], int] = now_ms
    network: "httpx.AsyncBaseTransport | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The service that a command's options name."""

    base_url: str
    headers: Mapping[str, str]
    key: str | None
    timeout_s: float
    retries: int
    surroundings: Surroundings

    def now(self) -> datetime:
        """Now."""
        return at(self.surroundings.clock())

    def ask(self, work: "Callable[[Client], Awaitable[T]]") -> T:
        """Does something with a client.

        Errors: ClickException with one line that says what to do next.
        """
        import asyncio  # noqa: PLC0415 (loads more than --help needs)

        return asyncio.run(self._ask(work))

    async def _ask(self, work: "Callable[[Client], Awaitable[T]]") -> T:
        async with self._client() as client:
            return await work(client)

    @asynccontextmanager
    async def _client(self) -> "AsyncIterator[Client]":
        from headwater.gateway.client import Client  # noqa: PLC0415 (as above)

        try:
            client = Client(
                self.base_url,
                headers=self.headers,
                key=self.key,
                timeout=self.timeout_s * 1000,
                retries=self.retries,
                transport=self.surroundings.network,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        try:
            async with client:
                yield client
        except NothingNamed as error:
            raise click.UsageError(str(error)) from error
        except ClientError as error:
            raise click.ClickException(explained(error.code, error.detail)) from error


@dataclass(frozen=True, slots=True)
class Named:
    """An instance, as a command line names it."""

    workflow: str
    id: str

    @override
    def __str__(self) -> str:
        return f"{self.workflow}/{self.id}"

    def of(self, client: "Client") -> "InstanceHandle[Any]":
        """Its handle."""
        return client.workflow(self.workflow).get(self.id)


def explained(code: str, detail: str) -> str:
    """An error in a line."""
    line = f"{code}: {detail}" if code else detail
    hint = _NEXT.get(code)
    return " ".join((f"{line.rstrip('.')}; {hint}" if hint else line).split())


class Header(click.ParamType):
    """A header, `Name: value`."""

    name = "NAME: VALUE"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        try:
            return header_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def header_of(line: str) -> tuple[str, str]:
    """Reads a header. What it holds may be a secret, so errors do not show it.

    Errors: ValueError.
    """
    name, colon, value = line.partition(":")
    name, value = name.strip(), value.strip()
    if not (colon and name and name.isascii() and not set(name) & set(' \t()<>@,;\\"/[]?={}')):
        raise ValueError("expected 'Name: value', found something else")
    return name.lower(), value


def service_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--url`, `-H`, `--key`, `--timeout` and `--retries`, given to a command as `service`."""

    @functools.wraps(command)
    def with_service(
        *,
        url: str | None,
        header: tuple[tuple[str, str], ...],
        key: str | None,
        timeout: float,
        retries: int,
        **rest: Any,  # noqa: ANN401 (what the command takes)
    ) -> Any:  # noqa: ANN401
        url = _whole(url or url_of(settings_from()))
        service = Service(
            base_url=url,
            headers={**_headers_of_environment(), **dict(header)},
            key=key or _development_key(url),
            timeout_s=timeout,
            retries=retries,
            surroundings=click.get_current_context().find_object(Surroundings) or Surroundings(),
        )
        return _to_the_end(lambda: command(service=service, **rest))

    return _OPTIONS(with_service)


_OPTIONS: Final = several(
    click.option(
        "--url",
        metavar="URL",
        envvar=URL_VARIABLE,
        help="Where the gateway is, or the service, if that is elsewhere: https://host, or whole, "
        "https://host/api/workflows. Default: HEADWATER_URL, else that of HEADWATER_HOST and "
        "HEADWATER_PORT.",
    ),
    click.option(
        "-H",
        "--header",
        type=Header(),
        multiple=True,
        help='A header of every request, as "Authorization: Bearer …"; repeatable. '
        "Added to those of HEADWATER_HEADERS, one a line.",
    ),
    click.option(
        "--key",
        envvar="HEADWATER_WORKFLOW_KEY",
        help="Key of the service. Default: HEADWATER_WORKFLOW_KEY, else, on this machine, the "
        "development key.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for an answer to one request.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(0, 100),
        default=3,
        show_default=True,
        help="How often a request is repeated that may be.",
    ),
)


#: `--workflow`.
workflow_option: Final = click.option(
    "-w", "--workflow", required=True, metavar="NAME", help="Name of the workflow."
)


def label_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--label`, several times; what commands get is texts by name."""
    return click.option(
        "--label", "labels", metavar="NAME=VALUE", multiple=True, callback=_labels, help=text
    )


def _labels(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    wrong = [each for each in given if "=" not in each]
    if wrong:
        raise click.BadParameter(f"expected NAME=VALUE, found {wrong[0]!r}")
    return {name: value for name, _, value in (each.partition("=") for each in given)}


def instance_named(command: Callable[..., Any]) -> Callable[..., Any]:
    """`WORKFLOW/ID`, as all output names it, or `--workflow` and `--id`: given as `instance`."""

    @click.argument("instance", required=False, metavar="[WORKFLOW/ID]")
    @click.option("-w", "--workflow", metavar="NAME", help="Name of the workflow, with --id.")
    @click.option("-i", "--id", "instance_id", metavar="ID", help="Id of the instance.")
    @functools.wraps(command)
    def named(
        *,
        instance: str | None,
        workflow: str | None,
        instance_id: str | None,
        **rest: Any,  # noqa: ANN401 (what the command takes)
    ) -> Any:  # noqa: ANN401
        given = (workflow, instance_id)
        if instance is not None:
            if given != (None, None):
                raise click.UsageError("expected WORKFLOW/ID or --workflow and --id, found both")
            workflow, _, instance_id = instance.partition("/")
        if not (workflow and instance_id):
            found = repr(instance) if instance is not None else _found(*given)
            raise click.UsageError(f"expected an instance, such as order/order-1, found {found}")
        return command(instance=Named(workflow, instance_id), **rest)

    return named


def _found(workflow: str | None, instance_id: str | None) -> str:
    if workflow is None and instance_id is None:
        return "none"
    return "--id alone" if workflow is None else "--workflow alone"


def _whole(url: str) -> str:
    """Where the service is: at its own path of a gateway, unless the URL has a path already."""
    return url if urlsplit(url).path.strip("/") else url.rstrip("/") + WORKFLOWS_PATH


def _development_key(url: str) -> str | None:
    """The key that everybody knows, for a service that only this machine can reach."""
    host = urlsplit(url).hostname or ""
    return DEVELOPMENT_SECRETS["workflow_key"] if is_loopback(host) else None


def _headers_of_environment() -> dict[str, str]:
    try:
        return _headers(os.environ.get(_HEADERS, "").splitlines())
    except ValueError as error:
        raise click.UsageError(f"{_HEADERS}: {error}") from error


def _headers(lines: Iterable[str]) -> dict[str, str]:
    return dict(header_of(line) for line in lines if line.strip())


def _to_the_end(run: Callable[[], T]) -> T:
    """Runs a command; a reader of its output that has seen enough is no error."""
    try:
        result = run()
        sys.stdout.flush()
    except BrokenPipeError as error:
        # Python flushes once more as it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(_BROKEN_PIPE) from error
    return result
