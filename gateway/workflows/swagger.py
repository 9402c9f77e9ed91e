"""A page to try the API with: Swagger UI, with all of its code from a package that is installed.

The usual viewers load theirs from somebody else's server, and would send that server to whoever
types a key into them.
"""

import asyncio
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from litestar import Response, Router, get
from litestar._openapi.plugin import OpenAPIPlugin  # it alone has the description as it is served
from litestar.enums import OpenAPIMediaType
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.plugins import OpenAPIRenderPlugin
from typing_extensions import override

from headwater.gateway.http.pages import wants_html
from headwater.gateway.http.request_scope import AnyRequest

#: The package whose files are served; it is not imported, because its code is for other frameworks.
_PACKAGE: Final = "swagger_ui"
_ASSETS: Final[Mapping[str, str]] = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
}
#: Seconds for browsers to keep the assets: they change with a release.
_KEPT_S: Final = 86_400

#: The validator is a foreign server, which would be sent the address of the description.
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


#: Beside the page, because pages may not hold scripts (`SECURITY_HEADERS`).
_START: Final = b"""SwaggerUIBundle({url: "/schema/openapi.json", dom_id: "#ui", validatorUrl: null,
  deepLinking: true, persistAuthorization: false});
"""


class Description(OpenAPIRenderPlugin):
    """Serves the description at /schema and /schema/openapi.json.

    To make it takes a second, so it is made once, in a thread. Nobody needs a key to ask for it.
    """

    def __init__(self) -> None:
        super().__init__(path=["/", "/openapi.json"], media_type=OpenAPIMediaType.OPENAPI_JSON)
        self._made: asyncio.Task[bytes] | None = None
        self._content = b""

    async def make(self, request: AnyRequest) -> None:
        """Makes the description, unless it is made or being made."""
        if self._content:
            return
        if self._made is None:
            self._made = asyncio.create_task(asyncio.to_thread(self._rendered, request))
        self._content = await asyncio.shield(self._made)

    def _rendered(self, request: AnyRequest) -> bytes:
        plugin = request.app.plugins.get(OpenAPIPlugin)
        return self.render_json(request, plugin.provide_openapi_schema())

    @override
    def render(self, request: AnyRequest, openapi_schema: dict[str, Any]) -> bytes:
        """Gives the description, which was made before any request of the router is handled."""
        return self._content


class SwaggerPage(OpenAPIRenderPlugin):
    """Serves the page at /schema/swagger, and what it loads under /schema/assets."""

    def __init__(self, description: Description) -> None:
        super().__init__(path="/swagger")
        self._description = description

    @override
    def render(self, request: AnyRequest, openapi_schema: dict[str, Any]) -> bytes:
        """Renders the page."""
        return _PAGE.format(title=openapi_schema["info"]["title"]).encode()

    @override
    def receive_router(self, router: Router) -> None:
        """Adds what the page loads."""
        for name, media_type in _ASSETS.items():
            router.register(_asset(name, media_type, (_directory() / name).read_bytes()))
        router.register(_asset("start.js", "text/javascript", _START))
        router.before_request = self._prepare

    async def _prepare(self, request: AnyRequest) -> Response[Any] | None:
        """Leads a browser that asks for the description to the page; makes it for others."""
        at_root = request.scope["path"].rstrip("/") == "/schema"
        if at_root and wants_html(request.headers.get("accept", "")):
            return Response(b"", status_code=302, headers={"location": "/schema/swagger"})
        await self._description.make(request)
        return None


def _asset(name: str, media_type: str, content: bytes) -> HTTPRouteHandler:
    @get(f"/assets/{name}", include_in_schema=False, sync_to_thread=False)
    def asset() -> Response[bytes]:
        kept = {"cache-control": f"public, max-age={_KEPT_S}"}
        return Response(content, media_type=media_type, headers=kept)

    return asset


def _directory() -> Path:
    found = find_spec(_PACKAGE)
    assert found is not None  # noqa: S101 (it is a dependency)
    assert found.origin is not None  # noqa: S101 (it is a package with an __init__)
    return Path(found.origin).parent / "static"
