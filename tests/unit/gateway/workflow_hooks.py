"""Hooks as users of the system write them; a test names them as the setting does."""

from headwater.gateway.api.workflows import Denied, RequestContext, WorkflowHooks


def only_amara(context: RequestContext) -> Denied | None:
    if context.headers.get("x-user") != "amara":
        raise Denied(401, "WHO_ARE_YOU", "expected amara")
    return None


frozen = WorkflowHooks(authorize_request=only_amara)


class Tenants:
    """Methods, one of them a coroutine function."""

    def authorize_request(self, context: RequestContext) -> None:
        only_amara(context)

    async def authorize_instance_creation(self, context: RequestContext) -> Denied | None:
        if context.body["params"] == "forbidden":
            return Denied(403, "NOT_YOURS", f"not {context.workflow_name}/{context.instance_id}")
        return None


tenants = Tenants()


class Mistyped:
    def authorise_request(self, context: RequestContext) -> None: ...


class Unknown:
    def authorize_request(self, context: RequestContext) -> None: ...
    def authorize_creation(self, context: RequestContext) -> None: ...


class NoFunction:
    authorize_request = "yes"


mistyped, unknown, no_function = Mistyped(), Unknown(), NoFunction()
