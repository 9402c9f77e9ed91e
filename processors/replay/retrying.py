"""Decides how a run that has errored is tried again: what its next run keeps, and what not.

A retry begins a new run of the same code with the same seed. The new run takes over entries of the
run before it, and its code replays over them; what it does not take over is done again. Theory of
operation, for a run whose entries are a tree of joins, races and loops with leaves in it:

- What failed is done again: the entry whose error ended the run or, if that error is no entry's,
  the one that errored last; with it what errored later, which the code never saw. A container among
  them is reopened, and what errored beneath it is done again, too. If no entry has errored, the
  code itself has failed: it runs again over everything.
- With a key, that entry is done again, and each that was first reached after it.
- What was rolled back is done again, because it is undone.
- Above what is done again all containers are reopened, though they may have a result; a loop
  forgets the commits behind it. What had lost a race that is reopened may win now, and what the
  code no longer awaited it may await, but for iterations that stay past.
- Of what was open, sleeps and containers go on. Steps, waits and children begin anew: attempts were
  cut off, nobody can send events to a run that is over, and children end with their parent.

Errors that the code has met and gone on are kept. That an error was met is known where a container
above it has its result, and where a loop has gone on to another iteration.
"""

from collections import defaultdict
from typing import Final

import msgspec

from headwater.processors.replay.entry_keys import iteration_of, scopes_above
from headwater.processors.replay.state import CONTAINERS, CodeRun, Entry
from headwater.processors.replay.trimming import trimmed
from headwater.processors.runs.decisions import Decision, Rejection
from headwater.processors.runs.limits import LOG_MESSAGE_MAX, SYSTEM, USUAL, bounded, recorded
from headwater.schemas.failures import INSTANCE_NOT_ERRORED, STEP_NOT_FOUND
from headwater.schemas.history import Limits, LogWritten, Reopened, RetryRun, RunStarted
from headwater.schemas.statuses import OPEN, EntryKind, EntryStatus, RunStatus

#: Statuses of containers out of which an error may still come.
_UNMET: Final = OPEN | {EntryStatus.ERRORED}


def retry(run: CodeRun, command: RetryRun, limits: Limits = USUAL) -> Decision:
    """Begins a new run of an errored instance, which keeps what was done."""
    if run.status is not RunStatus.ERRORED:
        return Rejection(
            INSTANCE_NOT_ERRORED,
            f"expected an errored instance to retry, found {run.instance_id} {run.status}; "
            "restart runs it again from the beginning",
        )
    run = _as_left(run)
    tree = _Tree(run.entries)
    refused = command.from_key is not None and tree.unreachable(command.from_key)
    if refused:
        return Rejection(STEP_NOT_FOUND, f"of {run.instance_id}, run {run.run_number}: {refused}")
    return _retried(run, command, _Again(run, tree, command.from_key), limits)


def _as_left(run: CodeRun) -> CodeRun:
    """Return the run as its code left it: what was cancelled with its end is open."""
    entries = dict(run.entries)
    for key in run.left:
        entries[key] = msgspec.structs.replace(entries[key], status=EntryStatus.PENDING)
    return msgspec.structs.replace(run, entries=entries, open={**run.open, **run.left})


def _retried(run: CodeRun, command: RetryRun, again: "_Again", limits: Limits) -> Decision:
    anew = [key for key in run.entries if key in again.anew]
    continued = {key: Reopened(key, None) for key in run.left if key not in again.anew}
    reopened = tuple(
        each for key in run.entries if (each := again.reopened.get(key) or continued.get(key))
    )
    kept = run.entries.keys() - {*anew, *(each.key for each in reopened)}
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
    )
    told = {
        "from": command.from_key,
        "again": anew,
        "reopened": [key for key in run.entries if key in again.reopened],
    }
    message = (
        f"run {run.run_number} is retried; done again: {', '.join(anew) or 'nothing'}; "
        f"kept: {len(run.entries) - len(anew)} entries"
    )
    data = msgspec.json.encode(told).decode()
    return [started, LogWritten("info", SYSTEM, message[:LOG_MESSAGE_MAX], data, command.from_key)]


class _Tree:
    """The entries of a run as a tree.

    Shape:  above has, by key, the containers above an entry, and of loops the iteration it is in;
            latest the latest iteration of each loop of which something is recorded.
    """

    def __init__(self, entries: dict[str, Entry]) -> None:
        self.entries = entries
        self.above = {key: self._above(key) for key in entries}
        self.latest: dict[str, int] = defaultdict(int)
        for places in self.above.values():
            for key, iteration in places:
                commits = entries[key].commits
                latest = max(self.latest[key], iteration or 0, max(commits, default=0))
                self.latest[key] = latest

    def _above(self, key: str) -> list[tuple[str, int | None]]:
        found: list[tuple[str, int | None]] = []
        for scope, part in scopes_above(key):
            entry = self.entries.get(scope)
            if entry is not None and entry.kind in CONTAINERS:
                found.append((scope, iteration_of(part) if entry.kind is EntryKind.LOOP else None))
        return found

    def unreachable(self, key: str) -> str | None:
        """Says why the code cannot come to an entry again, if so."""
        if key not in self.entries:
            return f"expected the key of an entry, found {key!r}; loops forget old iterations"
        for scope, iteration in self.above[key]:
            loop = self.entries[scope]
            earliest = max(loop.trimmed, min(loop.commits, default=0))
            if iteration is not None and earliest > iteration:
                return f"expected a state of {scope} from before {key}, found it forgotten"
        return None

    def unmet(self) -> dict[str, Entry]:
        """The entries whose errors the code may not have met."""
        return {
            key: entry
            for key, entry in self.entries.items()
            if entry.status is EntryStatus.ERRORED
            and all(
                self.entries[scope].status in _UNMET and iteration in (None, self.latest[scope])
                for scope, iteration in self.above[key]
            )
        }


class _Again:
    """What is done again of a run.

    Shape:  anew begin as if they had never been reached; reopened are containers, by key.
    """

    def __init__(self, run: CodeRun, tree: _Tree, from_key: str | None) -> None:
        self._tree = tree
        self.anew: set[str] = {key for key, each in run.entries.items() if each.rolled_back}
        self._open: set[str] = set()
        for key in _failed(run, tree, only_its_own=from_key is not None):
            (self._open if run.entries[key].kind in CONTAINERS else self.anew).add(key)
        if from_key is not None:
            first = run.entries[from_key].ordinal
            later = {key for key, each in run.entries.items() if each.ordinal >= first}
            # A loop comes to what it has kept over what it has trimmed.
            self.anew |= later - trimmed(run.entries)
        while self._spread():
            pass
        goes_on = self._iterations()
        self.reopened = {
            key: self._reopened(key, goes_on.get(key, 0)) for key in self._open - self.anew
        }
        self.anew |= {key for key in run.open if _begins_anew(run.entries[key])}

    def _spread(self) -> bool:
        """Adds what has to be reopened, and what begins anew beneath that; False when all is."""
        size = len(self.anew) + len(self._open)
        for key in (*self.anew, *self._open):
            self._open.update(scope for scope, _ in self._tree.above[key])
        goes_on = self._iterations()
        for key, entry in self._tree.entries.items():
            if any(scope in self.anew for scope, _ in self._tree.above[key]):
                self.anew.add(key)
            elif entry.status is EntryStatus.CANCELLED and self._is_in_reach(key, goes_on):
                (self._open if entry.kind in CONTAINERS else self.anew).add(key)
        return len(self.anew) + len(self._open) > size

    def _iterations(self) -> dict[str, int]:
        """The iterations in which loops go on: the first of which anything is done again."""
        found = dict(self._tree.latest)
        for each in (*self.anew, *self._open):
            for scope, iteration in self._tree.above[each]:
                if iteration is not None:
                    found[scope] = min(found[scope], iteration)
        return found

    def _is_in_reach(self, key: str, goes_on: dict[str, int]) -> bool:
        """Whether the code comes to an entry, because no result and no iteration is past it."""
        return all(
            (scope in self._open or self._tree.entries[scope].status in OPEN)
            and (iteration is None or iteration >= goes_on[scope])
            for scope, iteration in self._tree.above[key]
        )

    def _reopened(self, key: str, goes_on: int) -> Reopened:
        """How a container goes on: a loop from its latest commit before what is done again."""
        commits = self._tree.entries[key].commits
        # Without a state a loop could not go on at all.
        forgotten = max(goes_on, min(commits, default=0)) + 1
        return Reopened(key, forgotten if max(commits, default=0) >= forgotten else None)


def _begins_anew(entry: Entry) -> bool:
    return entry.kind is not EntryKind.SLEEP and entry.kind not in CONTAINERS


def _failed(run: CodeRun, tree: _Tree, *, only_its_own: bool) -> set[str]:
    """What errored and was not met, from what ended the run on, and all of it beneath that.

    Shape:  with only_its_own nothing, unless the error that ended the run is an entry's.
    """
    unmet = tree.unmet()
    ended_it = [entry.sequence for entry in unmet.values() if _is_its_error(run, entry)]
    if not ended_it and not only_its_own:
        ended_it = [entry.sequence for entry in unmet.values()]
    if not ended_it:
        return set()
    roots = {key for key, entry in unmet.items() if entry.sequence >= max(ended_it)}
    return {
        key for key in unmet if key in roots or any(scope in roots for scope, _ in tree.above[key])
    }


def _is_its_error(run: CodeRun, entry: Entry) -> bool:
    mine, its = run.failure, entry.failure
    if mine is None or its is None:
        return False
    # That of a join is made of others, and cut only where it leaves the code.
    return mine.name == its.name and bounded(mine.message) == bounded(its.message)
