"""The tables of GitHub. Their rows belong to a repository, and are processed where it is."""

import msgspec

from headwater.schemas.tables import JsonText, Moment, Owner, table_of


class Push(msgspec.Struct):
    """A push to a branch or a tag of GitHub, its creation and its deletion among them."""

    #: GitHub's id of the repository; it stays when the repository is renamed.
    repository_id: str
    #: The branch or tag in full, for example refs/heads/main.
    ref: str
    #: The commit that it names since; zeros where it was deleted.
    after: str
    #: When it was pushed, in whole seconds; when it arrived, if GitHub says no time.
    pushed_at: Moment
    #: Who pushed: github: and GitHub's id of the account.
    user_id: str | None = None
    #: Who pushed: the account's name.
    pusher: str | None = None
    #: Owner and name of the repository, for example octo-org/hello.
    repository: str | None = None
    #: The commit that it named before; zeros where it was created.
    before: str | None = None
    #: True if the push made the branch or tag.
    created: bool | None = None
    #: True if the push removed the branch or tag.
    deleted: bool | None = None
    #: True if the push replaced commits that were there.
    forced: bool | None = None
    #: Commits in the push; GitHub lists 2048 at most.
    commits: int | None = None


class PullRequest(msgspec.Struct):
    """A pull request of GitHub as it stands: every action upon it brings all of it anew."""

    #: GitHub's id of the repository; it stays when the repository is renamed.
    repository_id: str
    #: The number of the pull request in its repository.
    number: str
    #: Who opened it: github: and GitHub's id of the account.
    user_id: str | None = None
    #: Who opened it: the account's name.
    author: str | None = None
    #: Owner and name of the repository, for example octo-org/hello.
    repository: str | None = None
    #: What was done last, for example opened, edited, synchronize, labeled or closed.
    last_action: str | None = None
    #: open, closed or merged.
    state: str | None = None
    #: True while it is a draft.
    draft: bool | None = None
    #: Its title.
    title: str | None = None
    #: The branch that it goes into.
    base_ref: str | None = None
    #: Names of its labels, a JSON array.
    labels: JsonText | None = None
    #: Lines added.
    additions: int | None = None
    #: Lines removed.
    deletions: int | None = None
    #: When it was opened.
    created_at: Moment | None = None
    #: When anything of it last changed.
    changed_at: Moment | None = None
    #: When it was last closed; it may be open again since, see state.
    closed_at: Moment | None = None
    #: When it was merged.
    merged_at: Moment | None = None


PUSHES = table_of(Push, name="pushes", topic="pushes", owner=Owner.SUBJECT)
PULL_REQUESTS = table_of(
    PullRequest, name="pull_requests", topic="pull-requests", owner=Owner.SUBJECT
)
