"""Which routes the audit log records, and under which names.

Every route that may change something is named here: in `RECORDED` with its action, or in `NOT_RECORDED` with a reason.
`find_action` refuses any other, so the platform does not start with a route that nobody thought of. Of the reading
routes those are named that hand out secrets or the audit log itself, or that sign somebody in.
"""

from collections.abc import Mapping
from typing import Any

from portside.audit.types import Action
from portside.kernel.http.routes import READING_METHODS, Route

SHOW_SECRETS = Action("secret.read", is_read=True, if_shown=True)
_SIGN_IN = Action("session.create", "insert_session", is_sign_in=True)
_KEY = Action("key.create", "insert_key")
_REVOKE = Action("key.revoke", ids=("key_id",))
_UPLOAD = Action("example.create", ids=("dataset_id",))
_CHANGE_EXAMPLES = Action("example.update", ids=("dataset_id",))
_CREATE_PROMPT = Action("prompt.create", "create_repo")
_COMMIT_FILES = Action("prompt.commit")
_DELETE_FILES = Action("prompt.delete")
_ERASE_EXAMPLES = Action("example.erase", ids=("dataset_id", "example_ids"))

_IDENTITY = {
    "POST /login": _SIGN_IN,
    "POST /login/password": _SIGN_IN,
    "POST /login/key": _SIGN_IN,
    "GET /login/link": _SIGN_IN,
    "GET /login/oidc/callback": _SIGN_IN,
    "POST /oauth/token": _SIGN_IN,
    "POST /oauth/authorize": Action("session.approve", "decide_cli_authorization", is_sign_in=True, by_browser=True),
    "POST /device/decision": Action("session.approve", "decide_cli_authorization", is_sign_in=True, by_browser=True),
    "POST /login/out": Action("session.end", by_browser=True),
    "POST /logout": Action("session.end"),
    "DELETE /users/me/sessions/{session_id}": Action("session.end"),
    "DELETE /orgs/current/sessions/{session_id}": Action("session.end"),
    "POST /users/me/sign-in-links": Action("sign_in_link.create", "insert_sign_in_link"),
    "PUT /users/me/password": Action("user.set_password"),
    "PATCH /orgs/current": Action("organization.update"),
    "POST /workspaces": Action("workspace.create", "insert_workspace"),
    "PATCH /workspaces/{workspace_id}": Action("workspace.update"),
    "DELETE /workspaces/{workspace_id}": Action("workspace.delete"),
    "POST /orgs/current/members": Action("member.add", "insert_user"),
    "PATCH /orgs/current/members/{user_id}": Action("member.update"),
    "DELETE /orgs/current/members/{user_id}": Action("member.remove"),
    "POST /workspaces/current/members": Action("workspace_member.add", ids=("user_id",)),
    "PATCH /workspaces/current/members/{user_id}": Action("workspace_member.update"),
    "DELETE /workspaces/current/members/{user_id}": Action("workspace_member.remove"),
    "POST /api-key": _KEY,
    "POST /api-key/current": _KEY,
    "POST /orgs/current/personal-access-tokens": _KEY,
    "POST /orgs/current/service-keys": _KEY,
    "DELETE /api-key/{key_id}": _REVOKE,
    "DELETE /api-key/current/{key_id}": _REVOKE,
    "DELETE /orgs/current/personal-access-tokens/{key_id}": _REVOKE,
    "DELETE /orgs/current/service-keys/{key_id}": _REVOKE,
}

_TRACES = {
    "POST /sessions": Action("project.create", "create_project"),
    "PATCH /sessions/{session_id}": Action("project.update"),
    "DELETE /sessions/{session_id}": Action("project.delete"),
    "DELETE /sessions": Action("project.delete", ids=("session_ids",)),
    "POST /runs/delete": Action("trace.delete", ids=("session_id", "trace_ids")),
    "PUT /runs/{run_id}/share": Action("run.share"),
    "DELETE /runs/{run_id}/share": Action("run.unshare"),
    "PUT /usage-limits": Action("usage_limit.update", ids=("limit_type",)),
    "DELETE /usage-limits/{limit_id}": Action("usage_limit.delete"),
    "POST /feedback/tokens": Action("feedback_token.create", "create_feedback_tokens"),
    "POST /charts/create": Action("chart.create", "create_chart"),
    "PATCH /charts/{chart_id}": Action("chart.update"),
    "DELETE /charts/{chart_id}": Action("chart.delete"),
    "POST /charts/section": Action("chart_section.create", "create_section"),
    "PATCH /charts/section/{section_id}": Action("chart_section.update"),
    "DELETE /charts/section/{section_id}": Action("chart_section.delete"),
    "POST /model-price-map": Action("price.create", "insert_price"),
    "PUT /model-price-map/{price_id}": Action("price.update"),
    "DELETE /model-price-map/{price_id}": Action("price.delete"),
    "POST /model-price-map/recomputations": Action("cost_recomputation.create", "create_recomputation"),
    "DELETE /model-price-map/recomputations/{recomputation_id}": Action("cost_recomputation.cancel"),
}

_DATASETS = {
    "POST /datasets": Action("dataset.create", "create_dataset"),
    "POST /datasets/upload": Action("dataset.create", "create_dataset"),
    "PATCH /datasets/{dataset_id}": Action("dataset.update"),
    "DELETE /datasets/{dataset_id}": Action("dataset.delete"),
    "PUT /datasets/{dataset_id}/share": Action("dataset.share"),
    "DELETE /datasets/{dataset_id}/share": Action("dataset.unshare"),
    "PUT /datasets/{dataset_id}/tags": Action("dataset.tag"),
    "PUT /datasets/{dataset_id}/splits": Action("dataset.update"),
    "POST /datasets/comparative": Action("comparison.create", "create_comparison"),
    "DELETE /datasets/comparative/{comparison_id}": Action("comparison.delete"),
    "POST /examples": Action("example.create", ids=("dataset_id",)),
    "POST /examples/bulk": Action("example.create", ids=("dataset_id",)),
    "PATCH /examples/bulk": Action("example.update", ids=("id",)),
    "PATCH /examples/{example_id}": Action("example.update"),
    "DELETE /examples/{example_id}": Action("example.delete"),
    "DELETE /examples": Action("example.delete", ids=("example_ids",)),
    "POST /platform/datasets/{dataset_id}/examples": _UPLOAD,
    "POST /v1/platform/datasets/{dataset_id}/examples": _UPLOAD,
    "PATCH /platform/datasets/{dataset_id}/examples": _CHANGE_EXAMPLES,
    "PATCH /v1/platform/datasets/{dataset_id}/examples": _CHANGE_EXAMPLES,
    "POST /platform/examples/multipart": Action("example.create"),
    "POST /v1/platform/examples/multipart": Action("example.create"),
    "POST /platform/datasets/examples/delete": _ERASE_EXAMPLES,
    "POST /v1/platform/datasets/examples/delete": _ERASE_EXAMPLES,
}

_PROMPTS = {
    "POST /repos/": _CREATE_PROMPT,
    "POST /repos": _CREATE_PROMPT,
    "PATCH /repos/{owner}/{repo}": Action("prompt.update"),
    "DELETE /repos/{owner}/{repo}": Action("prompt.delete"),
    "POST /repos/{owner}/{repo}/tags": Action("prompt.tag"),
    "PATCH /repos/{owner}/{repo}/tags/{tag_name}": Action("prompt.tag"),
    "DELETE /repos/{owner}/{repo}/tags/{tag_name}": Action("prompt.untag"),
    "POST /commits/{owner}/{repo}": Action("prompt.commit"),
    "POST /likes/{owner}/{repo}": Action("prompt.like"),
    "POST /platform/hub/repos/{owner}/{repo}/directories/commits": _COMMIT_FILES,
    "POST /v1/platform/hub/repos/{owner}/{repo}/directories/commits": _COMMIT_FILES,
    "DELETE /platform/hub/repos/{owner}/{repo}/directories": _DELETE_FILES,
    "DELETE /v1/platform/hub/repos/{owner}/{repo}/directories": _DELETE_FILES,
    "POST /annotation-queues": Action("annotation_queue.create", "create_queue"),
    "PATCH /annotation-queues/{queue_id}": Action("annotation_queue.update"),
    "DELETE /annotation-queues/{queue_id}": Action("annotation_queue.delete"),
    "POST /feedback-configs": Action("feedback_config.create", ids=("feedback_key",)),
    "PATCH /feedback-configs": Action("feedback_config.update", ids=("feedback_key",)),
    "DELETE /feedback-configs": Action("feedback_config.delete", ids=("feedback_key",)),
}

_CONTROL = {
    "POST /v2/deployments": Action("deployment.create", "insert_deployment", makes="insert_revision"),
    "PATCH /v2/deployments/{deployment_id}": Action("deployment.update", makes="insert_revision"),
    "DELETE /v2/deployments/{deployment_id}": Action("deployment.delete"),
    "DELETE /v2/deployments": Action("deployment.delete", ids=("deployment_ids",)),
    "PUT /v2/deployments/{deployment_id}/scale": Action("deployment.scale"),
    "POST /v2/deployments/{deployment_id}/service-key/rotate": Action("deployment.rotate_key"),
    "POST /v2/deployments/{deployment_id}/push-token": Action("push_token.create"),
    "POST /v2/deployments/{deployment_id}/upload-url": Action("upload_url.create"),
    "PUT /v2/uploads/{archive_id}": Action("archive.upload"),
    "POST /v2/deployments/{deployment_id}/revisions": Action("revision.create", "insert_revision"),
    "POST /v2/deployments/{deployment_id}/revisions/{revision_id}/redeploy": Action(
        "revision.redeploy", makes="insert_revision"
    ),
    "POST /v2/deployments/{deployment_id}/revisions/{revision_id}/interrupt": Action("revision.interrupt"),
    "DELETE /internal/deployments/{deployment_id}": Action("deployment.destroy"),
    "POST /v2/listeners": Action("listener.create", "insert_listener"),
    "PATCH /v2/listeners/{listener_id}": Action("listener.update"),
    "DELETE /v2/listeners/{listener_id}": Action("listener.delete"),
    "POST /v1/integrations/git_hosting": Action("integration.create", "insert_integration"),
    "PATCH /v1/integrations/git_hosting/{integration_id}": Action("integration.update"),
    "DELETE /v1/integrations/git_hosting/{integration_id}": Action("integration.delete"),
    "POST /v1/integrations/git_hosting/{integration_id}/webhook": Action("integration.create_webhook"),
    "POST /v1/webhooks/{integration_id}": Action("integration.push", makes="insert_revision"),
    "GET /v2/deployments": SHOW_SECRETS,
    "GET /v2/deployments/{deployment_id}": SHOW_SECRETS,
    "GET /internal/listeners/{listener_id}/desired": Action("secret.read", is_read=True),
}

_ALERTS = {
    "PATCH /alerts/rules/{name}": Action("alert_rule.update"),
    "POST /alerts/channels": Action("alert_channel.create", "insert_channel"),
    "DELETE /alerts/channels/{channel_id}": Action("alert_channel.delete"),
    "POST /alerts/channels/{channel_id}/test": Action("alert_channel.test"),
    "POST /alerts/silences": Action("alert_silence.create", "insert_silence"),
    "DELETE /alerts/silences/{silence_id}": Action("alert_silence.delete"),
}

_EXPORT = Action("audit_log.export", is_read=True)
_SYSTEM = {
    "POST /system/master-key/rotate": Action("master_key.rotate"),
    "POST /system/backups": Action("backup.create"),
    "POST /system/upgrade/roll-forward": Action("servers.roll_forward"),
}
_AUDIT = {"GET /audit-log/export": _EXPORT, "GET /workspaces/current/audit-log/export": _EXPORT}

RECORDED: Mapping[str, Action] = {
    **_IDENTITY,
    **_TRACES,
    **_DATASETS,
    **_PROMPTS,
    **_CONTROL,
    **_ALERTS,
    **_SYSTEM,
    **_AUDIT,
}

_DATA = "traces and feedback are data"
_TELEMETRY = "accepts what clients report about themselves, and stores nothing"
_REPORT = "a report of a listener about its compute"
_ABSENT = "answers 501"
_WORK = "the work on a queue, which is data"

NOT_RECORDED: Mapping[str, str] = {
    "POST /runs/multipart": _DATA,
    "POST /runs/batch": _DATA,
    "POST /runs": _DATA,
    "PATCH /runs/{run_id}": _DATA,
    "POST /otel/v1/traces": _DATA,
    "POST /feedback": _DATA,
    "PATCH /feedback/{feedback_id}": _DATA,
    "DELETE /feedback/{feedback_id}": _DATA,
    "POST /feedback/tokens/{token}": _DATA,
    "POST /v1/beacon": _TELEMETRY,
    "POST /beacon": _TELEMETRY,
    "POST /v1/metadata/submit": _TELEMETRY,
    "POST /metadata/submit": _TELEMETRY,
    "POST /generate": _ABSENT,
    "POST /runs/rules/trigger": _ABSENT,
    "POST /runs/rules/{rule_id}/trigger": _ABSENT,
    "POST /annotation-queues/{queue_id}/runs": _WORK,
    "POST /annotation-queues/{queue_id}/runs/by-key": _WORK,
    "PATCH /annotation-queues/{queue_id}/runs/{run_id}": _WORK,
    "DELETE /annotation-queues/{queue_id}/runs/{run_id}": _WORK,
    "PUT /internal/deployments/{deployment_id}/metrics": _REPORT,
    "POST /internal/listeners/connect": _REPORT,
    "PUT /internal/deployments/{deployment_id}/status": _REPORT,
    "PUT /internal/deployments/{deployment_id}/revisions/{revision_id}/status": _REPORT,
    "POST /internal/deployments/{deployment_id}/revisions/{revision_id}/logs": _REPORT,
    "POST /v2/deployments/{deployment_id}/token": "proves the caller's own session to an agent, and changes nothing",
    "POST /oauth/device": "nobody has approved anything yet; the approval and the session are recorded",
    "POST /device": "shows whom a code belongs to, and changes nothing",
}


def find_action(route: Route[Any]) -> Action | None:
    """Return the action that the audit log records for a route; None if it records none.

    Raises ValueError for a route that may change something and is not named in this module.
    """
    label = f"{route.method} {route.path}"
    action = RECORDED.get(label)
    if action is None and label not in NOT_RECORDED and not route.read_only and route.method not in READING_METHODS:
        raise ValueError(
            f"{label} may change something: name its action in RECORDED of portside/audit/actions.py, or the reason "
            "why the audit log leaves it out in NOT_RECORDED"
        )

    return action
