"""What the actions of all routes have in common: which of them a server must record, and their names in OCSF.

The action of a route stands at its declaration (`kernel/http/audit_actions.py`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from portside.kernel.http.audit_actions import Action
from portside.kernel.http.routes import Route

READ_SECRET = Action("secret.read", is_read=True)
READ_SECRET_IF_SHOWN = Action("secret.read", is_read=True, if_shown=True)

# The kinds of activity of OCSF's class "API Activity", and the verbs of our actions that are one of the first four.
ACTIVITIES = {1: "Create", 2: "Read", 3: "Update", 4: "Delete", 99: "Other"}
_ACTIVITY_IDS = {
    "create": 1,
    "add": 1,
    "upload": 1,
    "read": 2,
    "export": 2,
    "update": 3,
    "scale": 3,
    "tag": 3,
    "untag": 3,
    "rotate": 3,
    "rotate_key": 3,
    "set_password": 3,
    "delete": 4,
    "erase": 4,
    "revoke": 4,
    "remove": 4,
    "destroy": 4,
    "expire": 4,
    "end": 4,
}
# Where LangSmith names an operation in another way than by verb and object.
_NAMES = {
    "session.create": "login",
    "organization.update": "update_organization_info",
    "member.add": "invite_user_to_org",
    "member.update": "update_org_member",
    "member.remove": "delete_org_member",
    "user.set_password": "update_basic_auth_user",
    "workspace_member.add": "add_member_to_workspace",
    "workspace_member.update": "update_workspace_member",
    "workspace_member.remove": "delete_workspace_member",
    "key.create": "create_api_key",
    "key.revoke": "delete_api_key",
    "project.update": "update_tracer_session",
    "project.delete": "delete_tracer_session",
    "trace.delete": "delete_runs",
    "price.create": "create_model_price_map",
    "price.update": "update_model_price_map",
    "price.delete": "delete_model_price_map",
    "example.erase": "delete_examples",
    "comparison.create": "create_comparative_experiment",
    "comparison.delete": "delete_comparative_experiment",
    "prompt.commit": "create_commit",
    "alert_rule.update": "update_alert_rule",
    "audit_log.export": "get_audit_logs",
}


class Operation(msgspec.Struct, frozen=True):
    """An action as the audit log of LangSmith names it, and the method and path of its route (of the first of several).

    Both are empty for what the platform does without a request.
    """

    name: str
    activity_id: int
    method: str = ""
    path: str = ""

    @classmethod
    def for_action(cls, action: str, method: str = "", path: str = "") -> "Operation":
        """Return the operation of an action, with the method and path of its route."""
        subject, _, verb = action.partition(".")
        return cls(
            name=_NAMES.get(action, f"{verb}_{subject}"),
            activity_id=_ACTIVITY_IDS.get(verb, 99),
            method=method,
            path=path,
        )


def find_action(route: Route[Any]) -> Action | None:
    """Return the action that the audit log records for a route; None if it records none.

    Raises ValueError for a route that may change something and says neither its action nor why it has none.
    """
    if route.audit is None and not route.only_reads:
        raise ValueError(
            f"{route.method} {route.path} may change something: name its action where it is declared, "
            'audit=Action("object.verb"), or why the audit log leaves it out, audit=Unrecorded("the reason")'
        )

    return route.audit if isinstance(route.audit, Action) else None


def build_operations(routes: Iterable[Route[Any]]) -> Mapping[str, Operation]:
    """Return the operations of all routes by the names of their actions."""
    operations: dict[str, Operation] = {}
    for route in routes:
        action = find_action(route)
        if action is not None and action.name not in operations:
            operations[action.name] = Operation.for_action(action.name, route.method, route.path)

    return operations
