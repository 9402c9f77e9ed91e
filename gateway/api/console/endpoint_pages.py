"""Pages of endpoints of notifications, and of the deliveries to one, with their forms."""

from asyncio import gather
from collections.abc import Mapping
from typing import Final

from litestar import Response

from headwater.gateway.api.console.actions import Form, View
from headwater.gateway.api.console.api_client import ApiResponse
from headwater.gateway.api.console.page_context import FormRefused, PageContext
from headwater.gateway.api.console.rendering import BASE, redirect
from headwater.gateway.client.requests import path
from headwater.processors.notifications import NotificationType

_ENDPOINTS: Final = "/v1/endpoints"
#: Fields of the form with names that are separated by spaces.
_LISTS: Final = ("types", "workflows", "tables", "reasons")
_TYPES: Final = tuple(type_ for type_ in NotificationType if type_ is not NotificationType.TEST)
#: Requests of forms that confirm by a text, and the text's name in `CONFIRMATIONS`.
_ACTIONS: Final = {
    "test": "endpoint_test",
    "disable": "endpoint_disable",
    "enable": "endpoint_enable",
}


async def endpoints(context: PageContext) -> Response[bytes]:
    """List of endpoints, and the form of a new one."""
    response = await context.api.get(_ENDPOINTS)
    return context.render("endpoints.html", "endpoints", response=response, types=_TYPES)


async def endpoint(context: PageContext) -> Response[bytes]:
    """An endpoint, and the deliveries to it."""
    url = _path_of(context)
    response, listed = await gather(
        context.api.get(url), context.api.get(f"{url}/deliveries", context.filters())
    )
    return context.render("endpoint.html", "endpoints", response=response, deliveries=listed)


async def create(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Create an endpoint, and show its secret once."""
    body = {
        "url": form.get("url", ""),
        "description": form.get("description", ""),
        **{name: form.get(name, "").split() for name in _LISTS},
    }
    return _shown(context, await context.api.post(_ENDPOINTS, body))


async def rotate(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Rotate the secret of an endpoint, and show the new one once."""
    return _shown(context, await context.api.post(f"{_path_of(context)}/rotate"))


async def change(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Test, disable or enable an endpoint."""
    action = context.path_value("action")
    done = _ACTIONS.get(action, "")
    response = await context.api.post(_path_of(context) + path(action))
    return _redirect(response, f"{_page_of(context)}?done={done}")


async def delete(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Delete an endpoint."""
    return _redirect(await context.api.delete(_path_of(context)), "/endpoints?done=endpoint_delete")


async def replay(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Send a notification again."""
    delivery = path("deliveries", context.path_value("delivery"), "replay")
    response = await context.api.post(_path_of(context) + delivery)
    return _redirect(response, f"{_page_of(context)}?done=endpoint_replay")


def _path_of(context: PageContext) -> str:
    return path("v1", "endpoints", context.path_value("endpoint"))


def _page_of(context: PageContext) -> str:
    return path("endpoints", context.path_value("endpoint"))


def _shown(context: PageContext, response: ApiResponse) -> Response[bytes]:
    _require(response)
    return context.render("endpoint_shown.html", "endpoints", response=response)


def _redirect(response: ApiResponse, address: str) -> Response[bytes]:
    _require(response)
    return redirect(BASE + address)


def _require(response: ApiResponse) -> None:
    """Check that a change was made.

    Raises:
        FormRefused: The API refused it.
    """
    if not response.ok:
        raise FormRefused({"status": response.answer.status, **response.problem})


PAGES: Final[Mapping[str, View]] = {
    "/endpoints": endpoints,
    "/endpoints/{endpoint:str}": endpoint,
}
_ONE: Final = (endpoint, "/endpoints/{endpoint}")
FORMS: Final[Mapping[str, Form]] = {
    "/endpoints": Form(create, endpoints, "/endpoints"),
    "/endpoints/{endpoint:str}/rotate": Form(rotate, *_ONE),
    "/endpoints/{endpoint:str}/delete": Form(delete, *_ONE),
    "/endpoints/{endpoint:str}/{action:str}": Form(change, *_ONE),
    "/endpoints/{endpoint:str}/deliveries/{delivery:str}/replay": Form(replay, *_ONE),
}
