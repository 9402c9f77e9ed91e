"""Code host of the built-in workflows: `streams.code_host.child` with all of them.

A worker starts it like the hosts of other apps, and passes it the settings.
"""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from headwater.gateway.builtin.dependencies import Dependencies
from headwater.gateway.builtin.endpoint_replay import endpoint_replay_workflow
from headwater.gateway.builtin.notification_workflows import (
    notification_workflow,
    reaction_workflow,
)
from headwater.gateway.builtin.terra_workflows import TerraWorkflows
from headwater.gateway.builtin.verify_workflow import verify_schedules, verify_workflow
from headwater.gateway.builtin.wipe_and_replay_workflows import (
    forget_workflow,
    prune_workflow,
    replay_workflow,
)
from headwater.gateway.settings.environment import load_settings
from headwater.gateway.settings.privacy import close_environment
from headwater.processors.triggers.rules import Rule, read_rules
from headwater.schemas.installed_tables import TABLE_BY_NAME
from headwater.streams.clock import now_ms
from headwater.streams.code_host.apps import App
from headwater.streams.code_host.builtin_app import builtin_workflows
from headwater.streams.code_host.child import main
from headwater.streams.code_host.queue_delivery import QueueDelivery
from headwater.streams.evaluation.evaluator import DELIVERY_LIMITS, EvaluatorProcess


def _builtin_app(schedules: Sequence[str]) -> App:
    """Return the app of all built-in workflows.

    Args:
        schedules: Names of the schedules of the other apps.
    """
    settings = load_settings()
    dependencies = Dependencies(settings)
    terra = TerraWorkflows(dependencies, now_ms)
    own_schedules = (*terra.schedules, *verify_schedules(settings.verify_cron))
    names = [*schedules, *(schedule.declared.schedule for schedule in own_schedules)]
    rules, evaluator = partial(_rules, settings.rules), EvaluatorProcess(DELIVERY_LIMITS)
    others = (
        notification_workflow(dependencies.endpoint_sender),
        reaction_workflow(dependencies.endpoint_sender, rules, evaluator),
        endpoint_replay_workflow(dependencies.endpoint_replays),
        verify_workflow(dependencies.connections, list(TABLE_BY_NAME)),
        replay_workflow(dependencies.replays),
        forget_workflow(dependencies.instance_deletion),
        prune_workflow(dependencies.instance_deletion),
    )
    delivery = QueueDelivery(rules, evaluator)
    workflows = {workflow.name: workflow for workflow in (*terra.workflows, *others, delivery)}
    return App({**builtin_workflows(names), **workflows}, own_schedules)


@cache
def _rules(path: str) -> tuple[Rule, ...]:
    """Return the rules of a file, which the worker has checked at its start."""
    return read_rules(Path(path).read_text("utf-8")) if path else ()


if __name__ == "__main__":
    close_environment()
    main(_builtin_app)
