"""Each source of a deployment accepts its own fields only, and its resource spec is checked and completed."""

import pytest

from portside.control import rules, sources
from portside.control.content import build_first_content
from portside.control.errors import BadCombination
from portside.control.resources import (
    check_resources,
    complete_resources,
    to_resource_spec,
    to_stored_fields,
    with_defaults,
)
from portside.control.types import DeploymentCreate, ResourceSpec
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import convert
from tests.unit.test_control_rules import LISTENER, check_create, create

IMAGE = "external_docker"
ARCHIVE = "internal_source"
PUSHED = "internal_docker"
GOOD_IMAGE = ({"resource_spec": {}}, {"image_uri": "host:5000/team/agent:1"})


def of_source(source: str, config: dict[str, object], revision: dict[str, object], **more: object) -> DeploymentCreate:
    body = {"name": "a", "source": source, "source_config": config, "source_revision_config": revision, **more}
    return convert(body, DeploymentCreate, "body")


def spec(**fields: object) -> ResourceSpec:
    return convert(fields, ResourceSpec, "body")


@pytest.mark.parametrize(
    ("source", "config", "revision", "named"),
    [
        (IMAGE, {}, {"image_uri": "a"}, "resource_spec is required for external_image"),
        (IMAGE, {"resource_spec": {}}, {}, "image_uri is required for external_image"),
        (IMAGE, {"resource_spec": {}, "deployment_type": "dev"}, {"image_uri": "a"}, "deployment_type"),
        (IMAGE, {"resource_spec": {}, "repo_url": "https://h/x"}, {"image_uri": "a"}, "repo_url"),
        (IMAGE, {"resource_spec": {}, "build_on_push": False}, {"image_uri": "a"}, "build_on_push"),
        (IMAGE, {"resource_spec": {}, "integration_id": LISTENER}, {"image_uri": "a"}, "integration_id"),
        (IMAGE, {"resource_spec": {}, "install_command": "npm ci"}, {"image_uri": "a"}, "install_command"),
        (IMAGE, {"resource_spec": {}}, {"image_uri": "a", "repo_ref": "main"}, "repo_ref"),
        (IMAGE, {"resource_spec": {}}, {"image_uri": "a", "graph_config_path": "x.json"}, "graph_config_path"),
        (ARCHIVE, {"repo_url": "https://h/x"}, {}, "repo_url"),
        (ARCHIVE, {"resource_spec": {}}, {}, "resource_spec"),
        (ARCHIVE, {"listener_id": LISTENER}, {}, "listener_id"),
        (ARCHIVE, {}, {"image_uri": "a"}, "image_uri"),
        (ARCHIVE, {}, {"source_tarball_path": "x"}, "graph_config_path is required for internal_source"),
        (ARCHIVE, {}, {"graph_config_path": "x.json"}, "source_tarball_path is required for internal_source"),
        (PUSHED, {"resource_spec": {}}, {}, "resource_spec"),
        (PUSHED, {"install_command": "npm ci"}, {}, "install_command"),
        (PUSHED, {}, {"graph_config_path": "x.json"}, "graph_config_path"),
    ],
)
def test_fields_of_other_sources_and_missing_ones_are_named(source: str, config, revision, named: str) -> None:
    with pytest.raises(BadCombination, match=named):
        check_create(of_source(source, config, revision))


def test_every_source_can_be_created() -> None:
    check_create(of_source(IMAGE, *GOOD_IMAGE))
    check_create(
        of_source(IMAGE, {**GOOD_IMAGE[0], "listener_id": LISTENER, "custom_url": "https://a.b/c"}, GOOD_IMAGE[1])
    )

    for source in (ARCHIVE, PUSHED):
        empty = of_source(source, {"deployment_type": "dev_zero"}, {})
        rules.check_create(empty)
        assert build_first_content(empty) is None

    with pytest.raises(BadCombination, match="secret_references can only be set for external_image"):
        references = [{"name": "A", "secret_name": "s", "secret_key": "k"}]
        check_create(of_source(ARCHIVE, {}, {}, secret_references=references))


@pytest.mark.parametrize(
    ("uri", "version"),
    [
        ("agent", "latest"),
        ("agent:1.2", "1.2"),
        ("host:5000/team/a_b/agent-x:v1", "v1"),
        ("localhost/agent@sha256:" + "0" * 64, "sha256:" + "0" * 64),
        ("127.0.0.1:5000/agent:1@sha256:" + "a" * 64, "1"),
    ],
)
def test_references_to_images_are_accepted_and_their_version_is_known(uri: str, version: str) -> None:
    sources.check_image_uri(uri)
    assert sources.get_image_version(uri) == version


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "-v",
        "--privileged",
        "a b",
        "Agent",
        "a:",
        "a@sha256:12",
        "a//b",
        "/a",
        "a;id",
        "a\n",
        "host:port/a",
        "a@b",
        "é",
    ],
)
def test_invalid_image_references_are_refused(uri: str) -> None:
    with pytest.raises(Invalid, match="image_uri"):
        sources.check_image_uri(uri)


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "https://u:p@h", "x", "http://h:99999", "http://h/?a=1", "http://-h"]
)
def test_an_address_of_ones_own_is_http(url: str) -> None:
    with pytest.raises(Invalid, match="custom_url"):
        rules.check_create(of_source(IMAGE, {"resource_spec": {}, "custom_url": url}, {"image_uri": "a"}))


def test_the_defaults_of_a_resource_spec() -> None:
    assert with_defaults({}) == {
        "min_scale": 1,
        "max_scale": 1,
        "cpu": 1,
        "cpu_limit": 2,
        "memory_mb": 2048,
        "memory_limit_mb": 4096,
        "queue_min_scale": 1,
        "queue_max_scale": 1,
        "queue_cpu": 1,
        "queue_cpu_limit": 2,
        "queue_memory_mb": 2048,
        "queue_memory_limit_mb": 4096,
    }

    given = to_stored_fields(
        spec(
            min_scale=2,
            max_scale=5,
            cpu=0.5,
            memory_mb=100,
            redis_cpu=1,
            redis_memory_mb=64,
            db_cpu=1.5,
            db_memory_mb=512,
            db_storage_gi=5,
            labels={"a": "b"},
        )
    )

    assert with_defaults(given) == {
        "min_scale": 2,
        "max_scale": 5,
        "cpu": 0.5,
        "cpu_limit": 1.0,
        "memory_mb": 100,
        "memory_limit_mb": 200,
        "queue_min_scale": 2,
        "queue_max_scale": 5,
        "queue_cpu": 0.5,
        "queue_cpu_limit": 1.0,
        "queue_memory_mb": 100,
        "queue_memory_limit_mb": 200,
        "redis_cpu": 1,
        "redis_cpu_limit": 2,
        "redis_memory_mb": 64,
        "redis_memory_limit_mb": 64,
        "db_cpu": 1.5,
        "db_cpu_limit": 3.0,
        "db_memory_mb": 512,
        "db_memory_limit_mb": 1024,
        "db_storage_gi": 5,
        "labels": {"a": "b"},
    }

    own = with_defaults(to_stored_fields(spec(cpu=1, queue_cpu=4, queue_memory_mb=10, memory_limit_mb=5000)))
    assert (own["queue_cpu"], own["queue_cpu_limit"], own["queue_memory_limit_mb"]) == (4, 8, 20)
    assert (own["cpu_limit"], own["memory_limit_mb"]) == (2, 5000)


def test_cpu_is_kept_to_one_decimal_and_integers_stay_integers() -> None:
    given = to_stored_fields(spec(cpu=2, queue_cpu=0.26, db_cpu=1.04))
    assert given == {"cpu": 2, "queue_cpu": 0.3, "db_cpu": 1.0}
    assert type(given["cpu"]) is int
    assert to_resource_spec(given).queue_cpu_limit == 0.6


def test_a_deployment_that_is_built_has_the_resources_of_its_type() -> None:
    assert [complete_resources(kind, None)["max_scale"] for kind in (None, "dev", "dev_free_zero", "prod")] == [
        1,
        1,
        1,
        10,
    ]
    assert complete_resources("prod", None)["cpu"] == 2
    assert complete_resources(None, {"cpu": 3})["cpu"] == 3


def test_a_limit_alone_bounds_what_is_requested() -> None:
    limits = spec(memory_limit_mb=1024, cpu_limit=0.5, queue_memory_limit_mb=512)
    check_resources(limits)
    shown = to_resource_spec(to_stored_fields(limits))
    assert (shown.memory_mb, shown.memory_limit_mb, shown.queue_memory_mb) == (1024, 1024, 512)
    assert (shown.cpu, shown.cpu_limit, shown.queue_cpu, shown.queue_cpu_limit) == (0.5, 0.5, 0.5, 1)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"min_scale": 2, "max_scale": 1}, "min_scale must not be greater than max_scale"),
        ({"min_scale": 0}, "min_scale must be at least 1"),
        ({"max_scale": 0}, "min_scale must not be greater"),
        ({"queue_min_scale": 3, "queue_max_scale": 2}, "queue_min_scale"),
        (
            {"volumes": [{"name": "v", "emptyDir": {}, "secret": {}}]},
            "volume v has more than one source: emptyDir, secret",
        ),
        ({"cpu": 2, "cpu_limit": 1}, "cpu must not be greater than cpu_limit"),
        ({"memory_mb": 100, "memory_limit_mb": 99}, "memory_mb"),
        ({"memory_mb": 200, "memory_limit_mb": 100}, "memory_mb must not be greater"),
        ({"queue_cpu": 2, "queue_cpu_limit": 1}, "queue_cpu must not be greater"),
        ({"db_memory_mb": 3, "db_memory_limit_mb": 2}, "db_memory_mb"),
        ({"executor_cpu": 2, "executor_cpu_limit": 1}, "executor_cpu must not be greater than executor_cpu_limit"),
        ({"orchestrator_memory_mb": 3, "orchestrator_memory_limit_mb": 2}, "orchestrator_memory_mb must not be"),
        ({"orchestrator_min_scale": 3, "orchestrator_max_scale": 2}, "orchestrator_min_scale must not be greater"),
        ({"queue_min_scale": 0}, "queue_min_scale must be at least 1"),
        ({"orchestrator_min_scale": 0}, "orchestrator_min_scale must be at least 1"),
        ({"executor_cpu": 1, "queue_max_scale": 0}, "queue_max_scale must be at least 1"),
        ({"volume_mounts": [{"name": "v", "mountPath": "/v"}]}, "volume v"),
        ({"volumes": [{"name": "v"}, {"name": "v"}]}, "volumes are named v"),
        ({"sidecars": [{"name": "c", "image": "i"}], "init_containers": [{"name": "c", "image": "i"}]}, "named c"),
        (
            {"sidecars": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "1", "valueFrom": {}}]}]},
            "valueFrom",
        ),
        ({"sidecars": [{"name": "c", "image": "i", "ports": [{"containerPort": 8000}]}]}, "the server's"),
        ({"sidecars": [{"name": "c", "image": "i", "ports": [{"containerPort": 1, "name": "http"}]}]}, "the server's"),
        (
            {"sidecars": [{"name": n, "image": "i", "ports": [{"containerPort": 1, "name": "p"}]} for n in ("c", "d")]},
            "two ports are named p",
        ),
        ({"init_containers": [{"name": "c", "image": "i", "startupProbe": {}}]}, "startupProbe, which only"),
        ({"init_containers": [{"name": "c", "image": "i", "lifecycle": {}}]}, "make it a sidecar"),
    ],
)
def test_a_resource_spec_that_contradicts_itself_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(BadCombination, match=named):
        check_resources(spec(**fields))


def test_orchestrators_and_executors_are_like_the_queue_and_exist_only_if_they_are_named() -> None:
    assert not [name for name in with_defaults({}) if name.startswith(("orchestrator_", "executor_"))]
    given = to_stored_fields(spec(queue_cpu=2, queue_memory_mb=512, executor_memory_mb=100, executor_cpu_limit=1))
    found = {name: value for name, value in with_defaults(given).items() if name.startswith(("orch", "exec"))}

    assert found == {
        "orchestrator_min_scale": 1,
        "orchestrator_max_scale": 1,
        "orchestrator_cpu": 2,
        "orchestrator_cpu_limit": 4,
        "orchestrator_memory_mb": 512,
        "orchestrator_memory_limit_mb": 1024,
        "executor_cpu": 1,
        "executor_cpu_limit": 1,
        "executor_memory_mb": 100,
        "executor_memory_limit_mb": 200,
    }

    assert with_defaults(to_stored_fields(spec(orchestrator_min_scale=3)))["orchestrator_max_scale"] == 3
    check_resources(spec(orchestrator_max_scale=4))


@pytest.mark.parametrize(
    ("own", "revision", "is_allowed"),
    [
        ("github", "internal_source", True),
        ("github", "git_hosting", True),
        ("internal_source", "internal_docker", True),
        ("internal_source", "github", False),
        ("internal_docker", "external_image", False),
        ("external_docker", "external_image", True),
        ("external_image", "internal_source", False),
    ],
)
def test_a_revision_may_come_from_some_other_sources(own: str, revision: str, *, is_allowed: bool) -> None:
    if is_allowed:
        sources.check_revision_source(revision, own)
    else:
        with pytest.raises(BadCombination, match="revision_source"):
            sources.check_revision_source(revision, own)


@pytest.mark.parametrize(
    ("spec", "loc"),
    [
        ({"cpu": 9}, "cpu"),
        ({"cpu": 0.05}, "cpu"),
        ({"memory_mb": 0}, "memory_mb"),
        ({"min_scale": -1}, "min_scale"),
        ({"min_scale": 1.5}, "min_scale"),
        ({"labels": {"a": 1}}, "labels"),
        ({"volumes": [{"name": "Bad"}]}, "name"),
        ({"volumes": [{}]}, "name"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"volume_mounts": [{"name": "x"}]}, "mountPath"),
        ({"sidecars": [{"name": "x", "image": "y", "imagePullPolicy": "Maybe"}]}, "imagePullPolicy"),
        ({"init_containers": [{"name": "x", "image": "y", "env": [{"name": "1"}]}]}, "name"),
        ({"image_pull_secrets": [{}]}, "name"),
        ({"image_pull_secrets": [{"name": "x", "namespace": "y"}]}, "namespace"),
        ({"sidecars": [{"name": "x", "image": "y", "tty": True}]}, "tty"),
        ({"sidecars": [{"name": "x", "image": "y", "ports": [{"containerPort": 0}]}]}, "containerPort"),
        ({"sidecars": [{"name": "x", "image": "y", "ports": [{"containerPort": 80, "name": "80"}]}]}, "name"),
        ({"sidecars": [{"name": "x", "image": "y", "env": [{"name": "A", "from": 1}]}]}, "from"),
        ({"sidecars": [{"name": "x", "image": "y", "resources": {"claims": []}}]}, "claims"),
        ({"volume_mounts": [{"name": "x", "mountPath": "/", "recursiveReadOnly": "Enabled"}]}, "recursiveReadOnly"),
    ],
)
def test_a_resource_spec_of_the_wrong_shape_is_located(spec: dict[str, object], loc: str) -> None:
    with pytest.raises(Invalid) as refused:
        create(source_config={"resource_spec": spec})

    assert refused.value.problems[0].loc[:3] == ["body", "source_config", "resource_spec"]
    assert refused.value.problems[0].loc[-1] in (loc, "...")


def test_a_full_resource_spec_is_understood() -> None:
    container = {
        "name": "c",
        "image": "i:1",
        "imagePullPolicy": "Always",
        "command": ["a"],
        "args": ["b"],
        "workingDir": "/",
        "env": [{"name": "A", "value": "1"}],
        "envFrom": [{"secretRef": {"name": "s"}}],
        "restartPolicy": "Always",
        "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
        "securityContext": {"runAsUser": 1},
        "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True, "subPath": "x"}],
        "ports": [{"containerPort": 9000, "name": "metrics", "protocol": "TCP"}],
        "startupProbe": {"httpGet": {"port": "metrics"}},
        "readinessProbe": {"httpGet": {"port": "metrics"}},
        "livenessProbe": {"httpGet": {"port": "metrics"}},
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
    }

    spec = create(
        source_config={
            "resource_spec": {
                "cpu": 0.5,
                "cpu_limit": 16,
                "db_cpu": 2.5,
                "sidecars": [container],
                "init_containers": [{**container, "ports": [{"containerPort": 9001}]}],
                "volumes": [{"name": "v", "emptyDir": {}, "downwardAPI": {"items": []}}],
            }
        }
    ).source_config.resource_spec

    assert spec is not None
    assert spec.volumes is not None
    assert (spec.cpu, spec.volumes[0].downward_api, spec.volumes[0].empty_dir) == (0.5, {"items": []}, {})
