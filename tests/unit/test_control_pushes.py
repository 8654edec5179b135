import pytest

from portside.control.git_hosts import is_at
from portside.control.polling import is_new
from portside.control.push_events import delivery_id, is_signed, normalise


def test_the_published_example_of_a_signature() -> None:
    secret, body = "It's a Secret to Everybody", b"Hello, World!"
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert is_signed("github", secret, {"x-hub-signature-256": f"sha256={digest}"}, body)
    assert is_signed("gitea", secret, {"x-gitea-signature": digest}, body)
    assert not is_signed("github", secret, {"x-hub-signature-256": f"sha256={digest}"}, body + b"!")
    assert not is_signed("github", secret, {"x-hub-signature": f"sha256={digest}"}, body)


def test_a_delivery_without_a_name_is_named_after_its_body() -> None:
    assert delivery_id("github", {"x-github-delivery": "1"}, b"a") == "1"
    assert delivery_id("gitlab", {"x-gitlab-event-uuid": "2", "idempotency-key": "1"}, b"a") == "1"
    assert delivery_id("gitea", {}, b"a") == delivery_id("gitea", {}, b"a") != delivery_id("gitea", {}, b"b")


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example.com/Team/agent", "https://GIT.example.com/Team/agent.git",
        "git@git.example.com:Team/agent.git", "ssh://git@git.example.com/Team/agent.git", "ssh://git@git.example.com:22/Team/agent/",
        "https://git.example.com:443/Team/agent.git/",
    ],
)  # fmt: skip
def test_addresses_of_one_repository_are_one(url: str) -> None:
    assert normalise(url) == "git.example.com/Team/agent"


@pytest.mark.parametrize(
    "url", ["https://git.example.com/team/agent", "https://git.example.com:8443/Team/agent", "https://git.example.com/Team/agents"]
)  # fmt: skip
def test_other_repositories_stay_others(url: str) -> None:
    assert normalise(url) != "git.example.com/Team/agent"


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
    ("seen", "latest", "built_from", "expected"),
    [
        ("new", "old", None, False), ("old", "old", None, True), ("old", "new", None, False),
        (None, "old", None, True), (None, None, None, False), (None, "old", "other", False),
        ("new", "old", "other", False),
    ],
)  # fmt: skip
def test_a_branch_that_moved_is_told_from_one_that_was_left(seen, latest, built_from, expected) -> None:
    row = {
        "repo_ref": "main", "seen_ref": "main" if seen else None, "seen_commit": seen, "repo_commit_sha": latest,
        "built_from": built_from,
    }  # fmt: skip
    assert is_new(row, "new") is expected
