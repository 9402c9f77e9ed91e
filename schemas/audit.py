"""Record of an authenticated operation (topic `audit`, key: the project)."""

import msgspec

from headwater.schemas.history import Json


class OperationAudited(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An authenticated client requested an operation, and received a response."""

    #: The entry.
    id: str
    #: The API key: its kind, and the beginning of its SHA-256.
    key_id: str
    #: The project.
    project_id: str
    #: The requested operation, such as world.queue.publish.
    action: str
    #: The path, without the names of users.
    resource: str
    #: `success`, or `failure` if it was rejected or did not complete.
    result: str
    #: Address of the client.
    ip: str
    #: User agent of the client.
    user_agent: str
    #: Further details: a JSON object.
    metadata: Json
    #: When it was done, Unix milliseconds, by the clock of the process that did it.
    at_ms: int
