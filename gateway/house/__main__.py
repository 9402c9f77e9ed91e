"""The host of the house's own app, composed: `streams.code_host.child` with all workflows.

A worker starts it, as it starts the hosts of other apps, and gives it the settings.
"""

from collections.abc import Sequence

from headwater.gateway.environment import load_settings
from headwater.gateway.house.forget_workflow import forget_workflow
from headwater.gateway.house.prune_workflow import prune_workflow
from headwater.gateway.house.replay_workflow import replay_workflow
from headwater.gateway.house.terra_workflows import TerraWorkflows
from headwater.gateway.house.world import World
from headwater.gateway.privacy import close_environment
from headwater.streams.clock import now_ms
from headwater.streams.code_host.apps import App
from headwater.streams.code_host.builtin_app import builtin_workflows
from headwater.streams.code_host.child import main


def _house(schedules: Sequence[str]) -> App:
    """All workflows that come with Headwater, given the schedules of other apps."""
    world = World(load_settings())
    terra = TerraWorkflows(world, now_ms)
    names = [*schedules, *(each.declared.schedule for each in terra.schedules)]
    others = (
        replay_workflow(world.replays),
        forget_workflow(world.forgetting),
        prune_workflow(world.forgetting),
    )
    workflows = {each.name: each for each in (*terra.workflows, *others)}
    return App({**builtin_workflows(names), **workflows}, terra.schedules)


if __name__ == "__main__":
    close_environment()
    main(_house)
