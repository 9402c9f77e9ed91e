"""Start imports, one of each user at a time across all gateways.

The imports of a user are numbered. The next one may start when the latest has ended according to
Postgres, and its id is the next number: of two concurrent starts, the owner of that instance
accepts one.
"""

import hashlib
from typing import Final

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.users.ports import UserPorts
from headwater.gateway.api.users.starting import begin
from headwater.gateway.builtin.terra.instances import IMPORT, ImportParams

_LABEL: Final = "user"
_DIGEST_BYTES: Final = 16


async def next_import(ports: UserPorts, user_id: str) -> str:
    """Return the instance id of a user's next import.

    Raises:
        Problem: An import of the user is running.
        StoreUnavailable: Postgres did not answer.
    """
    digest = _digest(user_id)
    page = await ports.instances.instances(IMPORT, limit=1, labels={_LABEL: digest})
    if not page.rows:
        return f"{digest}-1"
    latest = page.rows[0]
    if not latest.details.ended:
        raise _under_way(latest.id)
    return f"{digest}-{int(latest.id.rpartition('-')[2]) + 1}"


async def begin_import(ports: UserPorts, instance_id: str, params: ImportParams) -> None:
    """Start an import.

    Raises:
        Problem: Another request has just started it, or no worker has the workflow.
    """
    labels = {_LABEL: _digest(params.user_id)}
    if not await begin(ports.commands, IMPORT, instance_id, params, labels):
        raise _under_way(instance_id)


def _digest(user_id: str) -> str:
    return hashlib.blake2b(user_id.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _under_way(instance_id: str) -> Problem:
    return Problem(
        "import_under_way",
        f"The import {instance_id} is running; wait until it has ended.",
        running={"workflow": IMPORT, "id": instance_id},
    )
