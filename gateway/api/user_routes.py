"""Operator route for a user: connections, rows, outcomes and parked deliveries."""

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from headwater.gateway.api.openapi import problem_responses
from headwater.projections.deliveries.of_user import UserWhole, user_whole
from headwater.projections.postgres.reader import PooledReader


def user_routes(reader: PooledReader) -> list[HTTPRouteHandler]:
    """Return the routes under /admin/user."""

    @get(
        "/user/{user_id:str}",
        summary="Get the data of a user",
        description="Connections, numbers of rows by table, the latest outcomes, and parked "
        "deliveries. All counts of an unknown user are 0.",
        responses=problem_responses("store_unavailable"),
    )
    async def user(user_id: FromPath[str]) -> UserWhole:
        return await user_whole(reader, user_id)

    return [user]
