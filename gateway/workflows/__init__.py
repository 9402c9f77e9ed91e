"""Durable workflows over HTTP, under /api/workflows.

For those who decide who may do what with them: an object with some of the hooks of `WorkflowHooks`,
named by the setting HEADWATER_WORKFLOW_HOOKS.
"""

from headwater.gateway.workflows.authorization import (
    Denied,
    Hook,
    Policy,
    Principal,
    RequestContext,
    WorkflowHooks,
)

__all__ = ["Denied", "Hook", "Policy", "Principal", "RequestContext", "WorkflowHooks"]
