"""Access of commands to the workflow service: shared options, a client, readable errors."""

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

from headwater.gateway.cli.options import (
    DEPLOYMENT_HINTS,
    URL_VARIABLE,
    WORKFLOWS_PATH,
    combined,
    settings_from,
)
from headwater.gateway.cli.output import from_unix_ms
from headwater.gateway.client.requests import EmptyName
from headwater.gateway.settings.addresses import url_of
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS, is_loopback
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

    from headwater.gateway.client.client import Client
    from headwater.gateway.client.handles import InstanceHandle

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

#: The next step after an error, by its code.
_NEXT: Final[Mapping[str, str]] = {
    WORKFLOW_NOT_FOUND: "`headwater workflows list` shows those that exist; if this one is among "
    "them, not every worker was started with its app",
    INSTANCE_NOT_FOUND: "`headwater instances list` shows those that exist",
    INSTANCE_EXISTS: "`headwater instances restart` begins a new run of it",
    INSTANCE_TERMINAL: "`headwater instances restart` begins a new run of it",
    INSTANCE_NOT_ERRORED: "`headwater instances restart` begins a new run of any instance",
    JOB_LEASE_LOST: "`headwater jobs activate` activates it again, if no other worker has it",
    "RUN_NOT_FOUND": "`headwater instances get` names the current run; the first is 0",
    "run_not_found": "`headwater runs list` shows those that exist",
    "ambiguous_run": "-w names one",
    **DEPLOYMENT_HINTS,
    STEP_NOT_FOUND: "`headwater instances history` shows the keys of steps",
    TOKEN_NOT_FOUND: "`headwater instances tokens` shows the live ones",
    "invalid_cursor": "leave out --cursor to begin again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CliEnvironment:
    """Clock and network of commands, which tests replace.

    Attributes:
        clock: Milliseconds since 1970.
        network: Transport of HTTP requests; None for the real network.
    """

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
    environment: CliEnvironment

    def now(self) -> datetime:
        """Return the current time."""
        return from_unix_ms(self.environment.clock())

    def ask(self, work: "Callable[[Client], Awaitable[T]]") -> T:
        """Run `work` with a client.

        Raises:
            ClickException: A request failed; the message is one line with the next step.
        """
        import asyncio  # noqa: PLC0415 (loads more than --help needs)

        return asyncio.run(self._ask(work))

    async def _ask(self, work: "Callable[[Client], Awaitable[T]]") -> T:
        async with self._client() as client:
            return await work(client)

    @asynccontextmanager
    async def _client(self) -> "AsyncIterator[Client]":
        from headwater.gateway.client.client import Client  # noqa: PLC0415 (as above)

        try:
            client = Client(
                self.base_url,
                headers=self.headers,
                key=self.key,
                timeout=self.timeout_s * 1000,
                retries=self.retries,
                transport=self.environment.network,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        try:
            async with client:
                yield client
        except EmptyName as error:
            raise click.UsageError(str(error)) from error
        except ClientError as error:
            raise click.ClickException(explained(error.code, error.detail)) from error


@dataclass(frozen=True, slots=True)
class InstanceName:
    """An instance, as the command line names it."""

    workflow: str
    id: str

    @override
    def __str__(self) -> str:
        return f"{self.workflow}/{self.id}"

    def handle(self, client: "Client") -> "InstanceHandle[Any]":
        """Return the instance's handle."""
        return client.workflow(self.workflow).get(self.id)


def explained(code: str, detail: str) -> str:
    """Return an error and the next step, in one line."""
    line = f"{code}: {detail}" if code else detail
    hint = _NEXT.get(code)
    return " ".join((f"{line.rstrip('.')}; {hint}" if hint else line).split())


class Header(click.ParamType):
    """Parameter type of a header, `Name: value`."""

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
    """Parse a header. Its value may be a secret, so errors do not show it.

    Raises:
        ValueError: The line is no header.
    """
    name, colon, value = line.partition(":")
    name, value = name.strip(), value.strip()
    if not (colon and name and name.isascii() and not set(name) & set(' \t()<>@,;\\"/[]?={}')):
        raise ValueError("expected 'Name: value', found something else")
    return name.lower(), value


def service_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url`, `-H`, `--key`, `--timeout`, `--retries`; pass the command a `service`."""

    @functools.wraps(command)
    def with_service(
        *,
        url: str | None,
        header: tuple[tuple[str, str], ...],
        key: str | None,
        timeout: float,
        retries: int,
        **rest: Any,  # noqa: ANN401 (the command's own parameters)
    ) -> Any:  # noqa: ANN401
        url = _service_url(url or url_of(settings_from()))
        service = Service(
            base_url=url,
            headers={**_headers_of_environment(), **dict(header)},
            key=key or _development_key(url),
            timeout_s=timeout,
            retries=retries,
            environment=click.get_current_context().find_object(CliEnvironment) or CliEnvironment(),
        )
        return _ignoring_broken_pipe(lambda: command(service=service, **rest))

    return _OPTIONS(with_service)


_OPTIONS: Final = combined(
    click.option(
        "--url",
        metavar="URL",
        envvar=URL_VARIABLE,
        help="URL of the gateway, or of the service, if that is elsewhere: https://host, or whole, "
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
        help="How often a request that is safe to repeat is repeated.",
    ),
)


workflow_option: Final = click.option(
    "-w", "--workflow", required=True, metavar="NAME", help="Name of the workflow."
)


def label_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--label`, repeatable; commands get a dictionary."""
    return click.option(
        "--label", "labels", metavar="NAME=VALUE", multiple=True, callback=_labels, help=text
    )


def _labels(
    _context: click.Context, _parameter: click.Parameter, labels: tuple[str, ...]
) -> dict[str, str]:
    wrong = [label for label in labels if "=" not in label]
    if wrong:
        raise click.BadParameter(f"expected NAME=VALUE, found {wrong[0]!r}")
    return {name: value for name, _, value in (label.partition("=") for label in labels)}


def instance_named(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `WORKFLOW/ID`, or `--workflow` and `--id`; pass the command an `instance`."""

    @click.argument("instance", required=False, metavar="[WORKFLOW/ID]")
    @click.option("-w", "--workflow", metavar="NAME", help="Name of the workflow, with --id.")
    @click.option("-i", "--id", "instance_id", metavar="ID", help="Id of the instance.")
    @functools.wraps(command)
    def named(
        *,
        instance: str | None,
        workflow: str | None,
        instance_id: str | None,
        **rest: Any,  # noqa: ANN401 (the command's own parameters)
    ) -> Any:  # noqa: ANN401
        by_options = (workflow, instance_id)
        if instance is not None:
            if by_options != (None, None):
                raise click.UsageError("expected WORKFLOW/ID or --workflow and --id, found both")
            workflow, _, instance_id = instance.partition("/")
        if not (workflow and instance_id):
            found = repr(instance) if instance is not None else _options_present(*by_options)
            raise click.UsageError(f"expected an instance, such as order/order-1, found {found}")
        return command(instance=InstanceName(workflow, instance_id), **rest)

    return named


def _options_present(workflow: str | None, instance_id: str | None) -> str:
    if workflow is None and instance_id is None:
        return "none"
    return "--id alone" if workflow is None else "--workflow alone"


def _service_url(url: str) -> str:
    """Return the service's URL: at its path of a gateway, unless the URL has a path already."""
    return url if urlsplit(url).path.strip("/") else url.rstrip("/") + WORKFLOWS_PATH


def _development_key(url: str) -> str | None:
    """Return the public development key, if only this machine can reach the service."""
    host = urlsplit(url).hostname or ""
    return DEVELOPMENT_SECRETS["workflow_key"] if is_loopback(host) else None


def _headers_of_environment() -> dict[str, str]:
    try:
        return _headers(os.environ.get(_HEADERS, "").splitlines())
    except ValueError as error:
        raise click.UsageError(f"{_HEADERS}: {error}") from error


def _headers(lines: Iterable[str]) -> dict[str, str]:
    return dict(header_of(line) for line in lines if line.strip())


def _ignoring_broken_pipe(run: Callable[[], T]) -> T:
    """Run a command. A closed output, as of `| head`, is no error."""
    try:
        result = run()
        sys.stdout.flush()
    except BrokenPipeError as error:
        # Python flushes again at exit, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(_BROKEN_PIPE) from error
    return result
