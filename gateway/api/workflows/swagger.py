"""Swagger UI at /schema/swagger, served from an installed package.

The usual setups load scripts from a public CDN. Such a script could read the keys that users type
into the page.
"""

import asyncio
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from litestar import Response, Router, get
from litestar._openapi.plugin import OpenAPIPlugin  # only it has the served description
from litestar.enums import OpenAPIMediaType
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from typing_extensions import override

from headwater.gateway.api.front import wants_html
from headwater.gateway.api.request_scope import AnyRequest

#: Package of the files that are served. It is not imported: its code is for other frameworks.
_PACKAGE: Final = "swagger_ui"
_ASSETS: Final[Mapping[str, str]] = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
}
#: Seconds that browsers cache the assets, which change only with a release.
_CACHE_S: Final = 86_400

#: Paths of the description; the routes are those of Litestar's plugin.
_DESCRIPTION_PATHS: Final = frozenset({"/schema", "/schema/openapi.json"})

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="/schema/assets/swagger-ui.css">
<link rel="icon" href="data:,">
</head>
<body>
<div id="ui"></div>
<script src="/schema/assets/swagger-ui-bundle.js"></script>
<script src="/schema/assets/start.js"></script>
</body>
</html>
"""


#: A file of its own, because pages may not have inline scripts (`SECURITY_HEADERS`). Without
#: `validatorUrl: null` the page would send the address of the description to a public server.
_START: Final = b"""SwaggerUIBundle({url: "/schema/openapi.json", dom_id: "#ui", validatorUrl: null,
  deepLinking: true, persistAuthorization: false});
"""


class Description:
    """The description of the API as JSON, rendered once, in a thread.

    Rendering takes a second, and the route needs no key.
    """

    def __init__(self) -> None:
        self._rendering: asyncio.Task[bytes] | None = None

    async def content(self, request: AnyRequest) -> bytes:
        """Return the description; the first call renders it."""
        if self._rendering is None:
            self._rendering = asyncio.create_task(asyncio.to_thread(_rendered, request))
        return await asyncio.shield(self._rendering)


def _rendered(request: AnyRequest) -> bytes:
    plugin = request.app.plugins.get(OpenAPIPlugin)
    return JsonRenderPlugin.render_json(request, plugin.provide_openapi_schema())


class SwaggerPage(OpenAPIRenderPlugin):
    """Serves the page at /schema/swagger, and its assets under /schema/assets."""

    def __init__(self) -> None:
        super().__init__(path="/swagger")
        self._description = Description()

    @override
    def render(self, request: AnyRequest, openapi_schema: dict[str, Any]) -> bytes:
        """Render the page."""
        return _PAGE.format(title=openapi_schema["info"]["title"]).encode()

    @override
    def receive_router(self, router: Router) -> None:
        """Register the assets of the page."""
        for name, media_type in _ASSETS.items():
            router.register(_asset(name, media_type, (_directory() / name).read_bytes()))
        router.register(_asset("start.js", "text/javascript", _START))
        router.before_request = self._before_request

    async def _before_request(self, request: AnyRequest) -> Response[bytes] | None:
        """Return the description, or redirect a browser to the page."""
        path = request.scope["path"].rstrip("/")
        if path == "/schema" and wants_html(request.headers.get("accept", "")):
            return Response(b"", status_code=302, headers={"location": "/schema/swagger"})
        # Awaited for the page, too: Litestar would render the schema on the event loop.
        content = await self._description.content(request)
        if path not in _DESCRIPTION_PATHS:
            return None
        return Response(content, media_type=OpenAPIMediaType.OPENAPI_JSON)


def _asset(name: str, media_type: str, content: bytes) -> HTTPRouteHandler:
    @get(f"/assets/{name}", include_in_schema=False, sync_to_thread=False)
    def asset() -> Response[bytes]:
        headers = {"cache-control": f"public, max-age={_CACHE_S}"}
        return Response(content, media_type=media_type, headers=headers)

    return asset


def _directory() -> Path:
    spec = find_spec(_PACKAGE)
    assert spec is not None  # noqa: S101 (it is a dependency)
    assert spec.origin is not None  # noqa: S101 (it is a package with an __init__)
    return Path(spec.origin).parent / "static"
