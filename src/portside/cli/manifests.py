"""`portside manifests`: the platform for a Kubernetes cluster, without Helm."""

from typing import Any

import click

from portside import __version__

NOTES = """\
# Portside {version} for Kubernetes: portside manifests | kubectl apply -f -
# Made beforehand, because no secret belongs in a file:
#   kubectl create namespace {namespace}
#   kubectl -n {namespace} create secret generic portside {literals}
#   kubectl -n {namespace} create secret generic portside-listener --from-literal=api-key=KEY
# The api-key of portside becomes the platform's first API key. The listener's may be the same to begin with; one of
# `portside keys create --permission listeners:work` can do less.
"""
_OWN = "--from-literal=api-key=KEY --from-literal=postgres-password=PASSWORD"
_OWN_URL = " --from-literal=database-url=postgresql://portside:PASSWORD@portside-postgres:5432/portside"
_EXTERNAL = "--from-literal=api-key=KEY --from-literal=database-url=postgresql://USER:PASSWORD@HOST:5432/DATABASE"


@click.command()
@click.option("--namespace", default="portside", show_default=True, help="Namespace of the platform.")
@click.option("--image", default=f"portside:{__version__}", show_default=True, help="Image of the platform.")
@click.option("--host", help="Host name of the platform's Ingress; without it there is none.")
@click.option("--ingress-class", help="Class of the Ingresses. [default: the cluster's]")
@click.option("--tls-secret", help="Secret with the certificate of the platform's Ingress.")
@click.option(
    "--postgres/--no-postgres", "own_postgres", default=True, show_default=True,
    help="Run Postgres on the cluster; without it the Secret's database-url names one.",
)  # fmt: skip
@click.option("--storage-gi", type=click.IntRange(1), default=20, show_default=True, help="GiB of each volume.")
@click.option("--storage-class", help="Storage class of the volumes. [default: the cluster's]")
@click.option("--listener/--no-listener", default=True, show_default=True, help="Run a listener for this cluster.")
@click.option("--compute-id", default="kubernetes", show_default=True, help="Name of the listener's compute.")
@click.option(
    "--agents-namespace", "agents_namespaces", multiple=True, default=("agents",), show_default=True,
    help="Namespace that the listener may deploy to; may be given several times.",
)  # fmt: skip
@click.option("--agents-url", help="Where deployments are reached from outside, such as https://*.agents.example.com.")
def manifests(**options: Any) -> None:
    """Print the Kubernetes objects of a platform and a listener, as YAML for kubectl."""
    import yaml

    from portside.platform.installation import Installation, installation

    wanted = Installation(**options)
    literals = _OWN + _OWN_URL if wanted.own_postgres else _EXTERNAL
    click.echo(NOTES.format(version=__version__, namespace=wanted.namespace, literals=literals), nl=False)
    # Two mentions of one object are no reason for anchors, which people do not read.
    dumper = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    click.echo(yaml.dump_all(installation(wanted), Dumper=dumper, sort_keys=False, explicit_start=True), nl=False)
