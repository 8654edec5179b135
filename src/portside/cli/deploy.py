"""`portside deploy`: deploy an agent from a folder or from a git repository."""

import os
import posixpath
import re
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path
from shlex import quote
from typing import Any

import click
import msgspec

from portside.cli.client import CA_FILE, Platform, connection_options
from portside.cli.output import get_program, json_option, say, say_if_interrupted, show_json, show_text
from portside.cli.packing import pack, read_project
from portside.cli.project_check import check_project, check_source_path, describe_missing_config, has_own_logins
from portside.cli.revisions import ACCESS_MODES, PIN_HOURS, build_agent_access, build_create_body, wait_for_revision
from portside.kernel.errors import UserMistake
from portside.kernel.graph_config import read_env_file
from portside.kernel.local_addresses import is_loopback_url

_GIT_TIMEOUT_S = 30
_SHOWN_BRANCHES = 20
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class DeployOptions(msgspec.Struct):
    """The options of a deploy."""

    source: str
    """The absolute path of a folder, or the address of a repository."""
    name: str
    ref: str | None
    config: str
    secrets: list[dict[str, str]]
    integration: str | None
    build_on_push: bool | None
    settings: dict[str, Any]
    """Fields of the request that a user may leave out: who may call the agent, and how long threads are pinned."""
    install_command: str | None
    build_command: str | None
    has_own_logins: bool = False
    """Whether the agent refuses the platform's keys, as far as its configuration file is at hand."""

    @property
    def commands(self) -> dict[str, str]:
        """The commands for JavaScript that were given, as a request has them."""
        options = {"install_command": self.install_command, "build_command": self.build_command}
        return {name: command for name, command in options.items() if command is not None}


@click.command()
@click.argument("source", default=".", metavar="[FOLDER|REPOSITORY]")
@click.option("--name", help="Name of the deployment. [default: the folder's or the repository's]")
@click.option(
    "--ref",
    help="Branch, or tag as refs/tags/NAME. [default: the checked-out branch of a folder, the default branch of an "
    "address, or the ref of the deployment's latest revision]",
)
@click.option(
    "--config", default="langgraph.json", show_default=True, help="The graph configuration file in the source."
)
@click.option("--secret", "secrets", multiple=True, metavar="NAME=VALUE", help="Environment variable; repeat for more.")
@click.option(
    "--env-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of environment variables, one NAME=VALUE per line; --secret takes precedence.",
)
@click.option("--upload", is_flag=True, help="Upload the folder as it is, even if it is a git repository.")
@click.option("--integration", metavar="NAME", help="Git integration whose token gives access to the repository.")
@click.option("--install-command", metavar="COMMAND", help="Installs JavaScript packages, at the top of the source.")
@click.option("--build-command", metavar="COMMAND", help="Builds JavaScript, in the configuration file's folder.")
@click.option("--build-on-push/--no-build-on-push", default=None, help="Deploy every push to the branch.")
@click.option(
    "--agent-access",
    type=click.Choice(ACCESS_MODES),
    help="Who may call the agent with the platform's keys. [default: workspace, or what the deployment has]",
)
@click.option("--agent-role", "agent_roles", multiple=True, metavar="ROLE", help="Role that may call; repeat for more.")
@click.option(
    "--pin-threads",
    type=PIN_HOURS,
    metavar="HOURS",
    help="How long threads that are interrupted or have runs keep their revision after a newer one is deployed. "
    "[default: 0, not at all, or what the deployment has]",
)
@click.option("--wait/--no-wait", default=True, help="Follow the revision until it is deployed.")
@json_option
@connection_options
def deploy(platform: Platform, source: str, *, wait: bool, as_json: bool, upload: bool, **options: Any) -> None:
    """Deploy the agent in a FOLDER, or in a git REPOSITORY (an address or a local path).

    A folder is uploaded as it is; from a repository the newest commit is deployed. A deploy under an existing name
    creates a new revision.
    """
    parsed = _read_options(source, options)
    name = quote(parsed.name)
    with say_if_interrupted(
        f"interrupted: a revision may have been created; '{get_program()} deployments show {name}' lists them"
    ):
        deployment = _deploy(platform, parsed, upload=upload)

    for secret in deployment.get("ignored_secrets", []):
        say(
            f"{secret} is ignored: this platform does not know the key, and there is no LANGSMITH_ENDPOINT; "
            "traces arrive with the deployment's own key"
        )

    if wait:
        wait_for_revision(platform, deployment, deployment["latest_revision_id"])
        deployment = platform.call("GET", f"/v2/deployments/{deployment['id']}")

    address = deployment["source_config"]["custom_url"]
    if as_json:
        show_json(deployment)
    else:
        show_text(address or deployment["id"])

    if wait and address and not as_json:
        _suggest_call(platform, parsed, address)


def _suggest_call(platform: Platform, options: DeployOptions, address: str) -> None:
    if options.has_own_logins:
        say("try it, with a login that its auth.path accepts in place of LOGIN:")
        show_text(_example_call(address, "Authorization: Bearer LOGIN"), err=True)
        return

    header = f"X-Api-Key: {platform.key_in_shell}"
    if platform.has_login:
        command = f"{get_program()} deployments token {quote(options.name)} --url {quote(platform.url)}"
        header = f"Authorization: Bearer $({command})"

    has_key = "$PORTSIDE_API_KEY" not in platform.key_in_shell or os.environ.get("PORTSIDE_API_KEY")
    say("try it:" if has_key or platform.has_login else "try it, with a key in PORTSIDE_API_KEY:")
    show_text(_example_call(address, header), err=True)


def _example_call(address: str, header: str) -> str:
    """Return a command that lists the agent's assistants, which works for any graph."""
    trust = f"--cacert {quote(os.environ[CA_FILE])} " if os.environ.get(CA_FILE) else ""
    return (
        f'curl -s {trust}{quote(address)}/assistants/search -H "{header}" '
        "-H 'Content-Type: application/json' -d '{}'"
    )


def _read_options(source: str, options: dict[str, Any]) -> DeployOptions:
    source = str(Path(source).absolute()) if Path(source).is_dir() else source
    secrets = _with_env_file(options.pop("env_file"), [_parse_secret(text) for text in options.pop("secrets")])

    settings = build_agent_access(options.pop("agent_access"), options.pop("agent_roles"))
    if (hours := options.pop("pin_threads")) is not None:
        settings["pin_threads"] = hours

    return DeployOptions(
        **{**options, "name": options["name"] or derive_name(source)}, source=source, secrets=secrets, settings=settings
    )


def _deploy(platform: Platform, options: DeployOptions, *, upload: bool) -> dict[str, Any]:
    from portside.control.sources import to_github_url

    folder = Path(options.source)
    is_folder = folder.is_dir()
    check_source_path(folder, options.config)

    if not is_folder and _looks_local(options.source):
        suggested = to_github_url(options.source)
        raise UserMistake(
            f"there is no folder {options.source}" + (f"; did you mean {suggested}?" if suggested else "")
        )

    if upload and not is_folder:
        raise UserMistake("--upload is for folders; the platform fetches a repository from its address")
    if is_folder and not is_repository(folder) and not (folder / options.config).is_file():
        raise UserMistake(f"{describe_missing_config(folder, options.config)}, or name a git repository")

    matches = [
        deployment
        for deployment in platform.call("GET", "/v2/deployments", name=options.name)["resources"]
        if deployment["name"] == options.name
    ]

    existing = matches[0] if matches else None
    if is_folder and (upload or not is_repository(folder) or _must_upload(platform, existing)):
        return _deploy_folder(platform, existing, folder, options)

    if is_folder:
        options.ref = _get_local_ref(folder, options.ref)
        content = check_commit(folder, options.ref, options.config)
        options.has_own_logins = has_own_logins(content, options.config)

    return _deploy_repository(platform, existing, options)


def check_commit(folder: Path, ref: str, config: str) -> bytes:
    """Check the configuration file of the commit that will be built, and return its content. Raises UserMistake."""
    name = posixpath.normpath(config)
    entries = [entry.partition("\t") for entry in run_git(folder, "ls-tree", "-r", "-z", ref).split("\0") if entry]
    files = {path for _kind, _tab, path in entries}
    submodules = [f"{path}/" for kind, _tab, path in entries if " commit " in kind]

    if name not in files:
        if (folder / name).is_file():
            raise UserMistake(f"{config} is not committed on {ref}; commit it, or use --upload")
        raise UserMistake(describe_missing_config(folder, config))

    def exists(path: str) -> bool:
        # The build fetches submodules, and it follows links to folders.
        return path in files or path.startswith(("..", *submodules)) or _is_below_link(path, files)

    content = run_git(folder, "show", f"{ref}:{name}").encode()
    check_project(content, config, exists)
    return content


def _is_below_link(path: str, files: Collection[str]) -> bool:
    """Whether a part of a path is a file of the commit, which then is a link to a folder."""
    parts = path.split("/")
    return any("/".join(parts[:length]) in files for length in range(1, len(parts)))


def _get_local_ref(folder: Path, ref: str | None) -> str:
    """Return the ref to deploy from a local repository, and warn about uncommitted files. Raises UserMistake."""
    current = get_checked_out(folder)
    if ref is not None:
        check_branch(folder, ref)

    count = count_uncommitted(folder) if ref in {None, current} else 0
    if count:
        files = "1 changed file is" if count == 1 else f"{count} changed files are"
        say(f"{files} not committed; commit them or use --upload")

    return ref or current


def _must_upload(platform: Platform, existing: dict[str, Any] | None) -> bool:
    """Whether a local repository must be uploaded, because a remote platform cannot fetch it."""
    is_local = is_loopback_url(platform.url)
    return not is_local or (existing is not None and existing["source"] == "internal_source")


def _looks_local(source: str) -> bool:
    return source.startswith(("/", ".", "~")) or not any(mark in source for mark in (":", "@"))


def _deploy_repository(platform: Platform, existing: dict[str, Any] | None, options: DeployOptions) -> dict[str, Any]:
    revision_config = {"repo_ref": options.ref, "graph_config_path": options.config}
    if existing is None:
        body = build_create_body(
            platform, options.name, options.source, revision_config, integration=options.integration
        )
        body["source_config"] |= {"build_on_push": bool(options.build_on_push), **options.commands}
        return dict(
            platform.call("POST", "/v2/deployments", body=body | {"secrets": options.secrets} | options.settings)
        )

    source_config = {"repo_url": options.source, "build_on_push": options.build_on_push, **options.commands}
    change: dict[str, Any] = {
        "source_config": source_config,
        "source_revision_config": revision_config,
        **options.settings,
    }
    if options.secrets:
        change["secrets"] = options.secrets

    return dict(platform.call("PATCH", f"/v2/deployments/{existing['id']}", body=change))


def _deploy_folder(
    platform: Platform, deployed: dict[str, Any] | None, folder: Path, options: DeployOptions
) -> dict[str, Any]:
    if options.ref or options.integration or options.build_on_push is not None:
        raise UserMistake(
            "--ref, --integration and --build-on-push are for repositories; a folder is uploaded as it is"
        )

    project = read_project(folder, options.config)
    content = (project.root / project.config).read_bytes()
    check_project(content, project.config, lambda path: (project.root / path).is_file())
    options.has_own_logins = has_own_logins(content, project.config)

    if project.missing_env is not None:
        say(f"{project.missing_env}; continuing without it")

    secrets = _with_env_file(project.env_file, options.secrets)
    with tempfile.TemporaryFile() as file:
        packed = pack(project, file)
        for name in packed.left_out:
            say(f"{name} is a link to a folder or to outside, and is left out")

        say(f"packed {packed.files} files, {max(1, packed.size // 1024)} kB")

        if deployed is None:
            body = {
                "name": options.name,
                "source": "internal_source",
                "source_config": {"deployment_type": "dev"},
                "source_revision_config": {},
                "secrets": secrets,
                **options.settings,
            }

            deployed = dict(platform.call("POST", "/v2/deployments", body=body))

        path = f"/v2/deployments/{deployed['id']}"
        upload_address = platform.call("POST", f"{path}/upload-url", body={"supports_upload_headers": True})
        platform.upload(upload_address["upload_url"], file, packed.size, upload_address["upload_headers"])

    revision = {"source_tarball_path": upload_address["object_path"], "graph_config_path": project.config}
    change = {"revision_source": "internal_source", "source_revision_config": revision, **options.settings}
    if options.commands:
        change["source_config"] = options.commands
    if secrets:
        change["secrets"] = secrets

    return dict(platform.call("PATCH", path, body=change))


def _with_env_file(env_file: Path | None, secrets: list[dict[str, str]]) -> list[dict[str, str]]:
    """Add the variables of an env file to secrets, which take precedence. Raises UserMistake."""
    if env_file is None:
        return secrets

    from portside.control.secrets import RESERVED

    try:
        values = read_env_file(env_file)
    except UnicodeDecodeError as exc:
        raise UserMistake(f"{env_file} is not UTF-8 text") from exc

    values |= {secret["name"]: secret["value"] for secret in secrets}
    for name in sorted(RESERVED & values.keys()):
        say(f"{name} is left out: the platform sets it")
        del values[name]

    return [{"name": name, "value": value} for name, value in values.items()]


def derive_name(source: str) -> str:
    """Return a deployment name for a folder or a repository's address: a DNS label. Raises UserMistake."""
    last = source.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git").lower()
    label = "".join(c if c.isalnum() and c.isascii() else "-" for c in last).strip("-")[:63].strip("-")
    if not label:
        raise UserMistake(f"cannot derive the name of a deployment from {source}; set one with --name")

    return label


def _parse_secret(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserMistake("invalid --secret: write NAME=VALUE")

    return {"name": name, "value": value}


def is_repository(folder: Path) -> bool:
    """Whether a folder is a git repository, with or without a work tree."""
    return (folder / ".git").exists() or all((folder / part).exists() for part in ("HEAD", "objects", "refs"))


def get_checked_out(folder: Path) -> str:
    """Return the checked-out branch, or the commit if none is checked out. Raises UserMistake."""
    commit = run_git(folder, "rev-parse", "--quiet", "--verify", "HEAD^{commit}").strip()
    if not commit:
        raise UserMistake(f"{folder} has no commit on its branch yet; commit your files or use --upload")

    return run_git(folder, "symbolic-ref", "--quiet", "--short", "HEAD").strip() or commit


def check_branch(folder: Path, ref: str) -> None:
    """Check that the repository has a branch. Raises UserMistake that lists its branches."""
    if ref.startswith("refs/") or _COMMIT.fullmatch(ref):
        return

    branches = run_git(folder, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/").splitlines()
    if ref not in branches:
        names = ", ".join(branches[:_SHOWN_BRANCHES]) or "none"
        more = f" and {len(branches) - _SHOWN_BRANCHES} more" if len(branches) > _SHOWN_BRANCHES else ""
        raise UserMistake(f"{folder} has no branch {ref}; its branches are {names}{more}")


def count_uncommitted(folder: Path) -> int:
    """Count the files that differ from the checked-out commit, except ignored ones."""
    if not (folder / ".git").exists():
        return 0
    return len(run_git(folder, "status", "--porcelain", "--untracked-files=all").splitlines())


def run_git(folder: Path, *arguments: str) -> str:
    """Run git and return its output, which is empty for exit status 1 (no). Raises UserMistake for other failures."""
    # A git hook of another repository may have set GIT_DIR and others to that repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.run(
            ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", *arguments],
            cwd=folder,
            env=environment | {"LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_GIT_TIMEOUT_S,
        )
    except OSError as exc:
        raise UserMistake(f"cannot run git: {exc.strerror}; install it, or add its folder to PATH") from exc
    except subprocess.TimeoutExpired as exc:
        raise UserMistake(f"git {arguments[0]} did not end within {_GIT_TIMEOUT_S} seconds in {folder}") from exc

    if process.returncode not in {0, 1}:
        raise UserMistake(f"git {arguments[0]} failed in {folder}: {process.stderr.strip()}")

    return process.stdout
