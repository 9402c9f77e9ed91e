"""Requests of commands to a gateway, and readable errors of them."""

from collections.abc import Callable, Mapping
from functools import wraps
from http import HTTPStatus
from typing import Any, Final

import click
import httpx

from headwater.gateway.cli.options import DEPLOYMENT_HINTS, admin_flags, settings_from
from headwater.gateway.client.requests import EmptyName, path
from headwater.gateway.settings.addresses import url_of

_TIMEOUT_S: Final = 30.0


class Api:
    """A gateway, as commands use it."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.client = httpx.Client(base_url=url, headers=dict(headers), timeout=_TIMEOUT_S)
        if (context := click.get_current_context(silent=True)) is not None:
            context.call_on_close(self.client.close)

    def get(self, path: str, **parameters: str | int | None) -> Any:  # noqa: ANN401 (JSON)
        """Return the answer of a GET request, as JSON.

        Raises:
            ClickException: The request failed; the message is one line.
        """
        present = {name: value for name, value in parameters.items() if value is not None}
        return self._request("GET", path, params=present)

    def find(self, path: str) -> Any:  # noqa: ANN401 (JSON)
        """Return the answer of a GET request; None if it is 404, or while Postgres is unavailable.

        Raises:
            ClickException: The request failed; the message is one line.
        """
        answer = self._send("GET", path)
        if answer.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE):
            return None
        return _json_of(answer)

    def post(self, path: str, body: object, **headers: str) -> Any:  # noqa: ANN401 (JSON)
        """Post JSON; return the answer as JSON.

        Raises:
            ClickException: The request failed; the message is one line.
        """
        return self._request("POST", path, json=body, headers=headers)

    def upload(
        self, path: str, body: bytes, media_type: str, *, within_s: float, **parameters: str
    ) -> Any:  # noqa: ANN401 (JSON)
        """Post bytes that the gateway may process for a while; return the answer as JSON.

        Raises:
            ClickException: The request failed; the message is one line.
        """
        headers = {"content-type": media_type}
        return self._request(
            "POST", path, content=body, headers=headers, params=parameters, timeout=within_s
        )

    def _request(self, method: str, path: str, **more: Any) -> Any:  # noqa: ANN401 (httpx's parameters)
        return _json_of(self._send(method, path, **more))

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:  # noqa: ANN401 (as above)
        try:
            return self.client.request(method, path, **more)
        except httpx.TransportError as error:
            raise click.ClickException(
                f"expected Headwater at {self.client.base_url}, found no answer "
                f"({str(error) or type(error).__name__}); start it with `headwater up`, or set "
                "its URL with --url or HEADWATER_URL"
            ) from error
        except httpx.InvalidURL as error:
            raise click.UsageError(f"--url: {error}") from error


def admin_api(url: str | None, admin_key: str | None) -> Api:
    """Return the gateway, with the operators' key."""
    settings = settings_from(admin_key=admin_key)
    key = settings.admin_key.get_secret_value()
    return Api(url or url_of(settings), {"x-admin-key": key})


def admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url` and `--admin-key`; pass the command the gateway that they name, as `api`."""

    @wraps(command)
    def with_api(*, url: str | None, admin_key: str | None, **values: Any) -> Any:  # noqa: ANN401 (the command's own)
        return command(api=admin_api(url, admin_key), **values)

    return admin_flags(with_api)


def path_of(*segments: str) -> str:
    """Return a path of segments that a user typed.

    Raises:
        UsageError: A segment is empty.
    """
    try:
        return path(*segments)
    except EmptyName as error:
        raise click.UsageError(str(error)) from error


def _json_of(answer: httpx.Response) -> Any:  # noqa: ANN401 (JSON)
    if not answer.is_success:
        raise click.ClickException(explain(answer))
    try:
        return answer.json()
    except ValueError as error:
        raise click.ClickException(unexpected_answer(answer)) from error


def unexpected_answer(answer: httpx.Response) -> str:
    """Return the error text of an answer that is not Headwater's, in one line."""
    return (
        f"expected Headwater at {answer.url.copy_with(path='', query=None)}, found something else "
        "there; set its URL with --url or HEADWATER_URL"
    )


def explain(answer: httpx.Response) -> str:
    """Return a problem document as a line."""
    try:
        problem = answer.json()
        text = f"{problem['status']} {problem['code']}: {problem['detail']}"
        hint = DEPLOYMENT_HINTS.get(problem["code"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code}: {answer.text[:200]}"
    if answer.status_code == HTTPStatus.UNAUTHORIZED and "x-admin-key" in answer.request.headers:
        hint = "set HEADWATER_ADMIN_KEY, or use --admin-key"
    return f"{text.rstrip('.')}; {hint}" if hint else text
