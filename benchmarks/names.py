"""`python -m benchmarks.names`: the cost of names in histories.

Compares histories of a thousand steps as the engine records them with the same histories in which a
name is written once per run and replaced by a number afterwards. Both are encoded as in Kafka,
plain and as compressed batches (zstd, ADR 0024).
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
#: Records of a batch: of one instance alone, of some that alternate, of a busy worker.
_TOGETHER: Final = (1, 10, 500)
#: Kafka's default level of zstd.
_LEVEL: Final = 3
_ORDER: Final = {"order": 4711, "state": "captured", "amount": "12.50", "currency": "EUR"}


@workflow("line")
async def line(event: WorkflowEvent[dict[str, Any]], step: Step) -> int:
    """A thousand steps with different names."""
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
    """The registry of a run: the first use of a name writes it, every use its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def shortened(self, key: str) -> str:
        """Return a text as long as a key's numbers, with the names that are new."""
        text = ""
        for part in key.split("/"):
            known = part in self._numbers or part.startswith("~")
            number = self._numbers.setdefault(part, len(self._numbers))
            text += chr(number % 95 + 32) * (1 if number < 128 else 2)
            text += "" if known else part
        return text


def _with_numbers(value: Any, names: Names) -> Any:  # noqa: ANN401
    """Return a record in which keys and names of entries are replaced by numbers."""
    if isinstance(value, tuple):
        return tuple(_with_numbers(item, names) for item in value)
    if not isinstance(value, msgspec.Struct):
        return value
    changed: dict[str, Any] = {}
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if name in {"key", "step_key"} and isinstance(field, str):
            changed[name] = names.shortened(field)
        elif name == "keys":
            changed[name] = tuple(map(names.shortened, field))
        elif name == "name":
            changed[name] = ""  # It is the last part of the key.
        else:
            changed[name] = _with_numbers(field, names)
    return msgspec.structs.replace(value, **changed)


def _sizes(records: Sequence[HistoryAppended]) -> Iterator[int]:
    """Yield the bytes of the records: plain, and in compressed batches."""
    encoded = [
        record_key(b"line/an-instance-of-it", 17, number) + encode(record)
        for number, record in enumerate(records)
    ]
    yield sum(map(len, encoded))
    for count in _TOGETHER:
        batches = [
            b"".join(encoded[start : start + count]) for start in range(0, len(encoded), count)
        ]
        yield sum(len(cramjam.zstd.compress(batch, level=_LEVEL)) for batch in batches)


async def _main() -> None:
    columns = ("plain", *(f"zstd, {count} a batch" for count in _TOGETHER))
    sys.stdout.write(f"{'':12}{'':10}{''.join(f'{column:>20}' for column in columns)}\n")
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
                f"{author.name:12}{title:10}{''.join(f'{cell:>20}' for cell in row)}\n"
            )


if __name__ == "__main__":
    asyncio.run(_main())
