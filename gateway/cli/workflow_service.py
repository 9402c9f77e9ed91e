"""Options of commands about workflows: the service, its headers, and names of instances."""

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
from typing_extensions import override

from headwater.gateway.cli.api import open_client, readable_errors
from headwater.gateway.cli.options import WORKFLOWS_PATH, combined, settings_from, url_option
from headwater.gateway.settings.addresses import url_of
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS, is_loopback

if TYPE_CHECKING:
    from headwater.gateway.client.handles import InstanceHandle
    from headwater.gateway.client.sync_client import SyncClient

_HEADERS: Final = "HEADWATER_HEADERS"
ENVIRONMENT: Final = (
    "\n\n\b\nEnvironment:\n"
    "  HEADWATER_URL           where the service is, as for --url\n"
    "  HEADWATER_WORKFLOW_KEY  key of the workflow service, as for --key\n"
    "  HEADWATER_HEADERS       headers of every request, one `Name: value` a line\n"
    "  NO_COLOR                set to anything: no colours"
)


@dataclass(frozen=True, slots=True)
class InstanceName:
    """An instance, as the command line names it."""

    workflow: str
    id: str

    @override
    def __str__(self) -> str:
        return f"{self.workflow}/{self.id}"

    def handle(self, client: "SyncClient") -> "InstanceHandle[Any]":
        """Return the instance's handle."""
        return client.workflow(self.workflow).get(self.id)


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
    """Add `--url`, `-H`, `--key`, `--timeout`, `--retries`; pass the command a `client`."""

    @functools.wraps(command)
    def with_client(
        *,
        url: str | None,
        header: tuple[tuple[str, str], ...],
        key: str | None,
        timeout: float,
        retries: int,
        **rest: Any,  # noqa: ANN401 (the command's own parameters)
    ) -> Any:  # noqa: ANN401
        url = _service_url(url or url_of(settings_from()))
        client = open_client(
            url,
            headers={**_headers_of_environment(), **dict(header)},
            # Of several keys the first is current.
            key=key.partition(",")[0] if key else _development_key(url),
            timeout=timeout * 1000,
            retries=retries,
        )
        with readable_errors():
            return command(client=client, **rest)

    return _OPTIONS(with_client)


_OPTIONS: Final = combined(
    url_option,
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
            received = repr(instance) if instance is not None else _options_present(*by_options)
            raise click.UsageError(f"expected an instance, such as order/order-1, found {received}")
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
