"""GitHub's tables. The repository of a row determines the partition that processes it."""

import msgspec

from headwater.schemas.tables import JsonText, Moment, Owner, table_of


class Push(msgspec.Struct):
    """A push to a branch or a tag of GitHub, including its creation and deletion."""

    #: GitHub's id of the repository, which does not change when it is renamed.
    repository_id: str
    #: Full name of the branch or tag, for example refs/heads/main.
    ref: str
    #: The commit after the push; zeros if the branch or tag was deleted.
    after: str
    #: When it was pushed, in whole seconds; the time of receipt if GitHub sends none.
    pushed_at: Moment
    #: The pusher: `github:` and GitHub's id of the account.
    user_id: str | None = None
    #: The pusher's account name.
    pusher: str | None = None
    #: Owner and name of the repository, for example octo-org/hello.
    repository: str | None = None
    #: The commit before the push; zeros if the branch or tag was created.
    before: str | None = None
    #: True if the push created the branch or tag.
    created: bool | None = None
    #: True if the push deleted the branch or tag.
    deleted: bool | None = None
    #: True if it was a force push.
    forced: bool | None = None
    #: Number of commits in the push; GitHub lists at most 2048.
    commits: int | None = None


class PullRequest(msgspec.Struct):
    """The current state of a GitHub pull request; every delivery contains the complete state."""

    #: GitHub's id of the repository, which does not change when it is renamed.
    repository_id: str
    #: The number of the pull request in its repository.
    number: str
    #: The author: `github:` and GitHub's id of the account.
    user_id: str | None = None
    #: The author's account name.
    author: str | None = None
    #: Owner and name of the repository, for example octo-org/hello.
    repository: str | None = None
    #: The last action, for example opened, edited, synchronize, labeled or closed.
    last_action: str | None = None
    #: open, closed or merged.
    state: str | None = None
    #: True while it is a draft.
    draft: bool | None = None
    #: Its title.
    title: str | None = None
    #: The branch that it is merged into.
    base_ref: str | None = None
    #: Names of its labels as a JSON array.
    labels: JsonText | None = None
    #: Lines added.
    additions: int | None = None
    #: Lines removed.
    deletions: int | None = None
    #: When it was opened.
    created_at: Moment | None = None
    #: When it last changed.
    changed_at: Moment | None = None
    #: When it was last closed; it may have been reopened since, see state.
    closed_at: Moment | None = None
    #: When it was merged.
    merged_at: Moment | None = None


PUSHES = table_of(Push, name="pushes", topic="pushes", owner=Owner.SUBJECT)
PULL_REQUESTS = table_of(
    PullRequest, name="pull_requests", topic="pull-requests", owner=Owner.SUBJECT
)
