"""All rows of an instance, folded in memory from its whole history, as Postgres has them."""

from collections.abc import Iterable, Iterator
from typing import Any

from typing_extensions import override

from headwater.processors.rows.graph_events import chosen
from headwater.processors.rows.patches import Patches, Row, Rows, Values
from headwater.processors.rows.plan import plan_record
from headwater.schemas.history import HistoryAppended
from headwater.schemas.statuses import EntryKind, EntryStatus
from headwater.schemas.workflow_tables import STEP, TOKEN


class HistoryRows(Patches):
    """The rows of one instance. A retry copies rows of the previous run, as in Postgres."""

    def __init__(self, records: Iterable[HistoryAppended] = ()) -> None:
        super().__init__()
        for record in records:
            plan_record(self, record)

    def steps(self, run_number: int) -> list[Values]:
        """Return the steps of a run, in the order in which they were first reached."""
        steps = _of_run(self.stages[0].steps, run_number)
        return sorted(steps, key=lambda row: (row["ordinal"], row["sequence"]))

    def tokens(self, run_number: int) -> list[Values]:
        """Return the tokens of a run, in the order of their creation."""
        return sorted(_of_run(self.stages[0].tokens, run_number), key=lambda row: row["id"])

    def events(self, run_number: int) -> list[Values]:
        """Return the events of a run, in the order of their arrival."""
        return sorted(_of_run(self.stages[0].events, run_number), key=lambda row: row["sequence"])

    def lines(self, run_number: int) -> list[Values]:
        """Return the log lines of a run."""
        return [row for row in self.logs if row["run_number"] == run_number]

    def graph_events_of(self, run_number: int) -> list[Values]:
        """Return the workflow events of a graph's run, in the order of its history."""
        tokens = {row["id"]: row for row in self.tokens(run_number)}
        rows = (row for row in self.graph_events if row["run_number"] == run_number)
        resolved = (chosen(row, tokens.get(row["token_id"])) for row in rows)
        return [row for row in resolved if row is not None]

    @override
    def retry(self, row: Values) -> None:
        """Copy what a run takes over from the previous one, as `retry_workflow_runs` does."""
        stage, before = self.stages[0], row["run_number"] - 1
        run = (row["workflow_name"], row["instance_id"], row["run_number"])
        new = {"run_number": row["run_number"], "offset": row["offset"]}
        taken_over = {*row["kept"], *row["reopened"]}
        steps = [
            step | new | (_reopened(step, row) if step["step_key"] in row["reopened"] else {})
            for step in self.steps(before)
            if step["step_key"] in taken_over
        ]
        tokens = [token | new | _restarted(token, row) for token in self.tokens(before)]
        events = [event | new for event in self.events(before) if event.get("delivered_at") is None]
        stage.steps[run] = _by_key("step_key", _renumbered(steps))
        stage.tokens[run] = _by_key("id", tokens)
        stage.events[run] = _by_key("id", _renumbered(events))


def _of_run(rows: Rows, run_number: int) -> Iterator[Values]:
    for run, of_run in rows.items():
        if run[2] == run_number:
            yield from (row.values for row in of_run.values() if row.is_whole)


def _by_key(name: str, rows: Iterable[Values]) -> dict[Any, Row]:
    return {row[name]: Row(row, is_whole=True) for row in rows}


def _renumbered(rows: list[Values]) -> list[Values]:
    """Number copied rows: negative sequences keep their order before all new ones."""
    return [row | {"sequence": number} for number, row in enumerate(rows, -len(rows))]


def _reopened(step: Values, retry: Values) -> Values:
    status = EntryStatus.WAITING if step["type"] == EntryKind.SLEEP else EntryStatus.PENDING
    cleared = dict.fromkeys(STEP.cleared)
    return {**cleared, "status": status, "updated_at": retry["started_at"]}


def _restarted(token: Values, retry: Values) -> Values:
    """Return the columns of a token that a retry changes, if the token ended with the run."""
    status = token.get("retry_status")
    if status is None:
        return {}
    return {
        **dict.fromkeys(TOKEN.cleared),
        "status": status,
        "attempts": 0,
        "wake_at": None,
        "updated_at": retry["started_at"],
    }
