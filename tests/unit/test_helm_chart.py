"""The Helm chart gives the same objects as `portside manifests` for the same values, and refuses the same mistakes."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from portside.cli.helm_chart import CHART
from portside.cli.manifest_values import read_values
from portside.cli.manifests import build_objects
from portside.kernel.errors import UserMistake
from tests import helm
from tests.kubernetes import assert_restricted, validate

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / CHART / "values.schema.json").read_text("utf-8"))
POOL = {
    "nodeSelector": {"pool": "portside"},
    "tolerations": [{"key": "pool", "operator": "Equal", "value": "portside", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "high",
    "podAnnotations": {"example.com/scrape": "true"},
}
SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "namespace": "platform",
        "host": "portside.example.com",
        "imageRegistry": "registry.example.com/mirror",
        "imagePullSecrets": ["registry", "mirror"],
        "labels": {"team": "agents", "cost-center": "42"},
        "annotations": {"example.com/owner": 'a "quoted" name: {{ none }}'},
        "storageClass": "fast",
        "logLevel": "DEBUG",
        "platform": {
            **POOL,
            "image": "portside:1",
            "secretName": "own",
            "storageGi": 7,
            "resources": {"requests": {"cpu": "2"}, "limits": {"memory": None, "cpu": "4"}},
            "env": [
                {"name": "BACKUP_TO", "value": "s3://bucket/portside"},
                {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "secret"}}},
            ],
            "envFrom": [{"secretRef": {"name": "more"}}],
        },
        "postgres": {**POOL, "storageGi": 100, "image": "postgres:17"},
        "listener": {**POOL, "computeId": "cluster-1", "secretName": "key", "env": [{"name": "X", "value": "1"}]},
        "agents": {
            "namespaces": ["red", "blue"],
            "url": "https://*.agents.example.com",
            "ingressClass": "public",
            "tlsSecret": "wildcard",
            "readOnlyRoot": True,
            "keda": True,
            "cloudnativePg": True,
            "objectStore": "backups",
            "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "<https> & more"}],
            "nodeSelector": POOL["nodeSelector"],
            "tolerations": POOL["tolerations"],
            "priorityClassName": "low",
            "customHosts": ["chat.example.com", "*.bots.example.com"],
        },
        "ingress": {"className": "nginx", "tlsSecret": "tls", "annotations": {"example.com/timeout": "3600"}},
    },
    "external database": {"postgres": {"enabled": False}, "listener": {"enabled": False}, "host": "p.example.com"},
    "openshift with ipv6 and a proxy": {
        "arbitraryUids": True,
        "listenAddress": "::",
        "clusterDomain": "cluster.example",
        "proxy": {"https": "http://proxy.example.com:3128", "noProxy": ["10.0.0.0/8", ".example.com"]},
        "agents": {"podSecurity": "baseline"},
        "platform": {"resources": {"requests": None, "limits": None}},
    },
    "gateway in the same namespace": {
        "host": "portside.example.com",
        "createNamespaces": True,
        "annotations": {"example.com/owner": "agents"},
        "ingress": {"enabled": False},
        "gateway": {
            "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
            "annotations": {"example.com/timeout": "0"},
        },
        "agents": {"namespaces": ["portside", "agents"]},
        "proxy": {"http": "http://proxy.example.com:3128"},
    },
    "namespaces of somebody else": {"createNamespaces": False, "agents": {"namespaces": ["given"]}},
}


def print_objects(tmp_path: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return [manifest for part in build_objects(read_values(file, {})).values() for manifest in part]


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    named = {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in objects}
    assert len(named) == len(objects)
    return named


@pytest.mark.parametrize("name", SETS)
def test_chart_gives_the_objects_of_manifests(name: str, tmp_path: Path) -> None:
    values = SETS[name]
    printed = by_name(print_objects(tmp_path, values))
    # Helm installs into a namespace that exists.
    printed.pop(("Namespace", "", values.get("namespace", "portside")), None)

    jsonschema.Draft7Validator(SCHEMA).validate(
        helm.merge_values(yaml.safe_load((ROOT / CHART / "values.yaml").read_text()), values)
    )
    assert by_name(helm.render_chart(ROOT / CHART, values, "portside")) == printed


def test_chart_goes_into_namespace_of_release() -> None:
    objects = helm.render_chart(ROOT / CHART, {}, "elsewhere")
    assert {one["metadata"].get("namespace", "agents") for one in objects} == {"elsewhere", "agents"}
    (listener,) = [one for one in objects if one["kind"] == "Deployment" and "listener" in one["metadata"]["name"]]
    environment = listener["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "CONTROL_PLANE_URL", "value": "http://portside.elsewhere.svc:8700"} in environment


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("version", ["1.28", "1.36"])
def test_every_object_is_valid_and_restricted(name: str, version: str, tmp_path: Path) -> None:
    for manifest in print_objects(tmp_path, SETS[name]):
        if manifest["kind"] != "HTTPRoute":
            validate(manifest, version)
        if manifest["kind"] in {"Deployment", "StatefulSet"}:
            assert_restricted(manifest["spec"]["template"]["spec"])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"hots": "x"}, "hots"),
        ({"host": "https://x.example"}, "host"),
        ({"platform": {"storageGi": 0}}, "storageGi"),
        ({"platform": {"image": None}}, "image"),
        ({"platform": {"resources": None}}, "resources"),
        ({"agents": {"namespaces": []}}, "namespaces"),
        ({"agents": {"namespaces": ["a", "a"]}}, "namespaces"),
        ({"labels": {"app.kubernetes.io/name": "x"}}, "labels"),
        ({"listener": {"env": [{"value": "x"}]}}, "env"),
        ({"podSecurity": "privileged"}, "podSecurity"),
    ],
)
def test_mistake_in_values_is_named(values: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=problem):
        print_objects(tmp_path, values)

    merged = helm.merge_values(yaml.safe_load((ROOT / CHART / "values.yaml").read_text()), values)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SCHEMA).validate(merged)


def test_variable_of_the_manifests_is_not_set_twice(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=r"platform\.env: PORTSIDE_HOME is set by the manifests"):
        print_objects(tmp_path, {"platform": {"env": [{"name": "PORTSIDE_HOME", "value": "/"}]}})


def test_schema_can_be_read_by_helm() -> None:
    """Go's regular expressions have no groups that begin with (?."""
    assert "(?" not in json.dumps(SCHEMA)
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_renderer_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("{}")
    (tmp_path / "templates").mkdir()
    for text in ("{{ lookup }}", "{{ else }}", '{{ include "x" . }}', "{{ if $.Values.x }}", '{{ "x" | upper }}'):
        (tmp_path / "templates" / "x.yaml").write_text(text)
        with pytest.raises(helm.UnknownTemplate):
            helm.render_chart(tmp_path, {}, "x")
