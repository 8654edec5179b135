"""The objects that other operators act on match the schemas that those publish.

PORTSIDE_TEST_CRDS names a folder with their CustomResourceDefinitions, as YAML: scaledobjects of KEDA, clusters and
scheduledbackups of CloudNativePG.
"""

import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from portside.control.resources import with_defaults
from portside.dataplane.compute.kubernetes.objects import OPTIONAL_KINDS
from tests.kubernetes import every, objects, revision, settings

FOLDER = os.environ.get("PORTSIDE_TEST_CRDS")
pytestmark = pytest.mark.skipif(not FOLDER, reason="PORTSIDE_TEST_CRDS names no folder of CustomResourceDefinitions")


def read_schema(kind: str) -> dict[str, Any]:
    """The published schema of a kind."""
    for file in sorted(Path(FOLDER or "").glob("*.y*ml")):
        for definition in yaml.safe_load_all(file.read_text()):
            if definition["spec"]["names"]["kind"] == kind:
                (version,) = [one for one in definition["spec"]["versions"] if one["name"] == OPTIONAL_KINDS[kind][1]]
                return dict(version["schema"]["openAPIV3Schema"])

    raise AssertionError(f"{FOLDER} has no definition of {kind}")


def forbid_unknown_fields(schema: Any) -> Any:
    """A field that the schema does not have is an error, as it is for server-side apply."""
    if isinstance(schema, list):
        return [forbid_unknown_fields(part) for part in schema]
    if not isinstance(schema, dict):
        return schema

    strict = {name: forbid_unknown_fields(part) for name, part in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and not is_open:
        strict["additionalProperties"] = False

    return strict


def validate_operators(found: Any) -> set[str]:
    kinds = set()
    for manifest in every(found):
        if manifest["kind"] in OPTIONAL_KINDS:
            kinds.add(manifest["kind"])
            jsonschema.validate(
                manifest["spec"], forbid_unknown_fields(read_schema(manifest["kind"])["properties"]["spec"])
            )

    return kinds


def test_objects_for_keda_match_its_schema() -> None:
    spec = with_defaults({"min_scale": 2, "max_scale": 10})
    found = objects(revision(resource_spec=spec), settings(kubernetes_keda=True))
    assert validate_operators(found) == {"ScaledObject"}


def test_routes_match_the_schema_of_gateway_api() -> None:
    gateways = settings(
        kubernetes_ingress_url="https://*.agents.example.com",
        kubernetes_gateways='[{"name": "public", "namespace": "gateways", "sectionName": "https"}]',
    )
    assert validate_operators(objects(kubernetes=gateways)) == {"HTTPRoute"}


def test_databases_for_cloudnative_pg_match_its_schemas() -> None:
    spec = {
        **with_defaults({"db_cpu": 1, "db_memory_mb": 512}),
        "labels": {"team": "blue"},
        "annotations": {"note": "x"},
    }
    by_operator = settings(
        kubernetes_postgres_object_store="backups",
        kubernetes_postgres_instances=3,
        kubernetes_storage_class="fast",
        kubernetes_image_pull_secrets="pull",
    )

    found = objects(revision(resource_spec=spec), by_operator, has_operator=True)
    assert validate_operators(found) == {"Cluster", "ScheduledBackup"}
