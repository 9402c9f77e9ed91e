"""Orders of operators: counted, confirmed, begun, followed to their end, and printed."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Final, TypeAlias

import click
from typing_extensions import override

from headwater.gateway.cli.api import Api, admin_options, path_of
from headwater.gateway.cli.options import combined, confirm, detach_option, yes_option
from headwater.gateway.cli.output import counted, say_progress
from headwater.gateway.cli.results import Result, Table, prints

#: State of an operation, as its route returns it.
Operation: TypeAlias = dict[str, Any]

_RUNNING: Final = (
    *("running", "deleting", "erasing"),
    *("building", "switching", "switching_back"),
)


class Order:
    """An order of a durable operation, which is carried out even if the command ends.

    A POST to `path` begins it, or counts what it would change; a GET by its id returns its state.

    Attributes:
        name: Name of an operation.
        nouns: Singular and plural of what it changes.
        done: Participle of what happens to them, for example "deleted".
        pause_s: Seconds between two polls.
        body: Body of the request.
    """

    name: str
    nouns: tuple[str, str]
    done: str
    pause_s = 1.0

    def __init__(self, api: Api, body: Operation, path: str = "") -> None:
        self.api = api
        self.body = body
        self.path = path or path_of("admin", f"{self.name}s")

    def begin(self, *, dry_run: bool) -> Operation:
        """Begin the operation, or count what it would change; return its first state."""
        body = {**self.body, "dry_run": True} if dry_run else self.body
        return dict(self.api.post(self.path, body))

    def poll(self, state: Operation) -> Operation:
        """Return the next state."""
        return dict(self.api.get(self.path + path_of(state["id"])))

    def effect(self, state: Operation) -> str:
        """Return a sentence with what the order would change, after counting."""
        return f"{counted(state['matched'], *self.nouns)} would be {self.done}."

    def progress(self, state: Operation) -> str:
        """Return the progress as text."""
        raise NotImplementedError

    def summary(self, state: Operation) -> str:
        """Return the state at the end as text."""
        return f"{self.name} {state['id']} {state['state']}: {self.progress(state)}"

    def answer(self, state: Operation) -> object:
        """Return what `--json` prints."""
        return state

    def tables(self, state: Operation) -> Sequence[Table]:
        """Return tables with what the texts do not show."""
        del state
        return ()

    def carry_out(self, *, dry_run: bool, yes: bool, detach: bool = False) -> Result:
        """Count, ask for confirmation unless `yes`, begin, and follow to the end unless `detach`.

        Nothing is counted in advance if no confirmation is needed.
        """
        if dry_run or not yes:
            state = self.followed(self.begin(dry_run=True), quiet=True)
            if dry_run:
                return self._result(state, self.effect(state))
            confirm(self.effect(state), "Continue?")
        return self.finish(self.begin(dry_run=False), detach=detach)

    def finish(self, state: Operation, *, detach: bool) -> Result:
        """Follow an operation to its end, unless `detach`; return its result."""
        quiet = bool(click.get_current_context().params.get("as_json"))
        state = state if detach else self.followed(state, quiet=quiet)
        return self._result(state, self.summary(state))

    def followed(self, state: Operation, *, quiet: bool) -> Operation:
        """Poll until the operation has ended; print progress when it changes, unless `quiet`."""
        shown = ""
        while state["state"] in _RUNNING:
            if not quiet and (text := self.progress(state)) != shown:
                shown = text
                say_progress(text)
            time.sleep(self.pause_s)
            state = self.poll(state)
        if shown:
            say_progress("")
        return state

    def is_failed(self, state: Operation) -> bool:
        """Return whether the exit code is 1."""
        return bool(state["state"] == "failed")

    def _result(self, state: Operation, text: str) -> Result:
        failed = self.is_failed(state)
        answer, tables = self.answer(state), self.tables(state)
        return Result(answer=answer, tables=tables, hints=[text], failed=failed)


class PagedOrder(Order):
    """An order that the command carries out itself, by a request for each page.

    It needs no durable operation: a page that is sent again has no further effect, so an
    interrupted command is repeated.
    """

    pause_s = 0.0

    def pages(self, *, dry_run: bool) -> Iterator[tuple[Sequence[Any], bool]]:
        """Send the requests; yield the rows of each response, and whether there are more."""
        raise NotImplementedError

    def is_refused(self, row: Any) -> bool:  # noqa: ANN401 (a row of the route)
        """Return whether what a row describes was not changed."""
        raise NotImplementedError

    @override
    def begin(self, *, dry_run: bool) -> Operation:
        return self.poll({"pages": self.pages(dry_run=dry_run), "dry_run": dry_run, "rows": []})

    @override
    def poll(self, state: Operation) -> Operation:
        page, more = next(state["pages"])
        if not more:
            next(state["pages"], None)  # Ends the generator while its client is open.
        rows = state["rows"]
        rows += page
        refused = state.get("refused", 0) + sum(map(self.is_refused, page))
        ended = "failed" if refused else "done"
        numbers = {"matched": len(rows) - refused, "refused": refused}
        return {**state, **numbers, "state": "running" if more else ended}

    @override
    def progress(self, state: Operation) -> str:
        refused = f", {state['refused']} refused" if state["refused"] else ""
        return f"{self.name}: {state['matched']} done{refused}"

    @override
    def summary(self, state: Operation) -> str:
        return f"{self.progress(state)}."


def order_command(order_of: Callable[..., Order]) -> Callable[..., None]:
    """Turn a function that returns a durable order into a command that carries it out."""

    @combined(
        click.option("--dry-run", is_flag=True, help="Count what would change; change nothing."),
        yes_option,
        detach_option,
        click.option("--follow", metavar="ID", help="Begin nothing: follow one to its end."),
        admin_options,
        prints,
    )
    @wraps(order_of)
    def command(
        *,
        dry_run: bool,
        yes: bool,
        detach: bool,
        follow: str | None,
        **values: Any,  # noqa: ANN401 (the command's own)
    ) -> Result:
        order = order_of(**values)
        if follow is None:
            return order.carry_out(dry_run=dry_run, yes=yes, detach=detach)
        if extra := [*order.body, *(["dry_run"] if dry_run else [])]:
            received = ", ".join(extra)
            raise click.UsageError(f"expected --follow alone, found {received} as well")
        return order.finish(order.poll({"id": follow}), detach=detach)

    return command
