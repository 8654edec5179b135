"""Push webhooks of git hosts: signatures, parsing, and matching of repositories.

Only a sender that knows the webhook's secret is believed.
"""

import json
from typing import Any

import pytest

from portside.control.git_hosts import is_at
from portside.control.polling import is_being_fetched, is_new
from portside.control.pushes import Push, is_signed, normalize_address, parse_push, read_delivery_id


def test_the_published_example_of_a_signature() -> None:
    secret = "It's a Secret to Everybody"
    body = b"Hello, World!"
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert is_signed("github", secret, {"x-hub-signature-256": f"sha256={digest}"}, body)
    assert is_signed("gitea", secret, {"x-gitea-signature": digest}, body)
    assert not is_signed("github", secret, {"x-hub-signature-256": f"sha256={digest}"}, body + b"!")
    assert not is_signed("github", secret, {"x-hub-signature": f"sha256={digest}"}, body)


def test_a_delivery_of_gitlab_has_its_secret() -> None:
    assert is_signed("gitlab", "secret", {"x-gitlab-token": "secret"}, b"")
    for headers in ({}, {"x-gitlab-token": ""}, {"x-gitlab-token": "secre"}, {"x-hub-signature-256": "secret"}):
        assert not is_signed("gitlab", "secret", headers, b"")


@pytest.mark.parametrize(
    ("commit", "status", "expected"),
    [(None, "CREATING", True), (None, "QUEUED", True), ("new", "BUILDING", False), (None, "DEPLOYED", False)],
)
def test_an_unfinished_revision_without_a_commit_will_fetch_the_newest(commit, status, expected) -> None:
    assert is_being_fetched({"repo_commit_sha": commit, "status": status}) is expected


def test_a_delivery_is_named_after_what_is_signed_of_it() -> None:
    for kind in ("github", "gitea"):
        names = [read_delivery_id(kind, {f"x-{kind}-delivery": name}, b"a") for name in ("1", "2")]
        assert names[0] == names[1] != read_delivery_id(kind, {f"x-{kind}-delivery": "1"}, b"b")

    assert read_delivery_id("gitlab", {"x-gitlab-event-uuid": "2", "idempotency-key": "1"}, b"a") == "1"
    assert (
        read_delivery_id("gitea", {}, b"a")
        == read_delivery_id("gitea", {}, b"a")
        != read_delivery_id("gitea", {}, b"b")
    )


@pytest.mark.parametrize(
    ("event", "named"),
    [
        # As GitLab documents its system hooks: only some say `object_kind`, and only pushes have these fields.
        ({"event_name": "project_create", "path_with_namespace": "team/agent"}, "project_create"),
        ({"object_kind": "merge_request", "event_type": "merge_request", "project": {}}, "merge_request"),
        ({"event_name": "tag_push", "ref": "refs/heads/main", "after": "a" * 40}, "tag_push"),
    ],
)
def test_system_hooks_of_gitlab_that_are_no_pushes_are_ignored(event: dict[str, Any], named: str) -> None:
    said = parse_push("gitlab", {"x-gitlab-event": "System Hook"}, json.dumps(event).encode())
    assert said == f"the event {named!r} is not a push"


def test_a_push_that_comes_as_a_system_hook_counts() -> None:
    event = {"event_name": "push", "ref": "refs/heads/main", "before": "b" * 40, "after": "a" * 40}
    found = parse_push("gitlab", {"x-gitlab-event": "System Hook"}, json.dumps(event).encode())
    assert isinstance(found, Push)
    assert (found.branch, found.commit) == ("main", "a" * 40)


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example.com/Team/agent",
        "https://GIT.example.com/Team/agent.git",
        "git@git.example.com:Team/agent.git",
        "ssh://git@git.example.com/Team/agent.git",
        "ssh://git@git.example.com:22/Team/agent/",
        "https://git.example.com:443/Team/agent.git/",
    ],
)
def test_addresses_of_one_repository_normalize_to_one(url: str) -> None:
    assert normalize_address(url) == "git.example.com/Team/agent"


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example.com/team/agent",
        "https://git.example.com:8443/Team/agent",
        "https://git.example.com/Team/agents",
    ],
)
def test_addresses_of_other_repositories_differ(url: str) -> None:
    assert normalize_address(url) != "git.example.com/Team/agent"


@pytest.mark.parametrize(
    ("base", "url", "expected"),
    [
        ("https://github.com", "https://GitHub.com/a/b.git", True),
        ("https://github.com", "https://github.com:443/a/b.git", True),
        ("https://github.com", "http://github.com/a/b.git", False),
        ("https://github.com", "https://github.com.evil.example/a/b", False),
        ("https://github.com", "https://evil.example/github.com/a", False),
        ("https://host/git", "https://host/gitother/a", False),
        ("https://host/git", "https://host/git/../a", False),
        ("https://host:8443", "https://host/a", False),
    ],
)
def test_a_token_is_for_one_host(base: str, url: str, expected: bool) -> None:  # noqa: FBT001
    assert is_at(base, url) is expected


@pytest.mark.parametrize(
    ("seen", "latest", "was_deployed", "expected"),
    [
        ("new", "old", False, False),
        ("old", "old", False, True),
        ("old", "new", True, False),
        (None, "old", False, True),
        (None, None, False, False),
        (None, "old", True, False),
        ("new", "old", True, False),
    ],
)
def test_a_moved_branch_differs_from_a_rolled_back_one(seen, latest, was_deployed, expected) -> None:
    row = {
        "repo_ref": "main",
        "last_ref": "main" if seen else None,
        "last_commit": seen,
        "repo_commit_sha": latest,
        "was_deployed": was_deployed,
    }

    assert is_new(row, "new") is expected
