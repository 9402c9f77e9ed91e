"""Deployments of code: deploy, activate and read them."""

import json
import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, TypeVar

from headwater.gateway.client.answers import value_of
from headwater.gateway.client.artifacts import artifact_of
from headwater.gateway.client.requests import Query, Request, encoded_query, json_object
from headwater.gateway.client.retries import Repeat
from headwater.schemas.deployment_answers import Deployment, DeploymentActive, DeploymentPage

if TYPE_CHECKING:
    from headwater.gateway.client.session import Session

T = TypeVar("T")

#: Seconds that a server may take to import a deployment.
_IMPORT_TIMEOUT_S: Final = 60.0


class Deployments:
    """Deployments of a server. Answers are current, also after other clients' deployments.

    Reading takes either key, changing something takes the operators' key. All methods raise
    ClientError.
    """

    def __init__(self, session: "Session", admin_key: str | None) -> None:
        self._session = session
        self._key = {"x-admin-key": admin_key} if admin_key else {}

    async def deploy(self, artifact: bytes | str | os.PathLike[str], *, app: str) -> Deployment:
        """Deploy an app. It runs nothing until it is activated.

        Args:
            artifact: A folder, which is zipped; a zip or wheel; or the bytes of one.
            app: The app in the artifact, as package.module or package.module:attribute.

        Raises:
            CommandRefusedError: The app cannot be imported; the message says why.
            ValueError, OSError: The artifact cannot be read.
        """
        content = artifact if isinstance(artifact, bytes) else artifact_of(artifact)
        request = Request(
            method="POST",
            path=self._session.gateway_path("v1", "deployments"),
            repeat=Repeat.SAFE,
            query=encoded_query({"app": app}),
            body=content,
            headers={"content-type": "application/zip", **self._key},
            waits_s=_IMPORT_TIMEOUT_S,
        )
        return await self._send(request, Deployment)

    async def activate(self, deployment_id: str, *, replaces: str = "") -> DeploymentActive:
        """Start new runs on a deployment; existing runs stay on theirs.

        Args:
            deployment_id: Deployment to activate.
            replaces: Id of the deployment that must be active until then; "" for any.
        """
        return await self._activate(
            deployment_id, "activate", replaces=replaces, repeat=Repeat.SAFE
        )

    async def rollback(
        self, deployment_id: str | None = None, *, replaces: str = ""
    ) -> DeploymentActive:
        """Activate the deployment that was active before, or an earlier one.

        Args:
            deployment_id: Deployment to go back to; None for the previous one.
            replaces: As for `activate`; makes the request safe to repeat.

        Raises:
            OutcomeUnknownError: An answer was lost, and without `replaces` or an id the request is
                not repeated: it could go back by two deployments.
        """
        id_json = None if deployment_id is None else json.dumps(deployment_id)
        repeat = Repeat.SAFE if replaces or id_json else Repeat.UNSAFE
        body = json_object(deploymentId=id_json).encode()
        return await self._activate("rollback", replaces=replaces, repeat=repeat, body=body)

    async def active(self) -> Deployment:
        """Return the active deployment, on which new runs start.

        Raises:
            CommandRefusedError: No deployment is active.
        """
        return await self.get("active")

    async def get(self, deployment_id: str) -> Deployment:
        """Return a deployment."""
        return await self._read(Deployment, {}, deployment_id)

    async def page(self, *, limit: int = 50, cursor: str | None = None) -> DeploymentPage:
        """Return a page of deployments, newest first; `.cursor` is that of the next page."""
        return await self._read(DeploymentPage, {"limit": limit, "cursor": cursor})

    async def all(self) -> AsyncGenerator[Deployment]:
        """Yield all deployments, newest first."""
        cursor = None
        while True:
            page = await self.page(limit=100, cursor=cursor)
            for deployment in page.deployments:
                yield deployment
            if page.cursor is None:
                return
            cursor = page.cursor

    async def _read(self, kind: type[T], query: Query, *segments: str) -> T:
        request = Request(
            method="GET",
            path=self._session.gateway_path("v1", "deployments", *segments),
            repeat=Repeat.READ,
            query=encoded_query(query),
            headers=self._key,
        )
        return await self._send(request, kind)

    async def _activate(
        self, *segments: str, replaces: str, repeat: Repeat, body: bytes | None = None
    ) -> DeploymentActive:
        tag = {"if-match": f'"{replaces}"'} if replaces else {}
        request = Request(
            method="POST",
            path=self._session.gateway_path("v1", "deployments", *segments),
            repeat=repeat,
            body=body,
            headers={**tag, **self._key},
        )
        return await self._send(request, DeploymentActive)

    async def _send(self, request: Request, kind: type[T]) -> T:
        return value_of(await self._session.transport.send(request), kind)
