"""HTTP API of durable workflows, under /api/workflows.

To authorize requests yourself, set HEADWATER_WORKFLOW_HOOKS to an object that has some of the hooks
of `WorkflowHooks`.
"""

from headwater.gateway.api.workflows.authorization import (
    Denied,
    Hook,
    Policy,
    Principal,
    RequestContext,
    WorkflowHooks,
)

__all__ = ["Denied", "Hook", "Policy", "Principal", "RequestContext", "WorkflowHooks"]
