"""`portside deploy`: an agent from a git repository."""

from pathlib import Path

import click

from portside.cli.client import Platform, connection_options
from portside.cli.output import json_option, show_json
from portside.kernel.errors import UserMistake


@click.command()
@click.argument("repository")
@click.option("--name", help="Name of the deployment. [default: the repository's]")
@click.option("--ref", default="main", show_default=True, help="Branch, or tag as refs/tags/NAME.")
@click.option("--config", default="langgraph.json", show_default=True, help="The graph configuration file in it.")
@click.option("--secret", "secrets", multiple=True, metavar="NAME=VALUE", help="Environment variable; repeat for more.")
@click.option("--wait/--no-wait", default=True, help="Follow the revision until it is deployed.")
@json_option
@connection_options
def deploy(platform: Platform, repository: str, name: str | None, **options: object) -> None:
    """Deploy the agent in a git REPOSITORY (an address or a local path), or its newest commit if it is deployed."""
    from portside.cli.following import follow_revision

    source = str(Path(repository).absolute()) if Path(repository).is_dir() else repository
    name = name or normalise(source)
    revision_config = {"repo_ref": options["ref"], "graph_config_path": options["config"]}
    secrets = [_secret(text) for text in options["secrets"]]  # type: ignore[attr-defined]
    found = [d for d in platform.call("GET", "/v2/deployments", name=name)["resources"] if d["name"] == name]
    if found:
        change = {"source_config": {"repo_url": source}, "source_revision_config": revision_config}
        change |= {"secrets": secrets} if secrets else {}
        deployment = platform.call("PATCH", f"/v2/deployments/{found[0]['id']}", body=change)
    else:
        body = creation(platform, name, source, revision_config) | {"secrets": secrets}
        deployment = platform.call("POST", "/v2/deployments", body=body)
    if options["wait"]:
        follow_revision(
            platform, deployment["id"], deployment["latest_revision_id"], say=lambda line: click.echo(line, err=True)
        )
        deployment = platform.call("GET", f"/v2/deployments/{deployment['id']}")
    if options["as_json"]:
        show_json(deployment)
    else:
        click.echo(deployment["source_config"]["custom_url"] or deployment["id"])


def creation(platform: Platform, name: str, source: str, revision_config: object) -> dict[str, object]:
    """Return the body that creates a deployment from plain git."""
    integration = platform.call("GET", "/v1/integrations/git_hosting/install")[0]
    return {
        "name": name,
        "source": "git_hosting",
        "source_config": {
            "integration_id": integration["id"],
            "repo_url": source,
            "deployment_type": "dev",
            "build_on_push": False,
        },
        "source_revision_config": revision_config,
        "secrets": [],
    }


def normalise(source: str) -> str:
    """Return the deployment name that a repository's address suggests: a DNS label."""
    last = source.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git").lower()
    label = "".join(c if c.isalnum() and c.isascii() else "-" for c in last).strip("-")[:63].strip("-")
    if not label:
        raise UserMistake("cannot make a name of this repository's address; give one with --name")
    return label


def _secret(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserMistake("a secret is written NAME=VALUE")
    return {"name": name, "value": value}
