"""What operators ask of one user: what is there, what came last, and what waits."""

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from headwater.gateway.http.openapi import problem_responses
from headwater.projections.deliveries.of_user import UserWhole, user_whole
from headwater.projections.postgres.reader import PooledReader


def user_routes(reader: PooledReader) -> list[HTTPRouteHandler]:
    """The routes under /admin/user."""

    @get(
        "/user/{user_id:str}",
        summary="What is known of a user",
        description="Connections, how many rows there are by table, the last outcomes, and the "
        "deliveries that wait. All counts are 0 of somebody who is not known.",
        responses=problem_responses("store_unavailable"),
    )
    async def user(user_id: FromPath[str]) -> UserWhole:
        return await user_whole(reader, user_id)

    return [user]
