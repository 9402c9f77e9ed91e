"""Pages and actions of endpoints, to which notifications are posted."""

from asyncio import gather
from collections.abc import Mapping
from typing import Any, Final

from litestar import Response

from headwater.gateway.api.console.page_context import FormRefused, PageContext
from headwater.gateway.api.console.rendering import BASE, redirect
from headwater.gateway.api.problems import Problem
from headwater.gateway.client.requests import path
from headwater.processors.notifications import NotificationType

#: Lists of names in the form of a new endpoint.
_LISTS: Final = ("types", "workflows", "tables", "reasons")
#: Actions on an endpoint, by the name of their route.
_ACTIONS: Final = frozenset({"disable", "enable", "test", "rotate", "delete"})


async def endpoints(context: PageContext) -> Response[bytes]:
    """List of endpoints, and the form of a new one."""
    response = await context.api.get("/v1/endpoints")
    types = [kind.value for kind in NotificationType if kind is not NotificationType.TEST]
    return context.render("endpoints.html", "endpoints", response=response, types=types)


async def endpoint(context: PageContext) -> Response[bytes]:
    """An endpoint, and what was posted to it."""
    at = path("v1", "endpoints", context.path_value("endpoint"))
    response, deliveries = await gather(
        context.api.get(at), context.api.get(f"{at}/deliveries", context.filters())
    )
    return context.render("endpoint.html", "endpoints", response=response, deliveries=deliveries)


async def create_endpoint(context: PageContext, form: Mapping[str, str]) -> Response[bytes]:
    """Create an endpoint, and show its secret once."""
    body: dict[str, Any] = {name: form.get(name, "") for name in ("url", "description")}
    body |= {name: form.get(name, "").split() for name in _LISTS}
    response = await context.api.post("/v1/endpoints", body)
    if not response.ok:
        raise FormRefused({"status": response.answer.status, **response.problem})
    return context.render("endpoint_secret.html", "endpoints", response=response)


async def change_endpoint(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Disable, enable, test, rotate or delete an endpoint."""
    name, endpoint_id = context.path_value("action"), context.path_value("endpoint")
    if name not in _ACTIONS:
        raise Problem("not_found", f"expected one of {', '.join(sorted(_ACTIONS))}")
    at = path("v1", "endpoints", endpoint_id)
    send = context.api.delete(at) if name == "delete" else context.api.post(f"{at}/{name}")
    response = await send
    if not response.ok:
        raise FormRefused({"status": response.answer.status, **response.problem})
    if name == "rotate":
        return context.render("endpoint_secret.html", "endpoints", response=response)
    back = "/endpoints" if name == "delete" else path("endpoints", endpoint_id)
    return redirect(f"{BASE}{back}?done={name}")


async def repeat_notification(context: PageContext, _form: Mapping[str, str]) -> Response[bytes]:
    """Post a notification to an endpoint again."""
    endpoint_id, delivery = context.path_value("endpoint"), context.path_value("delivery")
    at = path("v1", "endpoints", endpoint_id, "deliveries", delivery)
    response = await context.api.post(f"{at}/replay")
    if not response.ok:
        raise FormRefused({"status": response.answer.status, **response.problem})
    return redirect(f"{BASE}{path('endpoints', endpoint_id)}?done=repeat")
