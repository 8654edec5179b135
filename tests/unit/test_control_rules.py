import pytest

from portside.control import git_source, rules
from portside.control.errors import BadCombination, IllegalMove, Immutable, SourceNotAvailable
from portside.control.moves import AT_THE_END, MOVES, check_move
from portside.control.reserved_names import RESERVED
from portside.control.secrets import check_secrets
from portside.control.types.deployments import DeploymentCreate, DeploymentPatch, Secret
from portside.control.types.statuses import RevisionStatus
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import convert
from tests.api.control_server import create_body

S = RevisionStatus


def create(**over: object) -> DeploymentCreate:
    return convert(create_body(**over), DeploymentCreate, "body")


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
    git_source.check_repo_url(url)


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
def test_addresses_that_mean_something_else_are_refused(url: str) -> None:
    with pytest.raises(Invalid, match="repo_url"):
        git_source.check_repo_url(url)


@pytest.mark.parametrize("ref", ["main", "feature/x-1", "refs/tags/v1.0", "a" * 40, "v1_2"])
def test_names_of_branches_tags_and_commits_are_accepted(ref: str) -> None:
    git_source.check_repo_ref(ref)


@pytest.mark.parametrize(
    "ref",
    ["", "-f", "a b", "a..b", "a^", "a~1", "a:b", "a?", "a*", "a[", "a\\b", "@", "a@{1}", "x.lock", "/a", "a/", "a//b",
     ".a", "a.", "a/.b", "a\x00", "a\n", "refs/heads/main", "refs/pull/1/head"],
)  # fmt: skip
def test_names_that_git_would_not_take_are_refused(ref: str) -> None:
    with pytest.raises(Invalid, match="repo_ref"):
        git_source.check_repo_ref(ref)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x.json", "a/../../x", "-x", "a\\b", "a\x00", "a\nb"])
def test_config_paths_stay_inside_the_repository(path: str) -> None:
    git_source.check_config_path("apps/agent/langgraph.json")
    with pytest.raises(Invalid, match="graph_config_path"):
        git_source.check_config_path(path)


def test_credentials_of_an_address_can_be_hidden() -> None:
    assert git_source.hide_credentials("https://u:p@host/x@y") == "https://host/x@y"
    assert git_source.hide_credentials("git@host:x") == "git@host:x"


@pytest.mark.parametrize("name", ["", "Agent", "a_b", "-a", "a-", "a.b", "a" * 64, "a\n", "é"])
def test_a_name_is_a_dns_label(name: str) -> None:
    rules.check_create(create(name="a" * 63))
    with pytest.raises(Invalid, match="name"):
        rules.check_create(create(name=name))


@pytest.mark.parametrize(
    "source", ["external_image", "external_docker", "internal_docker", "internal_source", "internal_template"]
)
def test_sources_that_are_not_there_yet_are_named(source: str) -> None:
    with pytest.raises(SourceNotAvailable, match=f"{source} is not available on this installation yet"):
        rules.check_create(create(source=source))
    with pytest.raises(SourceNotAvailable):
        rules.check_patch(patch(revision_source=source))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"resource_spec": {}}, "resource_spec"),
        ({"listener_id": "6f0bb0b1-77c8-4bd6-8f8e-7a9d3e9d1f00"}, "listener_id"),
        ({"listener_config": {"k8s_namespace": "x"}}, "listener_config"),
        ({"custom_url": "http://x"}, "custom_url"),
        ({"integration_id": "6f0bb0b1-77c8-4bd6-8f8e-7a9d3e9d1f00"}, "integration_id"),
        ({"repo_url": None}, "repo_url is required"),
        ({"install_command": "npm ci; id"}, "install_command"),
        ({"build_command": "npm run build\n"}, "build_command"),
    ],
)
def test_source_fields_that_make_no_git_deployment_are_named(config: dict[str, object], named: str) -> None:
    with pytest.raises(BadCombination, match=named):
        rules.check_create(create(source_config=config))


@pytest.mark.parametrize(
    ("revision", "named"),
    [
        ({"image_uri": "x:1"}, "image_uri"),
        ({"source_tarball_path": "x"}, "source_tarball_path"),
        ({"repo_ref": None}, "repo_ref is required"),
        ({"graph_config_path": None}, "graph_config_path is required"),
    ],
)
def test_revision_fields_that_make_no_git_revision_are_named(revision: dict[str, object], named: str) -> None:
    with pytest.raises(BadCombination, match=named):
        rules.check_create(create(source_revision_config=revision))


@pytest.mark.parametrize("character", ['"', "'`", "\\", "|", ";", "$", ">", "<", "\n", "\r", "\0", "\t", "&", "&&&"])
def test_commands_hold_nothing_that_a_shell_would_act_on(character: str) -> None:
    rules.check_create(create(source_config={"install_command": "npm ci && npm run 'prepare' --if-present"}))
    with pytest.raises(BadCombination, match="install_command"):
        rules.check_create(create(source_config={"install_command": f"npm ci {character} x"}))


def test_a_tag_excludes_build_on_push_before_it_is_said_to_be_missing() -> None:
    with pytest.raises(BadCombination, match="tag"):
        rules.check_create(
            create(source_config={"build_on_push": True}, source_revision_config={"repo_ref": "refs/tags/v1"})
        )
    with pytest.raises(Invalid, match=r"source_config\.build_on_push: is not available yet"):
        rules.check_create(create(source_config={"build_on_push": True}))
    rules.check_create(
        create(source_config={"build_on_push": False}, source_revision_config={"repo_ref": "refs/tags/v1"})
    )


def test_a_patch_is_checked_on_what_it_leads_to() -> None:
    row = {
        "name": "a", "source": "github", "integration_id": None, "repo_url": "https://h/x", "deployment_type": "dev",
        "custom_url": "http://127.0.0.1:1", "build_on_push": True,
    }  # fmt: skip
    with pytest.raises(BadCombination, match="tag"):
        rules.check_patch_against(patch(source_revision_config={"repo_ref": "refs/tags/v1"}), row, "main")
    row["build_on_push"] = False
    with pytest.raises(BadCombination, match="tag"):
        rules.check_patch_against(patch(source_config={"build_on_push": True}), row, "refs/tags/v1")
    same = {"repo_url": "https://h/x", "deployment_type": "dev", "custom_url": "http://127.0.0.1:1"}
    rules.check_patch_against(patch(name="a", source="git_hosting", source_config=same), row, "main")
    for field, value in {"repo_url": "https://h/y", "deployment_type": "prod", "custom_url": "http://x"}.items():
        with pytest.raises(Immutable, match=f"source_config.{field} cannot be changed"):
            rules.check_patch_against(patch(source_config={field: value}), row, "main")
    with pytest.raises(Immutable, match=r"^name"):
        rules.check_patch_against(patch(name="b"), row, "main")


def test_only_some_fields_of_a_patch_make_a_revision() -> None:
    assert rules.makes_revision(patch(source_revision_config={"repo_ref": "main"}))
    assert rules.makes_revision(patch(source_revision_config={"graph_config_path": "x.json"}))
    assert rules.makes_revision(patch(secrets=[]))
    assert not rules.makes_revision(patch(display_name="x", source_config={"build_on_push": False}))
    assert not rules.makes_revision(patch(source_config={"install_command": "npm ci"}, source_revision_config={}))


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


@pytest.mark.parametrize("name", ["PORT", "DATABASE_URI", "GRAPH_AUTH_TYPE", "LANGGRAPH_AUTH_TYPE", "PATH"])
def test_names_that_the_platform_sets_are_reserved(name: str) -> None:
    assert name in RESERVED
    with pytest.raises(BadCombination, match=name):
        check_secrets([Secret(name, "x")])


def test_secrets_that_would_have_no_effect_or_two_are_refused() -> None:
    with pytest.raises(BadCombination, match="POSTGRES_URI_CUSTOM is not available"):
        check_secrets([Secret("POSTGRES_URI_CUSTOM", "x")])
    with pytest.raises(BadCombination, match="more than once"):
        check_secrets([Secret("A", "1"), Secret("A", "2")])


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
        ({"volume_mounts": [{"name": "x"}]}, "mountPath"),
        ({"sidecars": [{"name": "x", "image": "y", "imagePullPolicy": "Maybe"}]}, "imagePullPolicy"),
        ({"init_containers": [{"name": "x", "image": "y", "env": [{"name": "1"}]}]}, "name"),
        ({"image_pull_secrets": [{}]}, "name"),
    ],
)
def test_a_resource_spec_of_the_wrong_shape_is_located(spec: dict[str, object], loc: str) -> None:
    with pytest.raises(Invalid) as refused:
        create(source_config={"resource_spec": spec})
    assert refused.value.problems[0].loc[:3] == ["body", "source_config", "resource_spec"]
    assert refused.value.problems[0].loc[-1] in (loc, "...")


def test_a_full_resource_spec_is_understood() -> None:
    container = {
        "name": "c", "image": "i:1", "imagePullPolicy": "Always", "command": ["a"], "args": ["b"], "workingDir": "/",
        "env": [{"name": "A", "value": "1"}], "envFrom": [{"secretRef": {"name": "s"}}], "restartPolicy": "Always",
        "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}, "securityContext": {"runAsUser": 1},
        "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True, "subPath": "x"}],
    }  # fmt: skip
    spec = create(
        source_config={
            "resource_spec": {
                "cpu": 0.5, "cpu_limit": 16, "db_cpu": 2.5, "sidecars": [container], "init_containers": [container],
                "volumes": [{"name": "v", "emptyDir": {}, "downwardAPI": {"items": []}}],
            }
        }
    ).source_config.resource_spec  # fmt: skip
    assert spec is not None
    assert spec.volumes is not None
    assert (spec.cpu, spec.volumes[0].downward_api, spec.volumes[0].empty_dir) == (0.5, {"items": []}, {})


def test_no_state_at_the_end_is_ever_left_and_every_other_one_can_reach_an_end() -> None:
    assert set(MOVES) == set(RevisionStatus)
    assert all(not MOVES[status] for status in AT_THE_END)
    for status in set(RevisionStatus) - AT_THE_END:
        reached, todo = set(), {status}
        while todo:
            reached |= todo
            todo = {after for before in todo for after in MOVES[before]} - reached
        assert reached & AT_THE_END


@pytest.mark.parametrize(
    ("before", "after"),
    [(S.CREATING, S.AWAITING_BUILD), (S.BUILDING, S.BUILDING), (S.DEPLOYED, S.DEPLOYED), (S.DEPLOYING, S.DEPLOYED)],
)
def test_moves_along_the_table_and_repetitions_pass(before: S, after: S) -> None:
    check_move(before, after)


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
def test_moves_off_the_table_are_refused(before: S, after: S) -> None:
    with pytest.raises(IllegalMove, match=f"{before} cannot become {after}"):
        check_move(before, after)
