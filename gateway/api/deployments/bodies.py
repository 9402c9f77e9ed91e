"""Bodies of requests that activate deployments."""

from typing import Annotated

import msgspec

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.bodies import Body
from headwater.processors.deployments import ALL
from headwater.processors.runs.limits import REASON_MAX


class Forced(Body, frozen=True, kw_only=True):
    """Whether an activation is forced."""

    force: Annotated[
        bool, msgspec.Meta(description="Activate it even if open runs do not fit it.")
    ] = False
    reason: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_MAX)] | None,
        msgspec.Meta(description="Why, with `force`; the audit log keeps it."),
    ] = None

    def forced(self) -> str:
        """Return the reason of a forced activation; "" if it is not forced.

        Raises:
            Problem: It has `force` or `reason` alone.
        """
        if self.force is (self.reason is None):
            raise Problem(
                "invalid_body", "reason: expected it with `force`, and not without", field="reason"
            )
        return self.reason or ""


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
