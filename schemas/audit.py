"""The record of an operation that somebody had a key for (topic `audit`, key: the project)."""

import msgspec

from headwater.schemas.history import Json


class OperationAudited(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Somebody with a valid key has asked for something to be done, and was answered."""

    #: The entry.
    id: str
    #: Which key it was: its kind, and the beginning of its SHA-256.
    key_id: str
    #: The project.
    project_id: str
    #: What was asked for, as world.queue.publish.
    action: str
    #: The path, without what names a user.
    resource: str
    #: `success`, or `failure` where it was refused or did not come to pass.
    result: str
    #: The address that it was asked from.
    ip: str
    #: The program that asked, as it calls itself.
    user_agent: str
    #: What else there is to say of it: a JSON object.
    metadata: Json
    #: When it was done, Unix milliseconds, by the clock of whoever did.
    at_ms: int
