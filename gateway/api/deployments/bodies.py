"""Bodies of requests that activate deployments."""

from typing import Annotated

import msgspec

from headwater.gateway.api.workflows.bodies import Forced
from headwater.processors.deployments import ALL


class Activation(Forced, frozen=True, kw_only=True):
    """Options of an activation."""

    percent: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=ALL)],
        msgspec.Meta(
            description="Percentage of the new runs that begin on it, the others on the active "
            "deployment, which stays active. An instance in a share is in every greater one. 0 "
            "ends the share, 100 makes it the active deployment."
        ),
    ] = ALL


class Rollback(Forced, frozen=True, kw_only=True):
    """Target of a rollback."""

    deployment_id: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None,
        msgspec.Meta(
            description="A deployment that was active before; by default the previous one."
        ),
    ] = None
