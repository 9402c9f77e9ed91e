"""Records of the auditor: its findings, and its report, from which it also continues."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class Law(StrEnum):
    """What the auditor verifies; a finding names the law that is violated."""

    DELIVERY_LOST = "delivery_lost"
    DELIVERY_LATE = "delivery_late"
    OUTCOME_REMOVED = "outcome_removed"
    OUTCOME_REPEATED = "outcome_repeated"
    SEQUENCE_BROKEN = "sequence_broken"
    RESULT_REPEATED = "result_repeated"
    ROW_DIFFERS = "row_differs"
    LOG_CUT = "log_cut"


#: Meaning of each law, for people.
MEANINGS: Final[Mapping[str, str]] = {
    Law.DELIVERY_LOST: "Each delivery that the pipeline has processed has an outcome.",
    Law.DELIVERY_LATE: "A delivery has its outcome within 15 minutes.",
    Law.OUTCOME_REMOVED: "Only a wipe removes the outcome of a delivery.",
    Law.OUTCOME_REPEATED: "A delivery has its outcome in one partition.",
    Law.SEQUENCE_BROKEN: "Sequences of a history have no gaps and no repetitions.",
    Law.RESULT_REPEATED: "A step of a run, and a token of a graph, has one result.",
    Law.ROW_DIFFERS: "A row in Postgres has the values of its record, and of its deliveries.",
    Law.LOG_CUT: "Offsets of a topic only grow, and what was read of it stays.",
}


class AuditorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A violated law (topic `auditor`, key `finding/`, law and subject)."""

    #: The law.
    law: str
    #: What violates it: a position, an instance, or a row by its table and position.
    subject: str
    #: What was expected, and what was found.
    detail: str
    #: When the auditor saw it first, Unix milliseconds.
    first_seen_ms: int
    #: When it saw it last, Unix milliseconds.
    last_seen_ms: int
    #: When it no longer saw it, Unix milliseconds; 0 while it is there.
    ended_ms: int = 0


class AuditorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the auditor has verified so far (topic `auditor`, key `report`)."""

    #: The auditor that wrote it; empty if it has stopped.
    auditor: str
    #: When it was written, Unix milliseconds.
    at_ms: int
    #: When the auditor first began to read the log, Unix milliseconds.
    since_ms: int
    #: Whether it has read everything that there was at that time.
    caught_up: bool
    #: Deliveries that were read.
    deliveries: int
    #: Those of them that the pipeline has passed, and that have no outcome.
    lost: int
    #: Those that the pipeline has not passed yet.
    waiting: int
    #: Those that wait for their connection.
    parked: int
    #: Those whose outcome can no longer be proven: its record was deleted by age.
    unproven: int
    #: Records of histories that count.
    history_records: int
    #: Results of steps and of tokens of graphs.
    step_results: int
    #: Records of former owners, which every reader ignores.
    ignored_records: int
    #: Rows that were compared.
    rows: int
    #: Laws that are violated now, and further ones that are not listed.
    findings: list[AuditorFinding]
    #: Number of violations that are not listed.
    unlisted: int
    #: Version of the encoding of `state`.
    format: int
    #: What the auditor continues from.
    state: bytes
