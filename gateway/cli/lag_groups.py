"""The consumer groups of a system, whose lag is observed."""

from collections.abc import Sequence

from headwater.gateway.settings.settings import Settings
from headwater.processors.kafka_sources import KafkaSource
from headwater.projections.catalogue import PROJECTIONS
from headwater.schemas.topics import EFFECTS, WORKFLOW_COMMANDS
from headwater.streams.kafka.names import foreign_topic
from headwater.streams.pipeline.deduplication import Intake
from headwater.streams.workflows.ownership import GROUP


def consumer_groups(
    settings: Settings, sources: Sequence[KafkaSource]
) -> dict[str, tuple[str, ...]]:
    """Return the topics of all consumer groups."""
    return {
        settings.app_id: Intake.sources,
        f"{settings.app_id}-effects": (EFFECTS,),
        GROUP: (WORKFLOW_COMMANDS,),
        **{projection.group: projection.topics for projection in PROJECTIONS},
        **{
            f"{settings.app_id}-source-{source.name}": (foreign_topic(source.topic),)
            for source in sources
        },
    }
