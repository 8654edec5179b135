"""A real API server admits every pod of an installation and of a deployment to a namespace that enforces `restricted`.

PORTSIDE_TEST_KUBECONFIG names a kubeconfig of a cluster, which may create a namespace there. No pod is started.
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portside.cli.manifest_values import read_values
from portside.cli.manifests import build_objects
from tests.kubernetes import FULL_SPEC, every, objects, revision

KUBECONFIG = os.environ.get("PORTSIDE_TEST_KUBECONFIG")
pytestmark = pytest.mark.skipif(not KUBECONFIG, reason="PORTSIDE_TEST_KUBECONFIG names no cluster")
LEVEL = {"pod-security.kubernetes.io/enforce": "restricted"}


class Admission:
    """A namespace that enforces `restricted`."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def create_pod(self, template: dict[str, Any]) -> None:
        """Ask the API server whether it would create a pod; raises its refusal."""
        from lightkube import codecs

        # The account of the listener is not here, and is no matter of Pod Security.
        spec = {name: value for name, value in template["spec"].items() if name != "serviceAccountName"}
        metadata = {"generateName": "test-", "namespace": self._namespace, "labels": template["metadata"]["labels"]}
        pod = codecs.from_dict({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        self._client.create(pod)


@pytest.fixture(scope="module")
def admission() -> Iterator[Admission]:
    from lightkube import Client, KubeConfig
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import Namespace, ServiceAccount

    config = KubeConfig.from_file(Path(KUBECONFIG or "")).get()
    namespace = f"portside-test-{secrets.token_hex(4)}"
    with Client(config=config) as client, Client(config=config, dry_run=True) as asking:
        client.create(Namespace(metadata=ObjectMeta(name=namespace, labels=LEVEL)))
        client.apply(ServiceAccount(metadata=ObjectMeta(name="default", namespace=namespace)), field_manager="test")

        yield Admission(asking, namespace)
        client.delete(Namespace, namespace)


def list_templates(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds = {"Deployment", "StatefulSet"}
    return [manifest["spec"]["template"] for manifest in manifests if manifest["kind"] in kinds]


@pytest.mark.parametrize("flags", [{}, {"arbitraryUids": True}, {"agents.readOnlyRoot": True}], ids=str)
def test_installation_is_admitted(admission: Admission, flags: dict[str, Any]) -> None:
    parts = build_objects(read_values(None, flags)).values()
    templates = list_templates([manifest for part in parts for manifest in part])
    assert len(templates) == 3
    for template in templates:
        admission.create_pod(template)


def test_deployment_is_admitted(admission: Admission) -> None:
    spec = {**FULL_SPEC, "sidecars": [{"name": "cache", "image": "cache:1"}]}
    templates = list_templates(every(objects(revision(resource_spec=spec))))
    assert len(templates) == 4
    for template in templates:
        admission.create_pod(template)


def test_pod_with_more_rights_is_refused(admission: Admission) -> None:
    from lightkube import ApiError

    (template, *_) = list_templates(every(objects(revision())))
    pod = {**template, "spec": {**template["spec"], "hostNetwork": True}}
    with pytest.raises(ApiError, match="restricted"):
        admission.create_pod(pod)
