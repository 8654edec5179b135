"""The rules for names, addresses, secrets and status transitions of deployments."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from portside.control import rules, sources
from portside.control.addresses import PublicAddresses, get_public_url
from portside.control.archive_store import MAX_ARCHIVE_BYTES
from portside.control.archives import UNUSED_FOR_S, UNUSED_KEPT, UPLOAD_WITHIN_S
from portside.control.content import RevisionContent, apply_patch, build_first_content
from portside.control.deployments import SILENT_AFTER
from portside.control.errors import BadCombination, IllegalTransition, Immutable, SourceNotAvailable
from portside.control.http import routes
from portside.control.listeners import Placement, check_compute
from portside.control.pushes import DELIVERIES_KEPT_DAYS, MAX_DEPLOYMENTS
from portside.control.revision_logs import MAX_LOG_ENTRIES
from portside.control.revisions import TERMINAL, TRANSITIONS, check_transition
from portside.control.secrets import RESERVED, apply_changes, check_secrets
from portside.control.service_keys import OLD_KEY_LIFETIME
from portside.control.types import DeploymentCreate, DeploymentPatch, SecretChanges
from portside.kernel.caller_tokens import LIFETIME_S
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import convert
from portside.listener_api import RevisionStatus, Secret
from tests.api.control_server import create_body

S = RevisionStatus


LISTENER = "6f0bb0b1-77c8-4bd6-8f8e-7a9d3e9d1f00"
ROW = {
    "name": "a",
    "source": "github",
    "integration_id": None,
    "repo_url": "https://h/x",
    "deployment_type": "dev",
    "custom_url": "http://127.0.0.1:1",
    "listener_id": None,
    "k8s_namespace": None,
}


def is_refused(check: Callable[..., object], *arguments: object) -> bool:
    try:
        check(*arguments)
    except Invalid:
        return True

    return False


def create(**over: object) -> DeploymentCreate:
    return convert(create_body(**over), DeploymentCreate, "body")


def check_create(body: DeploymentCreate) -> None:
    rules.check_create(body)
    build_first_content(body)


def patch(**body: object) -> DeploymentPatch:
    return convert(body, DeploymentPatch, "body")


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example.com/team/agent.git",
        "https://token@git.example.com/team/agent",
        "http://localhost:3000/a/b",
        "ssh://git@git.example.com:22/a.git",
        "git://[::1]:9418/a",
        "git@git.example.com:team/agent.git",
        "file:///srv/git/a folder/agent.git",
        "/srv/git/a folder/agent",
    ],
)
def test_addresses_that_git_can_clone_are_accepted(url: str) -> None:
    assert not is_refused(sources.check_repo_url, url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "-oProxyCommand=id",
        "--upload-pack=id",
        "ext::sh -c id",
        "fd::7",
        "transport::https://x/y",
        "ssh://-oProxyCommand=id/x",
        "ssh://-x@host/y",
        "ssh://git@-host/x",
        "git@-host:x",
        "relative/path",
        "../up",
        "https://",
        "https://host",
        "https://host:99999/x",
        "https://host/a b",
        "https://host/a\x00b",
        "/srv/a\nb",
        "ftp://host/x",
        "file://host/x",
        "https://host/x\n",
    ],
)
def test_addresses_with_another_meaning_are_refused(url: str) -> None:
    with pytest.raises(Invalid, match="repo_url"):
        sources.check_repo_url(url)


def test_owner_and_name_suggest_a_github_address() -> None:
    with pytest.raises(Invalid, match=r"repo_url: .*; did you mean https://github\.com/team/agent\?"):
        sources.check_repo_url("team/agent.git")

    for other in ("agent", "a/b/c", "-a/b", "./a", "../b", "~/agent", "a/", "a b/c", "a/b\n"):
        assert sources.to_github_url(other) is None


@pytest.mark.parametrize("ref", ["main", "feature/x-1", "refs/tags/v1.0", "a" * 40, "v1_2"])
def test_names_of_branches_tags_and_commits_are_accepted(ref: str) -> None:
    assert not is_refused(sources.check_repo_ref, ref)


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "-f",
        "a b",
        "a..b",
        "a^",
        "a~1",
        "a:b",
        "a?",
        "a*",
        "a[",
        "a\\b",
        "@",
        "a@{1}",
        "x.lock",
        "/a",
        "a/",
        "a//b",
        ".a",
        "a.",
        "a/.b",
        "a\x00",
        "a\n",
        "refs/heads/main",
        "refs/pull/1/head",
    ],
)
def test_invalid_refs_are_refused(ref: str) -> None:
    with pytest.raises(Invalid, match="repo_ref"):
        sources.check_repo_ref(ref)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x.json", "a/../../x", "-x", "a\\b", "a\x00", "a\nb"])
def test_config_paths_stay_inside_the_repository(path: str) -> None:
    sources.check_config_path("apps/agent/langgraph.json")
    with pytest.raises(Invalid, match="graph_config_path"):
        sources.check_config_path(path)


def test_credentials_of_an_address_can_be_hidden() -> None:
    assert sources.hide_credentials("https://u:p@host/x@y") == "https://host/x@y"
    assert sources.hide_credentials("git@host:x") == "git@host:x"


@pytest.mark.parametrize("name", ["", "Agent", "a_b", "-a", "a-", "a.b", "a" * 64, "a\n", "é"])
def test_a_name_is_a_dns_label(name: str) -> None:
    rules.check_create(create(name="a" * 63))
    with pytest.raises(Invalid, match="name"):
        rules.check_create(create(name=name))


def test_unavailable_sources_are_refused_by_name() -> None:
    with pytest.raises(SourceNotAvailable, match="internal_template is not available"):
        rules.check_create(create(source="internal_template"))

    with pytest.raises(SourceNotAvailable):
        rules.check_patch(patch(revision_source="internal_template"), ROW)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"resource_spec": {}}, "resource_spec can only be set for external_image"),
        ({"listener_id": LISTENER}, "listener_id"),
        ({"listener_config": {"k8s_namespace": "x"}}, "listener_config"),
        ({"custom_url": "http://x"}, "custom_url is set by the platform"),
        ({"repo_url": None}, "repo_url is required for git_hosting"),
        ({"install_command": "npm ci; id"}, "install_command"),
        ({"build_command": "npm run build\n"}, "build_command"),
    ],
)
def test_source_fields_that_make_no_git_deployment_are_named(config: dict[str, object], named: str) -> None:
    with pytest.raises(BadCombination, match=named):
        check_create(create(source_config=config))


@pytest.mark.parametrize(
    ("revision", "named"),
    [
        ({"image_uri": "x:1"}, "image_uri can only be set for external_image and internal_docker revisions"),
        ({"source_tarball_path": "x"}, "source_tarball_path can only be set for internal_source"),
        ({"graph_config_path": None}, "graph_config_path is required"),
    ],
)
def test_revision_fields_that_make_no_git_revision_are_named(revision: dict[str, object], named: str) -> None:
    with pytest.raises(BadCombination, match=named):
        check_create(create(source_revision_config=revision))


@pytest.mark.parametrize("character", ['"', "'`", "\\", "|", ";", "$", ">", "<", "\n", "\r", "\0", "\t", "&", "&&&"])
def test_shell_characters_in_commands_are_refused(character: str) -> None:
    check_create(create(source_config={"install_command": "npm ci && npm run 'prepare' --if-present"}))
    with pytest.raises(BadCombination, match="install_command"):
        rules.check_create(create(source_config={"install_command": f"npm ci {character} x"}))


@pytest.mark.parametrize("ref", ["refs/tags/v1", "a" * 40])
def test_tags_and_commits_exclude_build_on_push(ref: str) -> None:
    with pytest.raises(BadCombination, match="tag"):
        check_create(create(source_config={"build_on_push": True}, source_revision_config={"repo_ref": ref}))

    check_create(create(source_config={"build_on_push": False}, source_revision_config={"repo_ref": ref}))
    check_create(create(source_config={"build_on_push": True}))


def test_a_patch_cannot_change_immutable_fields() -> None:
    same = {"repo_url": "https://h/x", "deployment_type": "dev", "custom_url": "http://127.0.0.1:1"}
    rules.check_patch(patch(name="a", source="git_hosting", source_config=same), ROW)
    fixed = {
        "repo_url": "https://h/y",
        "deployment_type": "prod",
        "custom_url": "http://x",
        "listener_id": LISTENER,
        "integration_id": LISTENER,
    }

    for field, value in fixed.items():
        with pytest.raises(Immutable, match=f"source_config.{field} cannot be changed"):
            rules.check_patch(patch(source_config={field: value}), ROW)

    with pytest.raises(Immutable, match=r"^source_config.listener_config.k8s_namespace"):
        rules.check_patch(patch(source_config={"listener_config": {"k8s_namespace": "b"}}), ROW)

    with pytest.raises(Immutable, match=r"^name"):
        rules.check_patch(patch(name="b"), ROW)

    with pytest.raises(Immutable, match=r"^source "):
        rules.check_patch(patch(source="external_image"), ROW)


def test_an_empty_command_replaces_the_one_before() -> None:
    content = RevisionContent(source="github", secrets=[], install_command="npm ci", build_command="npm run build")
    apply_patch(content, patch(source_config={"install_command": ""}))
    assert (content.install_command, content.build_command) == ("", "npm run build")


def test_an_image_s_own_address_may_change() -> None:
    image = {**ROW, "source": "external_image", "repo_url": None, "deployment_type": None}
    rules.check_patch(patch(source_config={"custom_url": "https://new.example.com"}), image)


def test_only_some_fields_of_a_patch_make_a_revision() -> None:
    for name in ("repo_ref", "graph_config_path", "image_uri", "source_tarball_path"):
        assert rules.makes_revision(patch(source_revision_config={name: "x"}))

    assert rules.makes_revision(patch(secrets=[]))
    assert rules.makes_revision(patch(secret_references=[]))
    assert rules.makes_revision(patch(source_config={"resource_spec": {}}))
    assert not rules.makes_revision(patch(display_name="x", source_config={"build_on_push": False}))
    assert not rules.makes_revision(patch(source_config={"install_command": "npm ci"}, source_revision_config={}))
    assert not rules.makes_revision(patch(source_config={"custom_url": "http://x"}, revision_source="github"))


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "A\n", "A" * 257])
def test_a_secret_is_named_like_an_environment_variable(name: str) -> None:
    with pytest.raises(Invalid, match=r"secrets\.0\.name"):
        check_secrets([Secret(name, "x")])


def test_values_of_secrets_are_bounded() -> None:
    check_secrets([Secret("A", "é" * 32 * 1024), Secret("LANGSMITH_API_KEY", "own")])
    for value in ("a\0b", "é" * 32 * 1024 + "x"):
        with pytest.raises(Invalid, match=r"secrets\.0\.value"):
            check_secrets([Secret("A", value)])

    with pytest.raises(Invalid, match="together"):
        check_secrets([Secret(f"A{i}", "x" * 60_000) for i in range(9)])


def test_a_deployment_has_at_most_500_secrets() -> None:
    secrets = [Secret(f"A{number}", "x") for number in range(499)]
    assert len(apply_changes(secrets, SecretChanges(set=[Secret("B", "x")]))) == 500
    replaced = apply_changes([*secrets, Secret("B", "x")], SecretChanges(set=[Secret("C", "x")], unset=["B"]))
    assert [secret.name for secret in replaced[-2:]] == ["A498", "C"]
    with pytest.raises(Invalid, match="at most 500"):
        apply_changes([*secrets, Secret("B", "x")], SecretChanges(set=[Secret("C", "x")]))


def test_secrets_have_at_most_512_kilobytes_together() -> None:
    most = [Secret(f"A{number}", "x" * 64 * 1024) for number in range(8)]
    check_secrets(most)
    with pytest.raises(Invalid, match="524288 bytes together"):
        check_secrets([*most, Secret("B", "x")])


def test_limits_are_those_that_the_documentation_names() -> None:
    assert MAX_ARCHIVE_BYTES == 200 * 1024 * 1024
    assert (UPLOAD_WITHIN_S, UNUSED_KEPT, UNUSED_FOR_S) == (3600, 10, 86_400)
    assert MAX_LOG_ENTRIES == 20_000
    assert (DELIVERIES_KEPT_DAYS, MAX_DEPLOYMENTS) == (400, 200)
    assert timedelta(minutes=2) == SILENT_AFTER
    assert timedelta(hours=1) == OLD_KEY_LIFETIME
    assert LIFETIME_S == 60


@pytest.mark.parametrize(
    "name",
    [
        "PORT",
        "DATABASE_URI",
        "GRAPH_AUTH_TYPE",
        "LANGGRAPH_AUTH_TYPE",
        "LANGSMITH_AUTH_ENDPOINT",
        "LANGSMITH_HOST_PROJECT_ID",
        "LANGSMITH_PROJECT",
        "LANGSMITH_TENANT_ID",
        "MOUNT_PREFIX",
        "PATH",
        "POSTGRES_URI",
        "REDIS_URI",
    ],
)
def test_names_that_the_platform_sets_are_reserved(name: str) -> None:
    assert name in RESERVED
    with pytest.raises(BadCombination, match=name):
        check_secrets([Secret(name, "x")])


def test_custom_databases_are_for_clusters_only() -> None:
    own = [Secret("POSTGRES_URI_CUSTOM", "x")]
    for body in (DeploymentPatch(secrets=own), DeploymentPatch(secret_changes=SecretChanges(set=own))):
        check_compute(Placement(compute_type="k8s"), body)
        with pytest.raises(BadCombination, match="POSTGRES_URI_CUSTOM can only be set for deployments on a listener"):
            check_compute(Placement(), body)


@pytest.mark.parametrize("field", ["sleep_after_s", "pin_threads"])
def test_sleeping_and_pinned_threads_are_for_machines_only(field: str) -> None:
    body = patch(**{field: 60})
    check_compute(Placement(), body)
    check_compute(Placement(compute_type="k8s"), patch(**{field: 0}))
    with pytest.raises(BadCombination, match=f"{field} can only be set for deployments on a machine"):
        check_compute(Placement(compute_type="k8s"), body)


def test_only_what_is_built_here_can_pin_threads() -> None:
    body = patch(pin_threads=1)
    for source in ("git_hosting", "github", "internal_source"):
        rules.check_patch(body, {**ROW, "source": source})

    for source in ("external_image", "external_docker", "internal_docker"):
        with pytest.raises(BadCombination, match="pin_threads can only be set"):
            rules.check_patch(body, {**ROW, "source": source})


def test_a_revision_has_only_the_fields_of_its_own_source() -> None:
    """Those of the deployment's source do not count for a revision of another one."""
    body = patch(revision_source="internal_source", source_revision_config={"repo_ref": "main"})
    with pytest.raises(BadCombination, match="repo_ref can only be set for git_hosting revisions"):
        rules.check_patch(body, ROW)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "https://agents.example.com/agents/a"),
        ({"requested_url": "https://own.example.com"}, "https://own.example.com"),
        ({"direct_url": None}, None),
        ({"is_on_machine": False}, "http://127.0.0.1:9000"),
        ({"workspace_id": UUID(int=2)}, "http://127.0.0.1:9000"),
    ],
)
def test_the_front_is_the_public_address_of_machines_of_its_workspace(changed: Any, expected: str | None) -> None:
    row = {
        "name": "a",
        "requested_url": None,
        "direct_url": "http://127.0.0.1:9000",
        "workspace_id": UUID(int=1),
        "is_on_machine": True,
        **changed,
    }
    addresses = PublicAddresses(UUID(int=1)).seen_from("https://agents.example.com")
    assert get_public_url(row, addresses) == expected


def test_secrets_given_twice_are_refused() -> None:
    with pytest.raises(BadCombination, match="more than once"):
        check_secrets([Secret("A", "1"), Secret("A", "2")])


def test_terminal_statuses_are_final_and_reachable() -> None:
    assert set(TRANSITIONS) == set(RevisionStatus)
    assert all(not TRANSITIONS[status] for status in TERMINAL)
    for status in set(RevisionStatus) - TERMINAL:
        reached = set()
        todo = {status}
        while todo:
            reached |= todo
            todo = {after for before in todo for after in TRANSITIONS[before]} - reached

        assert reached & TERMINAL


@pytest.mark.parametrize(
    ("before", "after"),
    [(S.CREATING, S.AWAITING_BUILD), (S.BUILDING, S.BUILDING), (S.DEPLOYED, S.DEPLOYED), (S.DEPLOYING, S.DEPLOYED)],
)
def test_legal_transitions_and_repetitions_pass(before: S, after: S) -> None:
    try:
        check_transition(before, after)
    except IllegalTransition as exc:
        pytest.fail(str(exc))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (S.CREATING, S.DEPLOYED),
        (S.DEPLOYED, S.DEPLOYING),
        (S.BUILD_FAILED, S.BUILDING),
        (S.QUEUED, S.AWAITING_BUILD),
        (S.SKIPPED, S.CREATING),
    ],
)
def test_illegal_transitions_are_refused(before: S, after: S) -> None:
    with pytest.raises(IllegalTransition, match=f"{before} cannot become {after}"):
        check_transition(before, after)


def test_logs_can_be_read_on_a_full_disk_in_their_older_form_too() -> None:
    older = [route for route in routes if route.path.startswith("/v1/projects/")]
    assert [route.stores_data for route in older] == [False] * 3


def test_empty_list_of_secrets_removes_them_unless_it_comes_with_a_deploy():
    """Command-line clients send one with every deploy that finds no local secrets."""
    kept = [Secret("KEY", "value")]
    for body, secrets in (
        (patch(secrets=[], source_revision_config={"repo_ref": "main"}), kept),
        (patch(source_revision_config={"repo_ref": "main"}), kept),
        (patch(secrets=[]), []),
    ):
        content = RevisionContent(source="github", secrets=kept)
        apply_patch(content, body)
        assert content.secrets == secrets
