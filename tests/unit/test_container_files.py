"""The files of images and of compose agree with each other, with the manifests and with this repository."""

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from portside.cli.greeting import Greeting, is_kept_as_log
from tests.unit.test_kubernetes_installation import find_container, of_kind, print_manifests

ROOT = Path(__file__).parents[2]
DOCKERFILES = [ROOT / "docker" / f"{name}.Dockerfile" for name in ("agent", "platform")]


def read_services(file: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / file).read_text())["services"])


def test_images_and_manifests_name_one_user() -> None:
    pods = [workload["spec"]["template"]["spec"] for workload in of_kind(print_manifests(), "Deployment")]
    users = {pod["securityContext"]["runAsUser"] for pod in pods}

    for file in DOCKERFILES:
        for pair in re.findall(r"^USER (\d+):(\d+)$", file.read_text(), re.MULTILINE):
            users |= {int(user) for user in pair}

    assert users == {10001}


def test_images_copy_what_their_context_has() -> None:
    """`make install` builds more into the package; a fresh clone does not have that."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = [line[1:] for line in lines if line.startswith("!")]
    kept = [line for line in lines if line and line[0] not in "!#*"]

    for file in DOCKERFILES:
        for line in re.findall(r"^COPY (?!--from)(.+)$", file.read_text(), re.MULTILINE):
            for name in line.split()[:-1]:
                assert (ROOT / name).exists(), name
                assert name in sent, name

    assert {"src/portside/console/static", "src/portside/executor_js"} <= set(kept)
    assert not any(fnmatch(name, "*.env") for name in sent)


def test_platform_image_has_what_a_cluster_and_buckets_need() -> None:
    text = (ROOT / "docker" / "platform.Dockerfile").read_text()
    assert "/src[kubernetes,s3]" in text


def test_compose_files_differ_in_the_database_alone() -> None:
    own = read_services("compose.yaml")
    existing = read_services("compose.existing-postgres.yaml")
    image = find_container(print_manifests(), "portside-postgres")["image"]
    assert own["postgres"]["image"] == f"${{POSTGRES_IMAGE:-{image}}}"
    assert list(existing) == ["platform"]

    platforms = [own["platform"], existing["platform"]]
    for platform in platforms:
        assert platform["environment"].pop("DATABASE_URL")
        platform.pop("depends_on", None)
        assert platform["read_only"]
        assert platform["cap_drop"] == ["ALL"]
        [port] = platform["ports"]
        assert port.startswith("127.0.0.1:"), "other machines reach plain HTTP only if somebody says so"

    assert platforms[0] == platforms[1]


def test_message_of_a_container_names_what_works_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("container", raising=False)
    assert not is_kept_as_log()
    monkeypatch.setenv("container", "oci")
    assert is_kept_as_log(), "so it shows no key"
    Greeting("http://127.0.0.1:8700", None, Path("/data/portside")).show()
    said = capsys.readouterr().out
    assert said.rstrip().endswith("portside console --print")
    assert "--home" not in said, "commands in the container find the platform by PORTSIDE_HOME"
