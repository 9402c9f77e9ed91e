"""Deployments of code, as a program deploys, activates and reads them."""

import json
import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, TypeVar

from headwater.gateway.client.answers import value_of
from headwater.gateway.client.artifacts import artifact_of
from headwater.gateway.client.requests import Query, Request, asked_for, members
from headwater.gateway.client.retries import Repeat
from headwater.schemas.deployment_answers import Deployment, DeploymentActive, DeploymentPage

if TYPE_CHECKING:
    from headwater.gateway.client.session import Session

T = TypeVar("T")

#: Seconds that a server may take to import what is deployed.
_CHECKED_WITHIN_S: Final = 60.0


class Deployments:
    """The deployments of a server. Each answer is as of now, whoever deployed.

    To read them takes either key, to change something that of operators.
    """

    def __init__(self, session: "Session", admin_key: str | None) -> None:
        self._session = session
        self._key = {"x-admin-key": admin_key} if admin_key else {}

    async def deploy(self, artifact: bytes | str | os.PathLike[str], *, app: str) -> Deployment:
        """Deploys an app, which changes nothing until it is activated.

        Shape:  the artifact is a folder, which is zipped; a zip or a wheel; or the bytes of one.
                The app is that in it, as package.module or package.module:attribute.
        Errors: every ClientError; CommandRefusedError, which says why it cannot be imported;
                ValueError, OSError.
        """
        content = artifact if isinstance(artifact, bytes) else artifact_of(artifact)
        request = Request(
            method="POST",
            path=self._session.of_gateway("v1", "deployments"),
            repeat=Repeat.SAFE,
            query=asked_for({"app": app}),
            body=content,
            headers={"content-type": "application/zip", **self._key},
            waits_s=_CHECKED_WITHIN_S,
        )
        return await self._send(request, Deployment)

    async def activate(self, deployment_id: str, *, replaces: str = "") -> DeploymentActive:
        """Has new runs begin on a deployment; those under way stay on theirs.

        Shape:  replaces is the id of the one that has to be active until then, "" for any.
        Errors: every ClientError.
        """
        return await self._steer(deployment_id, "activate", replaces=replaces, repeat=Repeat.SAFE)

    async def rollback(
        self, deployment_id: str | None = None, *, replaces: str = ""
    ) -> DeploymentActive:
        """Goes back to the deployment that was active before, or to one before that.

        Shape:  as activate; replaces makes it safe to ask again, which is done then.
        Errors: every ClientError; OutcomeUnknownError without replaces: to go back twice is to go
                back by two.
        """
        named = None if deployment_id is None else json.dumps(deployment_id)
        repeat = Repeat.SAFE if replaces or named else Repeat.UNSAFE
        body = members(deploymentId=named).encode()
        return await self._steer("rollback", replaces=replaces, repeat=repeat, body=body)

    async def active(self) -> Deployment:
        """The deployment that new runs begin on.

        Errors: every ClientError; CommandRefusedError while there is none.
        """
        return await self.get("active")

    async def get(self, deployment_id: str) -> Deployment:
        """A deployment.

        Errors: every ClientError.
        """
        return await self._read(Deployment, {}, deployment_id)

    async def page(self, *, limit: int = 50, cursor: str | None = None) -> DeploymentPage:
        """A page of the deployments, the newest first; `.cursor` goes on.

        Errors: every ClientError.
        """
        return await self._read(DeploymentPage, {"limit": limit, "cursor": cursor})

    async def all(self) -> AsyncGenerator[Deployment]:
        """Every deployment, the newest first.

        Errors: every ClientError.
        """
        cursor = None
        while True:
            page = await self.page(limit=100, cursor=cursor)
            for each in page.deployments:
                yield each
            if page.cursor is None:
                return
            cursor = page.cursor

    async def _read(self, kind: type[T], query: Query, *segments: str) -> T:
        request = Request(
            method="GET",
            path=self._session.of_gateway("v1", "deployments", *segments),
            repeat=Repeat.READ,
            query=asked_for(query),
            headers=self._key,
        )
        return await self._send(request, kind)

    async def _steer(
        self, *segments: str, replaces: str, repeat: Repeat, body: bytes | None = None
    ) -> DeploymentActive:
        tag = {"if-match": f'"{replaces}"'} if replaces else {}
        request = Request(
            method="POST",
            path=self._session.of_gateway("v1", "deployments", *segments),
            repeat=repeat,
            body=body,
            headers={**tag, **self._key},
        )
        return await self._send(request, DeploymentActive)

    async def _send(self, request: Request, kind: type[T]) -> T:
        return value_of(await self._session.transport.send(request), kind)
