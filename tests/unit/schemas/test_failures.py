"""The registry of failures and refusals holds together."""

from headwater.processors.code import errors
from headwater.schemas import failures
from headwater.schemas.failures import (
    REFUSALS,
    CommandRefusedError,
    InstanceTerminalError,
    is_refused,
    refused,
)

#: Failures that reach a workflow as a StepFailedError, or nobody's code at all.
NOT_CAUGHT = {
    "DataError",
    "DeadEndError",
    "DepthLimitError",
    "HostLostError",
    "LeaseExpiredError",
    "RoundLimitError",
    "RunTimeoutError",
    "StatementRefusedError",
    "StepTimeoutError",
    "TokenLimitError",
}


def test_a_failure_that_authors_catch_is_called_as_its_class() -> None:
    constants = {value for name, value in vars(failures).items() if name.isupper()
                 if isinstance(value, str) and value.endswith("Error")}  # fmt: skip
    assert {name for name in constants if not hasattr(errors, name)} == NOT_CAUGHT


def test_every_error_that_callers_catch_is_of_one_refusal() -> None:
    kinds = [
        refusal.error for refusal in REFUSALS.values() if refusal.error is not CommandRefusedError
    ]
    assert set(kinds) == set(CommandRefusedError.__subclasses__())
    assert {
        refusal.code: refusal.error for refusal in REFUSALS.values() if refusal.error in kinds
    } == {kind.code: kind for kind in kinds}


def test_what_is_so_already_is_no_refusal() -> None:
    codes = [code for code in REFUSALS if not is_refused(code)]
    assert codes == [
        "INSTANCE_CREATED_BEFORE",
        "JOB_END_REPEATED",
        "SLOT_GRANTED_BEFORE",
        "ALREADY_CANCELLED",
        "ALREADY_MOVED",
        "ALREADY_PAUSED",
        "NOT_PAUSED",
        "EVENT_ALREADY_RECEIVED",
    ]
    assert not is_refused("")
    assert is_refused("CODE_OF_A_NEWER_OWNER")


def test_a_refusal_is_raised_as_the_error_of_its_code() -> None:
    error = refused("INSTANCE_TERMINAL", "it has ended")
    assert type(error) is InstanceTerminalError
    assert (error.code, str(error)) == ("INSTANCE_TERMINAL", "it has ended")
    unknown = refused("CODE_OF_A_NEWER_OWNER", "no")
    assert (type(unknown), unknown.code) == (CommandRefusedError, "CODE_OF_A_NEWER_OWNER")
