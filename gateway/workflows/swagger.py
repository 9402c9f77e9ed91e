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
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
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

#: Where the description is; its routes are those of Litestar's plugin.
_DESCRIBED_AT: Final = frozenset({"/schema", "/schema/openapi.json"})

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


class Description:
    """The description of the API as JSON, made once, in a thread.

    To make it takes a second, and nobody needs a key to ask for it.
    """

    def __init__(self) -> None:
        self._made: asyncio.Task[bytes] | None = None

    async def content(self, request: AnyRequest) -> bytes:
        """Returns the description; makes it for the first who asks."""
        if self._made is None:
            self._made = asyncio.create_task(asyncio.to_thread(_rendered, request))
        return await asyncio.shield(self._made)


def _rendered(request: AnyRequest) -> bytes:
    plugin = request.app.plugins.get(OpenAPIPlugin)
    return JsonRenderPlugin.render_json(request, plugin.provide_openapi_schema())


class SwaggerPage(OpenAPIRenderPlugin):
    """Serves the page at /schema/swagger, and what it loads under /schema/assets."""

    def __init__(self) -> None:
        super().__init__(path="/swagger")
        self._description = Description()

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
        router.before_request = self._answer

    async def _answer(self, request: AnyRequest) -> Response[bytes] | None:
        """Gives the description, or leads a browser that asks for it to the page."""
        path = request.scope["path"].rstrip("/")
        if path == "/schema" and wants_html(request.headers.get("accept", "")):
            return Response(b"", status_code=302, headers={"location": "/schema/swagger"})
        # Also for pages that need some of it, which is made by then.
        content = await self._description.content(request)
        if path not in _DESCRIBED_AT:
            return None
        return Response(content, media_type=OpenAPIMediaType.OPENAPI_JSON)


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
