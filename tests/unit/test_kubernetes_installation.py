"""The objects that `portside manifests` prints: valid, without secrets, with only the needed rights."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from portside.agent.settings import AgentSettings
from portside.cli.manifest_values import read_values
from portside.cli.manifests import build_objects, manifests
from portside.dataplane.compute.kubernetes.rights import OPTIONAL_RIGHTS, list_rights
from portside.dataplane.compute.kubernetes.settings import KubernetesSettings
from portside.dataplane.settings import ListenerSettings
from portside.kernel.errors import UserMistake
from portside.kernel.settings import describe, load_settings
from portside.platform.settings import PlatformSettings
from tests.kubernetes import assert_restricted, validate

EVERYTHING = [
    "--host",
    "portside.example.com",
    "--ingress-class",
    "nginx",
    "--tls-secret",
    "tls",
    "--storage-class",
    "fast",
    "--agents-namespace",
    "red",
    "--agents-namespace",
    "blue",
    "--agents-url",
    "https://*.agents.example.com",
]


def print_manifests(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(manifests, arguments)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.output))


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] == kind]


def find_container(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (match,) = [
        one for one in found if one["metadata"]["name"] == name and one["kind"] in {"Deployment", "StatefulSet"}
    ]
    (container,) = match["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize(
    "arguments",
    [[], EVERYTHING, ["--no-postgres"], ["--no-listener"]],
    ids=["plain", "everything", "external", "alone"],
)
@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_every_object_is_valid(arguments: list[str], version: str) -> None:
    found = print_manifests(*arguments)
    for manifest in found:
        validate(manifest, version)

    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in found]
    assert len(names) == len(set(names))


def test_manifests_print_no_secret_and_name_required_ones() -> None:
    result = CliRunner().invoke(manifests, [])
    found = list(yaml.safe_load_all(result.output))
    assert of_kind(found, "Secret") == []

    notes = "".join(line for line in result.output.splitlines() if line.startswith("#"))
    for name in ("portside", "portside-listener", "portside-postgres"):
        for variable in find_container(found, name)["env"]:
            if "valueFrom" in variable:
                reference = variable["valueFrom"]["secretKeyRef"]
                assert f"generic {reference['name']} " in notes
                assert f"--from-literal={reference['key']}=" in notes


@pytest.mark.parametrize(
    ("name", "kinds"), [("portside", [PlatformSettings]), ("portside-listener", [ListenerSettings, KubernetesSettings])]
)
def test_programs_understand_their_environment(name: str, kinds: list[Any]) -> None:
    variables = {
        one["name"]: one.get("value", "given") for one in find_container(print_manifests(*EVERYTHING), name)["env"]
    }
    known = {known for kind in kinds for doc in describe(kind) for known in doc.names}
    assert set(variables) - {"HOME"} <= known

    for kind in kinds:
        load_settings(kind, variables)


def test_platform_on_cluster_runs_no_embedded_listener() -> None:
    variables = {one["name"]: one.get("value") for one in find_container(print_manifests(), "portside")["env"]}
    assert (
        load_settings(PlatformSettings, {**variables, "DATABASE_URL": "x", "PORTSIDE_API_KEY": "y"}).own_listener
        is False
    )


@pytest.mark.parametrize(("gi", "usable_gi"), [(100, 90), (20, 18), (5, 3), (1, 0.5)])
def test_database_is_refused_data_before_its_claim_is_full(gi: int, usable_gi: float) -> None:
    """The write-ahead log is on the same volume."""
    variables = {
        one["name"]: one.get("value")
        for one in find_container(print_manifests("--storage-gi", str(gi)), "portside")["env"]
    }
    assert variables["DATABASE_MAX_BYTES"] == str(int(usable_gi * 2**30))
    assert "DATABASE_MAX_BYTES" not in str(find_container(print_manifests("--no-postgres"), "portside"))


OWN = "get, list, create, patch, delete"
# Whoever adds a right here adds it to docs/guides/kubernetes.md and SECURITY.md as well, with its reason.
LISTENER_RIGHTS = {
    ("", "secrets"): OWN,
    ("", "persistentvolumeclaims"): OWN,
    ("", "services"): OWN,
    ("networking.k8s.io", "networkpolicies"): OWN,
    ("apps", "statefulsets"): OWN,
    ("apps", "deployments"): OWN,
    ("autoscaling", "horizontalpodautoscalers"): OWN,
    ("policy", "poddisruptionbudgets"): OWN,
    ("networking.k8s.io", "ingresses"): OWN,
    ("", "pods"): "list, delete",
    ("", "pods/log"): "get",
    ("", "pods/proxy"): "get",
    ("", "events"): "list",
    ("", "configmaps"): "get",
    ("", "serviceaccounts"): "get",
    ("coordination.k8s.io", "leases"): "get, create, update",
}


def test_listener_role_has_exactly_the_needed_rights() -> None:
    found = print_manifests(*EVERYTHING)
    assert of_kind(found, "ClusterRole") == []
    assert {one["metadata"]["namespace"] for one in of_kind(found, "Role")} == {"red", "blue"}

    for role in of_kind(found, "Role"):
        rights = {
            (group, resource): ", ".join(rule["verbs"])
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        assert rights == LISTENER_RIGHTS

    # Kinds of other operators only where they are asked for.
    (role,) = of_kind(print_manifests("--keda", "--cloudnative-pg"), "Role")
    groups = {group for rule in role["rules"] for group in rule["apiGroups"]}
    assert groups == {group for group, _ in LISTENER_RIGHTS} | {"keda.sh", "postgresql.cnpg.io"}

    for binding in of_kind(found, "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "portside-listener", "namespace": "portside"}]


def test_postgres_of_the_platform_is_spread_and_has_a_budget() -> None:
    found = print_manifests()
    (postgres,) = of_kind(found, "StatefulSet")
    pod = postgres["spec"]["template"]["spec"]
    labels = postgres["spec"]["template"]["metadata"]["labels"]
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}} in pod["volumes"]
    assert pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].items() <= labels.items()

    # One that kept the only pod would keep its node from being drained.
    (budget,) = of_kind(found, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert of_kind(print_manifests("--no-postgres"), "PodDisruptionBudget") == []


def test_pods_run_without_privileges() -> None:
    found = print_manifests()
    for workload in (*of_kind(found, "Deployment"), *of_kind(found, "StatefulSet")):
        pod = workload["spec"]["template"]["spec"]
        assert_restricted(pod)
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
        assert "/tmp" in {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}

    for namespace in of_kind(found, "Namespace"):
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_liveness_of_platform_does_not_ask_the_database() -> None:
    container = find_container(print_manifests(), "portside")
    probes = {"livenessProbe": "/ok?check_db=0", "startupProbe": "/ok?check_db=0", "readinessProbe": "/ok"}
    assert {probe: container[probe]["httpGet"]["path"] for probe in probes} == probes


def test_folder_is_what_kubectl_applies(tmp_path: Path) -> None:
    folder = tmp_path / "portside"
    result = CliRunner().invoke(manifests, ["--output", str(folder), "--host", "portside.example.com"])
    assert result.exit_code == 0, result.output

    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    files = [folder / name for name in kustomization["resources"]]
    found = [manifest for file in files for manifest in yaml.safe_load_all(file.read_text())]
    assert found == print_manifests("--host", "portside.example.com")

    # Written again, it has no file of what is left out now.
    assert CliRunner().invoke(manifests, ["--output", str(folder), "--no-postgres"]).exit_code == 0
    assert "postgres.yaml" not in {file.name for file in folder.iterdir()}


def test_folder_with_files_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text("mine")
    result = CliRunner().invoke(manifests, ["--output", str(tmp_path)])
    assert isinstance(result.exception, UserMistake)
    assert "patch.yaml" in str(result.exception)
    assert [file.name for file in tmp_path.iterdir()] == ["patch.yaml"]


def test_flags_replace_values_of_file(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("host: one.example.com\npostgres:\n  storageGi: 5\nstorageClass: slow\n")
    found = print_manifests("--values", str(file), "--host", "two.example.com")
    (ingress,) = of_kind(found, "Ingress")
    assert ingress["spec"]["rules"][0]["host"] == "two.example.com"
    sizes = {one["metadata"]["name"]: one["spec"] for one in of_kind(found, "PersistentVolumeClaim")}
    assert sizes["portside-postgres"]["resources"] == {"requests": {"storage": "5Gi"}}
    assert sizes["portside-home"]["storageClassName"] == "slow"


@pytest.mark.parametrize("text", ["[1]", "a: [", "hots: x", "a" * 1_000_001])
def test_bad_file_of_values_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(text)
    result = CliRunner().invoke(manifests, ["--values", str(file)])
    assert isinstance(result.exception, UserMistake)


def test_schema_describes_every_value() -> None:
    result = CliRunner().invoke(manifests, ["--schema"])
    schema = json.loads(result.output)
    for part in (schema, *schema["definitions"].values()):
        if part["title"] != "Variable":
            assert all("description" in value or "$ref" in str(value) for value in part["properties"].values())


def test_platform_knows_its_own_host_and_those_that_owners_may_request(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("host: p.example.com\nagents: {customHosts: [chat.example.com, '*.bots.example.com']}\n")
    objects = [one for part in build_objects(read_values(file, {})).values() for one in part]
    (platform,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Deployment", "portside")]
    (container,) = platform["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["PORTSIDE_PUBLIC_HOST"] == "p.example.com"
    assert variables["CUSTOM_HOSTS"] == "chat.example.com,*.bots.example.com"


def test_home_is_a_folder_of_its_own_in_the_volume() -> None:
    """The root of a volume belongs to root, and HOME of the image may belong to another user."""
    for name in ("portside", "portside-listener"):
        container = find_container(print_manifests(), name)
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        variables = {one["name"]: one.get("value") for one in container["env"]}
        assert variables["PORTSIDE_HOME"] == f"{mounts['home']}/home"
        assert variables["HOME"] == mounts["tmp"]

    for workload in of_kind(print_manifests(), "Deployment"):
        assert workload["spec"]["template"]["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_external_database_leaves_postgres_out() -> None:
    assert of_kind(print_manifests("--no-postgres"), "StatefulSet") == []
    assert len(of_kind(print_manifests(), "StatefulSet")) == 1


def test_agent_server_understands_pod_environment() -> None:
    from tests.kubernetes import objects, variables

    plain = {name: value for name, value in variables(objects()).items() if isinstance(value, str)}
    read = load_settings(AgentSettings, plain)
    assert (read.host, read.port, read.tier) == ("0.0.0.0", 8000, "api")
    assert read.database_url == plain["DATABASE_URI"]
    assert read.redis_uri == plain["REDIS_URI"]
    assert (read.revision_id, read.bg_job_shutdown_grace_period_secs) == (plain["LANGSMITH_HOST_REVISION_ID"], 180)


def test_guide_documents_each_right_of_the_listener() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/kubernetes.md").read_text("utf-8")
    for right in list_rights(OPTIONAL_RIGHTS):
        assert f"| `{right.resource}` | {right.verbs} | {right.reason} |" in guide, right.resource
