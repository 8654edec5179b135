"""What Pod Security `restricted` asks of pods, and the probes of servers.

They are the same for what a listener makes and for the platform itself. A process that may write nothing but its
volumes gets a `/tmp` of its own.
"""

from portside.dataplane.compute.kubernetes.objects import Json

# It answers without asking the database: a server that lost its database must not be restarted for it.
ALIVE_PATH = "/ok?check_db=0"
TMP_MOUNT: Json = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - in a pod of its own
TMP_VOLUME: Json = {"name": "tmp", "emptyDir": {}}


def build_pod_security(user: int | None) -> Json:
    """Return the `securityContext` of a pod. Without a user the cluster gives it one, as OpenShift does."""
    context: Json = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if user is None:
        return context

    ids = {"runAsUser": user, "runAsGroup": user, "fsGroup": user, "fsGroupChangePolicy": "OnRootMismatch"}
    return {**context, **ids}


def build_container_security(*, is_root_read_only: bool = True) -> Json:
    """Return the `securityContext` of a container."""
    context: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {**context, "readOnlyRootFilesystem": True} if is_root_read_only else context


def build_probe(path: str) -> Json:
    """Return a probe of a server that asks for a path; slow answers under load are no failure."""
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 15, "timeoutSeconds": 5, "failureThreshold": 6}
