"""The part of an API server that a listener uses, in memory: objects are checked against the published schemas.

It answers as the real one does where the listener depends on it, with its words: rights that a role lacks, ports with
one name, claims and selectors that cannot change. Nothing runs: there are no controllers and no nodes.
"""

import contextlib
import copy
import functools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

from portside.dataplane.compute.kubernetes.api import KubernetesApi
from portside.dataplane.compute.kubernetes.objects import KINDS
from tests.kubernetes import validate
from tests.receiver import serve

Json = dict[str, Any]
# Method, plural, namespace and name; returns the status and the message to refuse with.
Rule = Callable[[str, str, str, str], tuple[int, str] | None]
_KINDS = {plural: kind for kind, (_, _, plural) in KINDS.items()} | {
    "pods": "Pod",
    "events": "Event",
    "nodes": "Node",
    "leases": "Lease",
}
_REASONS = {403: "Forbidden", 404: "NotFound", 409: "AlreadyExists", 422: "Invalid"}


@functools.cache
def _validate(content: str) -> None:
    """Check an object once: tests apply the same ones again and again."""
    validate(json.loads(content), "1.37")


class Refusal(Exception):
    """What the server refuses a request with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def lacks_right(verb: str, plural: str, namespace: str) -> tuple[int, str]:
    """The answer to a service account whose role has no such verb, or that has no role in the namespace."""
    user = "system:serviceaccount:portside:portside-listener"
    right = f'cannot {verb} resource "{plural}" in API group "" in the namespace "{namespace}"'
    return 403, f'{plural} is forbidden: User "{user}" {right}'


class ClusterApi:
    """Objects by plural, namespace and name; `rules` refuse requests, and `calls` are the requests so far."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.rules: list[Rule] = []
        # What was applied last of each spec.
        self._applied: dict[tuple[str, str, str], Json] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.orphaned: list[str] = []
        self._version = 0

    def put(self, plural: str, namespace: str, name: str, content: Json) -> Json:
        """Store an object as if somebody else had made it."""
        self._version += 1
        live = {"kind": _KINDS[plural], **copy.deepcopy(content)}
        live["metadata"] = {
            "name": name,
            "namespace": namespace,
            "uid": str(uuid4()),
            "generation": 1,
            "creationTimestamp": f"2026-01-01T00:{self._version // 60:02}:{self._version % 60:02}Z",
            **live.get("metadata", {}),
            "resourceVersion": str(self._version),
        }
        self.objects[plural, namespace, name] = live
        return live

    def find(self, plural: str, name: str) -> Json | None:
        matches = [live for (kind, _, key), live in self.objects.items() if (kind, key) == (plural, name)]
        return matches[0] if matches else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break

        status, answer = 200, {}
        try:
            answer = self._answer(scope, json.loads(body) if body else {})
        except Refusal as exc:
            status = exc.status
            reason = _REASONS.get(status, "Unknown")
            answer = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": str(exc)}

        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def _answer(self, scope: Any, body: Json) -> Json:
        parts = scope["path"].strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]

        plural = parts[0]
        name = parts[1] if len(parts) > 1 else body.get("metadata", {}).get("name", "")
        method = scope["method"]
        query = {key: values[0] for key, values in parse_qs(scope["query_string"].decode()).items()}
        content_type = dict(scope["headers"]).get(b"content-type", b"").decode()
        if method == "PATCH":
            method = content_type.removeprefix("application/").split("-")[0]
        elif method == "POST" and "dryRun" in query:
            method = "CHECK"

        self.calls.append((method, plural, name))
        for rule in self.rules:
            refusal = rule(method, plural, namespace, name)
            if refusal is not None:
                raise Refusal(*refusal)

        if method == "GET" and not name:
            return {"metadata": {}, "items": self._list(plural, namespace, query.get("labelSelector", ""))}

        return self._change(method, plural, namespace, name, body, query)

    def _list(self, plural: str, namespace: str, selector: str) -> list[Json]:
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        return [
            live
            for (kind, where, _), live in self.objects.items()
            if (kind, where) == (plural, namespace) and wanted.items() <= (live["metadata"].get("labels") or {}).items()
        ]

    def _change(self, method: str, plural: str, namespace: str, name: str, body: Json, query: dict[str, str]) -> Json:
        key = plural, namespace, name
        live = self.objects.get(key)
        if live is None and method not in {"apply", "POST", "CHECK"}:
            raise Refusal(404, f'{plural} "{name}" not found')

        if method == "GET" and live is not None:
            return live

        if method == "DELETE":
            if query.get("propagationPolicy") == "Orphan":
                self.orphaned.append(name)
            del self.objects[key]
            self._applied.pop(key, None)
            return {}

        if method in {"apply", "POST", "CHECK", "PUT"}:
            _validate(json.dumps(body, sort_keys=True))

        if live is not None and method == "POST":
            raise Refusal(409, f'{plural} "{name}" already exists')

        if live is not None and method == "PUT":
            if body["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]:
                raise Refusal(409, "the object has been modified; please apply your changes to the latest version")
            return self.put(plural, namespace, name, {**body, "metadata": {**live["metadata"], **body["metadata"]}})

        return self._write(key, method, live, body)

    def _write(self, key: tuple[str, str, str], method: str, live: Json | None, body: Json) -> Json:
        changed = body if live is None else _merge(live, body, replaces_lists=method == "merge")
        if method == "apply":
            # What was applied before and is left out now is removed; the real server does that at every depth.
            spec = body.get("spec") or {}
            for field in self._applied.get(key, {}).keys() - spec.keys():
                changed["spec"].pop(field, None)

        plural, _, name = key
        _check(plural, name, live, changed)
        if method == "CHECK":
            return changed
        if method == "apply":
            self._applied[key] = spec

        metadata = {} if live is None else live["metadata"]
        is_new_spec = live is not None and changed.get("spec") != live.get("spec")
        generation = metadata.get("generation", 1) + is_new_spec
        return self.put(
            *key,
            {**changed, "metadata": {**metadata, **changed["metadata"], "generation": generation}},
        )


def _merge(live: Any, change: Any, *, replaces_lists: bool) -> Any:
    """Merge as the server does: nulls remove, items of lists are found by port or name; a JSON merge replaces lists."""
    if isinstance(live, dict) and isinstance(change, dict):
        merged = {**live}
        for name, value in change.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = _merge(merged.get(name), value, replaces_lists=replaces_lists)
        return merged

    is_keyed = isinstance(change, list) and isinstance(live, list) and all(isinstance(item, dict) for item in change)
    if replaces_lists or not is_keyed:
        return copy.deepcopy(change)

    items = {_key(item): item for item in live}
    for item in change:
        items[_key(item)] = _merge(items.get(_key(item)), item, replaces_lists=False)

    return list(items.values())


def _key(item: Json) -> str:
    return str(item.get("port") or item.get("name") or sorted(item.items(), key=str))


def _check(plural: str, name: str, live: Json | None, changed: Json) -> None:
    """Refuse what the real server refuses, with its words."""
    spec = changed.get("spec") or {}
    before = (live or {}).get("spec") or {}
    ports = [port.get("name") for port in spec.get("ports") or ()] if plural == "services" else []
    for port in ports:
        if ports.count(port) > 1:
            raise Refusal(422, f'Service "{name}" is invalid: spec.ports[1].name: Duplicate value: "{port}"')

    if (
        plural == "services"
        and live is not None
        and before.get("clusterIP", spec.get("clusterIP")) != spec.get("clusterIP")
    ):
        raise Refusal(422, f'Service "{name}" is invalid: spec.clusterIPs[0]: Invalid value: field is immutable')

    is_claim = plural == "persistentvolumeclaims" and live is not None
    if is_claim and before.get("storageClassName") != spec.get("storageClassName"):
        raise Refusal(
            422, f'PersistentVolumeClaim "{name}" is invalid: spec: Forbidden: spec is immutable after creation'
        )

    if plural == "statefulsets" and live is not None and before.get("serviceName") != spec.get("serviceName"):
        raise Refusal(
            422, f'StatefulSet "{name}" is invalid: spec: Forbidden: updates to statefulset spec are forbidden'
        )


@contextlib.asynccontextmanager
async def connect(cluster: ClusterApi) -> AsyncIterator[KubernetesApi]:
    """Serve the cluster, and yield a client of it."""
    from lightkube import KubeConfig
    from lightkube.config.models import Cluster, User

    async with serve(cluster) as url:
        api = KubernetesApi(KubeConfig.from_one(cluster=Cluster(server=url), user=User(token="any")))
        try:
            yield api
        finally:
            await api.close()
