"""A projection arrives at the end of a partition whose last offsets are gaps (ADR 0101)."""

from pathlib import Path

from headwater.schemas.epochs import GAP_KEY
from headwater.schemas.topics import OUTCOMES
from headwater.streams.kafka.aiokafka_patches import patch_aiokafka
from tests.integration.projecting import System, in_a_system, with_topics
from tests.integration.written import Written


def test_a_partition_of_gaps_is_applied_to_its_end(scratch: Path, migrated: str):
    patch_aiokafka()

    async def scenario(system: System) -> None:
        gap = Written(OUTCOMES, 1, GAP_KEY, None)
        ends = await system.write(*([gap] * 20))
        assert ends == {(OUTCOMES, 1): 20}
        async with system.projector():
            await system.until_applied(ends)
            await system.until_applied(await system.write(gap, gap))

    with with_topics(scratch) as broker:
        in_a_system(broker, migrated, scenario)
