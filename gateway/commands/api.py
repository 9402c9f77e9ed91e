"""Asking a running gateway over HTTP, and what to say when it does not answer."""

from collections.abc import Callable, Mapping
from functools import wraps
from http import HTTPStatus
from typing import Any, Final

import click
import httpx

from headwater.gateway.commands.options import OF_DEPLOYMENTS, admin_flags, settings_from, url_of
from headwater.gateway.paths import NothingNamed, path

_TIMEOUT_S: Final = 30.0


class Api:
    """A gateway, as the commands see it."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.client = httpx.Client(base_url=url, headers=dict(headers), timeout=_TIMEOUT_S)
        if (context := click.get_current_context(silent=True)) is not None:
            context.call_on_close(self.client.close)

    def get(self, path: str, **parameters: str | int | None) -> Any:  # noqa: ANN401 (JSON)
        """Asks; the answer as JSON.

        Errors: ClickException with one line.
        """
        given = {name: value for name, value in parameters.items() if value is not None}
        return self._ask("GET", path, params=given)

    def find(self, path: str) -> Any:  # noqa: ANN401 (JSON)
        """Asks for something that may not be there; None then, and while Postgres is away.

        Errors: ClickException with one line.
        """
        answer = self._send("GET", path)
        if answer.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE):
            return None
        return _accepted(answer)

    def post(self, path: str, body: object, **headers: str) -> Any:  # noqa: ANN401 (JSON)
        """Posts JSON; the answer as JSON.

        Errors: ClickException with one line.
        """
        return self._ask("POST", path, json=body, headers=headers)

    def upload(
        self, path: str, body: bytes, media_type: str, *, within_s: float, **parameters: str
    ) -> Any:  # noqa: ANN401 (JSON)
        """Posts bytes, about which the gateway may think for a while; the answer as JSON.

        Errors: ClickException.
        """
        headers = {"content-type": media_type}
        return self._ask(
            "POST", path, content=body, headers=headers, params=parameters, timeout=within_s
        )

    def _ask(self, method: str, path: str, **more: Any) -> Any:  # noqa: ANN401 (what httpx takes)
        return _accepted(self._send(method, path, **more))

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:  # noqa: ANN401 (as above)
        try:
            return self.client.request(method, path, **more)
        except httpx.TransportError as error:
            raise click.ClickException(
                f"expected Headwater at {self.client.base_url}, found no answer "
                f"({str(error) or type(error).__name__}); start it with `headwater up`, or say "
                "where it is: --url, HEADWATER_URL"
            ) from error
        except httpx.InvalidURL as error:
            raise click.UsageError(f"--url: {error}") from error


def admin_api(url: str | None, admin_key: str | None) -> Api:
    """The gateway, with the operators' key."""
    settings = settings_from(admin_key=admin_key)
    key = settings.admin_key.get_secret_value()
    return Api(url or url_of(settings), {"x-admin-key": key})


def admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--url` and `--admin-key`; the command is given the gateway that they name, as `api`."""

    @wraps(command)
    def with_api(*, url: str | None, admin_key: str | None, **given: Any) -> Any:  # noqa: ANN401 (what the command takes)
        return command(api=admin_api(url, admin_key), **given)

    return admin_flags(with_api)


def path_of(*segments: str) -> str:
    """A path whose segments may be anything that was typed.

    Errors: UsageError for an empty one.
    """
    try:
        return path(*segments)
    except NothingNamed as error:
        raise click.UsageError(str(error)) from error


def _accepted(answer: httpx.Response) -> Any:  # noqa: ANN401 (JSON)
    if not answer.is_success:
        raise click.ClickException(explain(answer))
    try:
        return answer.json()
    except ValueError as error:
        raise click.ClickException(something_else(answer)) from error


def something_else(answer: httpx.Response) -> str:
    """What to say of an answer that is none of Headwater's, in one line."""
    return (
        f"expected Headwater at {answer.url.copy_with(path='', query=None)}, found something else "
        "there; say where it is: --url, HEADWATER_URL"
    )


def explain(answer: httpx.Response) -> str:
    """A refusal in one line."""
    try:
        problem = answer.json()
        said = f"{problem['status']} {problem['code']}: {problem['detail']}"
        hint = OF_DEPLOYMENTS.get(problem["code"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code}: {answer.text[:200]}"
    if answer.status_code == HTTPStatus.UNAUTHORIZED and "x-admin-key" in answer.request.headers:
        hint = "set HEADWATER_ADMIN_KEY, or give --admin-key"
    return f"{said.rstrip('.')}; {hint}" if hint else said
