"""What names cost in histories: `python -m benchmarks.names`.

Histories of a thousand steps as the engine records them, encoded as they lie in Kafka, and the same
with each name written once for a run and a number in its place from then on. Both plain and as
batches of Kafka, which are compressed with zstd (ADR 0024).
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import cramjam
import msgspec

from headwater import Break, Continue, Step, WorkflowEvent, workflow
from headwater.schemas.codec import encode
from headwater.schemas.history import HistoryAppended, record_key
from headwater.streams.harness.workflow_test import WorkflowTest

_STEPS: Final = 1_000
#: Records of a batch: of an instance that is alone, of some that take turns, of a busy worker.
_TOGETHER: Final = (1, 10, 500)
#: Of zstd, as Kafka has it by default.
_LEVEL: Final = 3
_ORDER: Final = {"order": 4711, "state": "captured", "amount": "12.50", "currency": "EUR"}


@workflow("line")
async def line(event: WorkflowEvent[dict[str, Any]], step: Step) -> int:
    """A thousand steps, each with a name of its own."""
    for number in range(_STEPS):
        await step.do(f"charge customer {number}", lambda: _ORDER)
    return _STEPS


@workflow("iterations")
async def iterations(event: WorkflowEvent[dict[str, Any]], step: Step) -> int:
    """A thousand steps of the same name, in a loop."""

    async def turn(step: Step, number: int) -> Continue | Break:
        await step.do("charge customer", lambda: _ORDER)
        return Break(number) if number == _STEPS else Continue(number + 1)

    await step.loop("all customers of the month", turn, state=1)
    return _STEPS


class Names:
    """The registry of a run: the first use of a name writes it, each use its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def shortened(self, key: str) -> str:
        """A text as long as the numbers that stand for a key, with the names that are new."""
        found = ""
        for part in key.split("/"):
            known = part in self._numbers or part.startswith("~")
            number = self._numbers.setdefault(part, len(self._numbers))
            found += chr(number % 95 + 32) * (1 if number < 128 else 2)
            found += "" if known else part
        return found


def _with_numbers(value: Any, names: Names) -> Any:  # noqa: ANN401
    """A record with numbers for names: keys and names of entries, wherever they are."""
    if isinstance(value, tuple):
        return tuple(_with_numbers(each, names) for each in value)
    if not isinstance(value, msgspec.Struct):
        return value
    changed: dict[str, Any] = {}
    for name in value.__struct_fields__:
        found = getattr(value, name)
        if name in {"key", "step_key"} and isinstance(found, str):
            changed[name] = names.shortened(found)
        elif name == "keys":
            changed[name] = tuple(map(names.shortened, found))
        elif name == "name":
            changed[name] = ""  # It is the last part of the key.
        else:
            changed[name] = _with_numbers(found, names)
    return msgspec.structs.replace(value, **changed)


def _sizes(records: Sequence[HistoryAppended]) -> Iterator[int]:
    """Bytes of the records: alone, and in compressed batches."""
    lying = [
        record_key(b"line/an-instance-of-it", 17, number) + encode(record)
        for number, record in enumerate(records)
    ]
    yield sum(map(len, lying))
    for count in _TOGETHER:
        batches = [b"".join(lying[at : at + count]) for at in range(0, len(lying), count)]
        yield sum(len(cramjam.zstd.compress(batch, level=_LEVEL)) for batch in batches)


async def _main() -> None:
    columns = ("plain", *(f"zstd, {count} a batch" for count in _TOGETHER))
    sys.stdout.write(f"{'':12}{'':10}{''.join(f'{each:>20}' for each in columns)}\n")
    for author in (line, iterations):
        async with WorkflowTest([author], max_steps=3 * _STEPS) as test:
            await test.create(author.name, id="an-instance-of-it", params={})
            await test.run_until_idle()
            records = test.records(author.name, "an-instance-of-it")
        names = Names()
        now = list(_sizes(records))
        then = list(_sizes([_with_numbers(record, names) for record in records]))
        change = [f"{b / a - 1:+.0%}" for a, b in zip(now, then, strict=True)]
        for title, row in (("now", now), ("numbers", then), ("change", change)):
            sys.stdout.write(
                f"{author.name:12}{title:10}{''.join(f'{each:>20}' for each in row)}\n"
            )


if __name__ == "__main__":
    asyncio.run(_main())
