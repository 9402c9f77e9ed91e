"""Decide how an errored run is retried: which entries its next run keeps.

A retry starts a new run of the same code with the same seed. The new run takes over entries of the
previous run, and its code replays over them; entries that it does not take over are executed again.
The entries of a run form a tree of joins, races and loops with leaves in it:

- The failed entry is executed again: the entry with the error that ended the run or, if that error
  belongs to no entry, the entry that errored last. Entries that errored after it, which the code
  never saw, are executed again as well. A container among them is reopened, and so are errored
  entries under it. If no entry has errored, the code itself failed: it replays over everything.
- If the command has a key, that entry and every entry first reached after it are executed again.
- Entries that were rolled back are executed again, because their effects are undone.
- All containers above entries that are executed again are reopened, even if they have a result; a
  loop drops the commits after that iteration. Losers of a reopened race may win now, and entries
  that the code no longer awaited may be awaited, except in iterations that stay finished.
- Of the open entries, sleeps and containers continue. Steps, waits and children restart: attempts
  were interrupted, no client can send events to a run that has ended, and children end with their
  parent.

Errors that the code handled are kept. An error was handled if a container above it has its result,
or if the loop around it has advanced to another iteration.
"""

from collections import defaultdict
from typing import Final

import msgspec

from headwater.processors.code.state import (
    CONTAINERS,
    CodeRun,
    Entry,
    iteration_of,
    scopes_above,
    trimmed,
)
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.limits import (
    DEFAULT_LIMITS,
    LOG_MESSAGE_MAX,
    SYSTEM,
    bounded,
    recorded,
)
from headwater.schemas.failures import INSTANCE_NOT_ERRORED, STEP_NOT_FOUND
from headwater.schemas.history import Limits, LogWritten, Reopened, RetryRun, RunStarted
from headwater.schemas.statuses import OPEN, EntryKind, EntryStatus, RunStatus

#: Statuses of containers that may still propagate an error.
_MAY_PROPAGATE: Final = OPEN | {EntryStatus.ERRORED}


def retry(run: CodeRun, command: RetryRun, limits: Limits = DEFAULT_LIMITS) -> Decision:
    """Start a new run of an errored instance that keeps completed entries."""
    if run.status is not RunStatus.ERRORED:
        return Rejection(
            INSTANCE_NOT_ERRORED,
            f"expected an errored instance to retry, found {run.instance_id} {run.status}; "
            "restart runs it again from the beginning",
        )
    run = _as_code_left_it(run)
    tree = _Tree(run.entries)
    problem = command.from_key is not None and tree.unreachable(command.from_key)
    if problem:
        return Rejection(STEP_NOT_FOUND, f"of {run.instance_id}, run {run.run_number}: {problem}")
    return _retried(run, command, _RetryPlan(run, tree, command.from_key), limits)


def _as_code_left_it(run: CodeRun) -> CodeRun:
    """Return the run as its code left it: entries canceled by its end are open again."""
    entries = dict(run.entries)
    for key in run.left:
        entries[key] = msgspec.structs.replace(entries[key], status=EntryStatus.PENDING)
    return msgspec.structs.replace(run, entries=entries, open={**run.open, **run.left})


def _retried(run: CodeRun, command: RetryRun, plan: "_RetryPlan", limits: Limits) -> Decision:
    restarted = [key for key in run.entries if key in plan.restarted]
    continued = {key: Reopened(key, None) for key in run.left if key not in plan.restarted}
    reopened = tuple(
        entry for key in run.entries if (entry := plan.reopened.get(key) or continued.get(key))
    )
    kept = run.entries.keys() - {*restarted, *(entry.key for entry in reopened)}
    started = RunStarted(
        run.params,
        run.seed,
        run.parent,
        kept=tuple(key for key in run.entries if key in kept),
        reopened=reopened,
        kind=run.kind,
        definition=run.definition,
        deployment=run.deployment,
        once=run.once,
        labels=run.labels,
        limits=recorded(limits),
        depth=run.depth,
        trace=run.trace,
    )
    data = {
        "from": command.from_key,
        "again": restarted,
        "reopened": [key for key in run.entries if key in plan.reopened],
    }
    message = (
        f"run {run.run_number} is retried; done again: {', '.join(restarted) or 'nothing'}; "
        f"kept: {len(run.entries) - len(restarted)} entries"
    )
    data_json = msgspec.json.encode(data).decode()
    line = LogWritten("info", SYSTEM, message[:LOG_MESSAGE_MAX], data_json, command.from_key)
    return [started, line]


class _Tree:
    """The entries of a run as a tree.

    Attributes:
        above: By key, the containers above the entry, with the iteration if it is a loop.
        latest: The latest recorded iterations of the loops.
    """

    def __init__(self, entries: dict[str, Entry]) -> None:
        self.entries = entries
        self.above = {key: self._above(key) for key in entries}
        self.latest: dict[str, int] = defaultdict(int)
        for containers in self.above.values():
            for key, iteration in containers:
                commits = entries[key].commits
                latest = max(self.latest[key], iteration or 0, max(commits, default=0))
                self.latest[key] = latest

    def _above(self, key: str) -> list[tuple[str, int | None]]:
        containers: list[tuple[str, int | None]] = []
        for scope, part in scopes_above(key):
            entry = self.entries.get(scope)
            if entry is not None and entry.kind in CONTAINERS:
                iteration = iteration_of(part) if entry.kind is EntryKind.LOOP else None
                containers.append((scope, iteration))
        return containers

    def unreachable(self, key: str) -> str | None:
        """Return why the code cannot reach an entry again, or None if it can."""
        if key not in self.entries:
            return f"expected the key of an entry, found {key!r}; loops forget old iterations"
        for scope, iteration in self.above[key]:
            loop = self.entries[scope]
            earliest = max(loop.trimmed, min(loop.commits, default=0))
            if iteration is not None and earliest > iteration:
                return f"expected a state of {scope} from before {key}, found it forgotten"
        return None

    def unhandled(self) -> dict[str, Entry]:
        """Return the entries with errors that the code may not have handled."""
        return {
            key: entry
            for key, entry in self.entries.items()
            if entry.status is EntryStatus.ERRORED
            and all(
                self.entries[scope].status in _MAY_PROPAGATE
                and iteration in (None, self.latest[scope])
                for scope, iteration in self.above[key]
            )
        }


class _RetryPlan:
    """The entries that a retry executes again.

    Attributes:
        restarted: Keys of entries that restart as if they had never been reached.
        reopened: Containers that continue, by key.
    """

    def __init__(self, run: CodeRun, tree: _Tree, from_key: str | None) -> None:
        self._tree = tree
        self.restarted = {key for key, entry in run.entries.items() if entry.rolled_back}
        self._open: set[str] = set()
        for key in _failed(run, tree, only_final_error=from_key is not None):
            (self._open if run.entries[key].kind in CONTAINERS else self.restarted).add(key)
        if from_key is not None:
            first = run.entries[from_key].ordinal
            later = {key for key, entry in run.entries.items() if entry.ordinal >= first}
            # A loop replays the iterations that it has trimmed before those that it has kept.
            self.restarted |= later - trimmed(run.entries)
        while self._expand():
            pass
        resume_at = self._resume_iterations()
        self.reopened = {
            key: self._reopened(key, resume_at.get(key, 0)) for key in self._open - self.restarted
        }
        self.restarted |= {key for key in run.open if _restarts(run.entries[key])}

    def _expand(self) -> bool:
        """Reopen containers and restart entries under them; return whether anything was added."""
        size = len(self.restarted) + len(self._open)
        for key in (*self.restarted, *self._open):
            self._open.update(scope for scope, _ in self._tree.above[key])
        resume_at = self._resume_iterations()
        for key, entry in self._tree.entries.items():
            if any(scope in self.restarted for scope, _ in self._tree.above[key]):
                self.restarted.add(key)
            elif entry.status is EntryStatus.CANCELLED and self._is_reachable(key, resume_at):
                (self._open if entry.kind in CONTAINERS else self.restarted).add(key)
        return len(self.restarted) + len(self._open) > size

    def _resume_iterations(self) -> dict[str, int]:
        """Return the iterations at which loops continue: the first with a repeated entry."""
        iterations = dict(self._tree.latest)
        for key in (*self.restarted, *self._open):
            for scope, iteration in self._tree.above[key]:
                if iteration is not None:
                    iterations[scope] = min(iterations[scope], iteration)
        return iterations

    def _is_reachable(self, key: str, resume_at: dict[str, int]) -> bool:
        """Return whether the code reaches an entry: no result or later iteration is past it."""
        return all(
            (scope in self._open or self._tree.entries[scope].status in OPEN)
            and (iteration is None or iteration >= resume_at[scope])
            for scope, iteration in self._tree.above[key]
        )

    def _reopened(self, key: str, resume_at: int) -> Reopened:
        """Reopen a container; a loop continues from its latest commit before `resume_at`."""
        commits = self._tree.entries[key].commits
        # A loop cannot continue without any state.
        discard_from = max(resume_at, min(commits, default=0)) + 1
        return Reopened(key, discard_from if max(commits, default=0) >= discard_from else None)


def _restarts(entry: Entry) -> bool:
    return entry.kind is not EntryKind.SLEEP and entry.kind not in CONTAINERS


def _failed(run: CodeRun, tree: _Tree, *, only_final_error: bool) -> set[str]:
    """Return the entries with unhandled errors from the end of the run on, and those under them.

    Args:
        run: The errored run.
        tree: Its entries.
        only_final_error: Return nothing if the error that ended the run belongs to no entry.
    """
    unhandled = tree.unhandled()
    sequences = [entry.sequence for entry in unhandled.values() if _is_final_error(run, entry)]
    if not sequences and not only_final_error:
        sequences = [entry.sequence for entry in unhandled.values()]
    if not sequences:
        return set()
    roots = {key for key, entry in unhandled.items() if entry.sequence >= max(sequences)}
    return {
        key
        for key in unhandled
        if key in roots or any(scope in roots for scope, _ in tree.above[key])
    }


def _is_final_error(run: CodeRun, entry: Entry) -> bool:
    final, own = run.failure, entry.failure
    if final is None or own is None:
        return False
    # The error of a join contains the errors of its branches; it is cut only when it ends the run.
    return final.name == own.name and bounded(final.message) == bounded(own.message)
