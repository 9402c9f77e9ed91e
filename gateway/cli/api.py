"""Access of commands to a gateway: a client, JSON of any route, and readable errors."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import click

from headwater.gateway.cli.options import WORKFLOWS_PATH, admin_flags, settings_from
from headwater.gateway.client.requests import (
    EmptyName,
    HttpAnswer,
    Repeat,
    Request,
    encoded_query,
    path,
)
from headwater.gateway.client.texts import from_unix_ms
from headwater.gateway.settings.addresses import url_of
from headwater.schemas.failures import NEXT_STEPS, ClientError
from headwater.streams.clock import now_ms

if TYPE_CHECKING:
    import httpx2

    from headwater.gateway.client.answers import StreamItem
    from headwater.gateway.client.sync_client import SyncClient


@dataclass(frozen=True, slots=True, kw_only=True)
class CliEnvironment:
    """Clock and network of commands, which tests replace.

    Attributes:
        clock: Milliseconds since 1970.
        network: Transport of HTTP requests; None for the real network.
    """

    clock: Callable[[], int] = now_ms
    network: "httpx2.AsyncBaseTransport | None" = None


def _environment() -> CliEnvironment:
    context = click.get_current_context(silent=True)
    return (context and context.find_object(CliEnvironment)) or CliEnvironment()


def network() -> "httpx2.AsyncBaseTransport | None":
    """Return the transport of HTTP requests; None for the real network."""
    return _environment().network


def now() -> datetime:
    """Return the current time."""
    return from_unix_ms(_environment().clock())


def open_client(url: str, **options: Any) -> "SyncClient":  # noqa: ANN401 (those of a client)
    """Return a client of the workflow service at `url`, which is closed when the command ends.

    Raises:
        UsageError: The URL or an option is invalid.
    """
    from headwater.gateway.client.sync_client import SyncClient  # noqa: PLC0415 (loads more than --help needs)

    try:
        client = SyncClient(url, transport=_environment().network, **options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if (context := click.get_current_context(silent=True)) is not None:
        context.call_on_close(client.close)
    return client


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn errors of a client into messages of one line, with the next step.

    Raises:
        ClickException: A request failed, or its path has an empty segment.
    """
    try:
        yield
    except EmptyName as error:
        raise click.UsageError(str(error)) from error
    except ClientError as error:
        raise click.ClickException(explained(error.code, error.detail)) from error


def explained(code: str, detail: str) -> str:
    """Return an error and the next step, in one line."""
    line = f"{code}: {detail}" if code else detail
    hint = NEXT_STEPS.get(code)
    return " ".join((f"{line.rstrip('.')}; {hint}" if hint else line).split())


class Api:
    """Routes of a gateway outside of the workflow service, as JSON.

    It takes the URL of either.

    Its methods raise ClickException if a request fails; the message is one line.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url = url.rstrip("/").removesuffix(WORKFLOWS_PATH)
        self.client = open_client(self.url + WORKFLOWS_PATH, headers=headers, retries=0)

    def get(self, path: str, waits_s: float = 0.0, /, **parameters: str | int | None) -> Any:  # noqa: ANN401 (JSON)
        """Return the answer of a GET request, as JSON; see `Request` for `waits_s`."""
        with readable_errors():
            return self._json(replace(_get(path, parameters), waits_s=waits_s))

    def find(self, path: str) -> Any:  # noqa: ANN401 (JSON)
        """Return the answer of a GET request; None if it is 404, or Postgres is unavailable."""
        with readable_errors():
            try:
                return self._json(_get(path, {}))
            except ClientError as error:
                if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE):
                    return None
                raise

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401 (JSON)
        """Post JSON; return the answer as JSON."""
        encoded = json.dumps(body).encode()
        with readable_errors():
            return self._json(Request(method="POST", path=path, repeat=Repeat.UNSAFE, body=encoded))

    def delete(self, path: str) -> Any:  # noqa: ANN401 (JSON)
        """Delete; return the answer as JSON."""
        with readable_errors():
            return self._json(Request(method="DELETE", path=path, repeat=Repeat.UNSAFE))

    def exchange(self, path: str, **parameters: str | int | None) -> HttpAnswer:
        """Return the answer of a GET request, whatever its status."""
        with readable_errors():
            return self.client.run(self.client.exchange(_get(path, parameters)))

    def follow(
        self, path: str, last_id: str, **parameters: str | int | None
    ) -> "Generator[StreamItem[Any]]":
        """Yield the items of a stream of server-sent events after an id, while it is open.

        Raises:
            ClientError: It cannot be opened, or has ended.
        """
        return self.client.iterate(self.client.follow(_get(path, parameters), last_id))

    def _json(self, request: Request) -> Any:  # noqa: ANN401 (JSON)
        from headwater.gateway.client.answers import value_of  # noqa: PLC0415 (loads more than --help needs)

        return value_of(self.client.run(self.client.send(request)), object)


def _get(path: str, parameters: Mapping[str, str | int | None]) -> Request:
    return Request(method="GET", path=path, repeat=Repeat.READ, query=encoded_query({**parameters}))


def admin_api(url: str | None, admin_key: str | None) -> Api:
    """Return the gateway, with the operators' key."""
    from headwater.gateway.settings.settings import revealed  # noqa: PLC0415 (loads slowly)

    settings = settings_from(admin_key=admin_key)
    return Api(url or url_of(settings), {"x-admin-key": revealed(settings.admin_key)[0]})


def admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url` and `--admin-key`; pass the command the gateway that they name, as `api`."""

    @wraps(command)
    def with_api(*, url: str | None, admin_key: str | None, **values: Any) -> Any:  # noqa: ANN401 (the command's own)
        with readable_errors():
            return command(api=admin_api(url, admin_key), **values)

    return admin_flags(with_api)


def path_of(*segments: str) -> str:
    """Return a path of segments that a user typed.

    Raises:
        UsageError: A segment is empty.
    """
    with readable_errors():
        return path(*segments)
