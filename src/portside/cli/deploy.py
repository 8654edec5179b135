"""`portside deploy`: an agent from a folder or from a git repository."""

import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from portside.cli.client import LOOPBACK, Platform, connection_options
from portside.cli.output import json_option, say, show_json
from portside.kernel.errors import UserMistake


class Wish(msgspec.Struct):
    """What to deploy, as the command line says it."""

    source: str
    name: str
    ref: str
    config: str
    secrets: list[dict[str, str]]
    integration: str | None
    build_on_push: bool | None


@click.command()
@click.argument("source", default=".", metavar="[FOLDER|REPOSITORY]")
@click.option("--name", help="Name of the deployment. [default: the folder's or the repository's]")
@click.option("--ref", default="main", show_default=True, help="Branch, or tag as refs/tags/NAME.")
@click.option("--config", default="langgraph.json", show_default=True, help="The graph configuration file in it.")
@click.option("--secret", "secrets", multiple=True, metavar="NAME=VALUE", help="Environment variable; repeat for more.")
@click.option("--upload", is_flag=True, help="Pack the folder as it is, though it is a repository.")
@click.option("--integration", metavar="NAME", help="Git integration whose token opens the repository.")
@click.option("--build-on-push/--no-build-on-push", default=None, help="Deploy what is pushed to the branch.")
@click.option("--wait/--no-wait", default=True, help="Follow the revision until it is deployed.")
@json_option
@connection_options
def deploy(platform: Platform, source: str, *, wait: bool, as_json: bool, upload: bool, **options: Any) -> None:
    """Deploy the agent in a FOLDER, or in a git REPOSITORY (an address or a local path).

    A folder is packed and uploaded as it is; of a repository the newest commit is deployed. Deployed again under the
    same name it becomes a new revision.
    """
    from portside.cli.following import follow_revision

    wish = _wish(source, options)
    deployment = _deploy(platform, wish, upload=upload)
    if wait:
        follow_revision(platform, deployment["id"], deployment["latest_revision_id"], say=say)
        deployment = platform.call("GET", f"/v2/deployments/{deployment['id']}")
    if as_json:
        show_json(deployment)
    else:
        click.echo(deployment["source_config"]["custom_url"] or deployment["id"])


def _wish(source: str, options: dict[str, Any]) -> Wish:
    source = str(Path(source).absolute()) if Path(source).is_dir() else source
    secrets = [_secret(text) for text in options.pop("secrets")]
    return Wish(**{**options, "name": options["name"] or normalise(source)}, source=source, secrets=secrets)


def _deploy(platform: Platform, wish: Wish, *, upload: bool) -> dict[str, Any]:
    folder = Path(wish.source)
    is_folder = folder.is_dir()
    if not is_folder and _looks_local(wish.source):
        raise UserMistake(f"there is no folder {wish.source}")
    if is_folder and not is_repository(folder) and not (folder / wish.config).is_file():
        raise UserMistake(
            f"{folder} is no git repository and holds no {wish.config}; name the graph configuration file with --config"
        )
    found = [d for d in platform.call("GET", "/v2/deployments", name=wish.name)["resources"] if d["name"] == wish.name]
    deployed = found[0] if found else None
    if is_folder and (upload or not is_repository(folder) or _takes_archives(platform, deployed)):
        return _deploy_folder(platform, deployed, folder, wish)
    return _deploy_repository(platform, deployed, wish)


def _takes_archives(platform: Platform, deployed: dict[str, Any] | None) -> bool:
    """Whether a local repository has to be uploaded: a platform elsewhere cannot fetch it."""
    is_here = urlsplit(platform.url).hostname in LOOPBACK
    return not is_here or (deployed is not None and deployed["source"] == "internal_source")


def is_repository(folder: Path) -> bool:
    """Whether a folder is a git repository, with or without a work tree."""
    return (folder / ".git").exists() or all((folder / part).exists() for part in ("HEAD", "objects", "refs"))


def _looks_local(source: str) -> bool:
    return source.startswith(("/", ".", "~")) or not any(mark in source for mark in (":", "@"))


def _deploy_repository(platform: Platform, deployed: dict[str, Any] | None, wish: Wish) -> dict[str, Any]:
    revision_config = {"repo_ref": wish.ref, "graph_config_path": wish.config}
    if deployed is None:
        body = creation(platform, wish.name, wish.source, revision_config, integration=wish.integration)
        body["source_config"]["build_on_push"] = bool(wish.build_on_push)
        return dict(platform.call("POST", "/v2/deployments", body=body | {"secrets": wish.secrets}))
    source_config = {"repo_url": wish.source, "build_on_push": wish.build_on_push}
    change: dict[str, Any] = {"source_config": source_config, "source_revision_config": revision_config}
    change |= {"secrets": wish.secrets} if wish.secrets else {}
    return dict(platform.call("PATCH", f"/v2/deployments/{deployed['id']}", body=change))


def _deploy_folder(platform: Platform, deployed: dict[str, Any] | None, folder: Path, wish: Wish) -> dict[str, Any]:
    from portside.cli.packing import pack, read_project

    if wish.integration or wish.build_on_push is not None:
        raise UserMistake("--integration and --build-on-push are for repositories; a folder is uploaded as it is")
    project = read_project(folder, wish.config)
    secrets = _with_env_file(project.env_file, wish.secrets)
    with tempfile.TemporaryFile() as file:
        packed = pack(project, file)
        for name in packed.left_out:
            say(f"{name} is a link that leads outside or to a folder, and is left out")
        say(f"packed {packed.files} files, {max(1, packed.size // 1024)} kB")
        if deployed is None:
            body = {
                "name": wish.name, "source": "internal_source", "source_config": {"deployment_type": "dev"},
                "source_revision_config": {}, "secrets": secrets,
            }  # fmt: skip
            deployed = dict(platform.call("POST", "/v2/deployments", body=body))
        path = f"/v2/deployments/{deployed['id']}"
        where = platform.call("POST", f"{path}/upload-url", body={"supports_upload_headers": True})
        platform.upload(where["upload_url"], file, packed.size, where["upload_headers"])
    revision = {"source_tarball_path": where["object_path"], "graph_config_path": project.config}
    change = {"revision_source": "internal_source", "source_revision_config": revision}
    return dict(platform.call("PATCH", path, body=change | ({"secrets": secrets} if secrets else {})))


def _with_env_file(env_file: Path | None, secrets: list[dict[str, str]]) -> list[dict[str, str]]:
    """Put the variables of the configuration's env file before the secrets that were given, which win over them."""
    if env_file is None:
        return secrets
    from dotenv import dotenv_values

    from portside.control.reserved_names import RESERVED

    values = {name: value for name, value in dotenv_values(env_file).items() if value is not None}
    values |= {secret["name"]: secret["value"] for secret in secrets}
    for name in sorted(RESERVED & values.keys()):
        say(f"{name} is left out: the platform sets it itself")
        del values[name]
    return [{"name": name, "value": value} for name, value in values.items()]


def creation(
    platform: Platform, name: str, source: str, revision_config: object, *, integration: str | None = None
) -> dict[str, Any]:
    """Return the body that creates a deployment from git: plain, or with a named integration. Raises UserMistake."""
    found = platform.call("GET", "/v1/integrations/git_hosting/install")
    wanted = [one for one in found if integration is None or one["name"] == integration]
    if not wanted:
        raise UserMistake(f"there is no integration named {integration}; 'portside integrations list' shows them")
    return {
        "name": name,
        "source": "git_hosting",
        "source_config": {
            "integration_id": wanted[0]["id"],
            "repo_url": source,
            "deployment_type": "dev",
            "build_on_push": False,
        },
        "source_revision_config": revision_config,
        "secrets": [],
    }


def normalise(source: str) -> str:
    """Return the deployment name that a folder or a repository's address suggests: a DNS label."""
    last = source.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git").lower()
    label = "".join(c if c.isalnum() and c.isascii() else "-" for c in last).strip("-")[:63].strip("-")
    if not label:
        raise UserMistake("cannot make a name of this address; give one with --name")
    return label


def _secret(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserMistake("a secret is written NAME=VALUE")
    return {"name": name, "value": value}
