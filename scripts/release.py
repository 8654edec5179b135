"""Makes a release: `make release VERSION=0.2.0`, or `release.py VERSION` with the options below.

It writes the release's commit in a clone below build/, builds all files from exactly this commit, and uses them in an
empty environment. Only when all of this has worked, it moves the branch to the commit, puts the files into dist/VERSION
and tags the commit. Until then nothing outside of build/ changes. Started again, it goes on with the first step that is
missing. It publishes nothing: pushing the tag does (.github/workflows/release.yml).
"""

import argparse
import gzip
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from hatch_build import find_missing  # noqa: E402 - it stands at the top of the repository, where hatchling looks

UNRELEASED = "## Unreleased\n"
# The images of a release: the Dockerfile, and the name of the image.
IMAGES = {"platform": "portside", "agent": "portside-agent"}
ENGINES = ("podman", "docker")
CHECKSUMS = "SHA256SUMS"
NOTES = "NOTES.md"
_RELEASE = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_POLL_S = 2.0
# Only ends a check that failed.
_STARTS_WITHIN_S = 900.0


class ReleaseError(Exception):
    """The release cannot be made; the message says what to do."""


class Options(NamedTuple):
    """What the command line says."""

    version: str
    is_dry_run: bool
    has_tag: bool
    only_files: bool
    has_images: bool
    engine: str | None
    image_base: str | None
    image_options: list[str]


class Release:
    """A release that is in the making, and its folders below build/."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.version = options.version
        self.tag = f"v{options.version}"
        kind = "files" if options.only_files else "release"
        self.folder = ROOT / "build" / f"{kind}-{options.version}"
        self.source = self.folder / "source"
        self.files = self.folder / "files"
        self.target = ROOT / "dist" / options.version

    @property
    def commit(self) -> str:
        return read_git("rev-parse", "HEAD", folder=self.source)

    @property
    def wheel(self) -> Path:
        return self.files / f"portside-{self.version}-py3-none-any.whl"

    @property
    def bill(self) -> Path:
        return self.files / "bill-of-materials.cdx.json"

    @property
    def environment(self) -> dict[str, str]:
        """Builds take their times from the commit, so that the same commit gives the same files."""
        commit_time = read_git("log", "-1", "--format=%ct", folder=self.source)
        return {**os.environ, "SOURCE_DATE_EPOCH": commit_time, "PYTHONPATH": str(self.source / "src")}

    def run(self, *command: str | Path) -> None:
        """Run a program in the source. Raises ReleaseError."""
        run_command(*command, folder=self.source, environment=self.environment)

    def is_done(self, step: str) -> bool:
        return (self.folder / f"{step}.done").exists()

    def mark_done(self, step: str) -> None:
        (self.folder / f"{step}.done").touch()


class Step(NamedTuple):
    """A step that writes only below build/."""

    name: str
    description: str
    act: Callable[[Release], None]


def main() -> int:
    options = parse_options()
    release = Release(options)
    try:
        examine(release)
        steps = list_steps(release)
        if options.is_dry_run:
            show_plan(release, steps)
            return 0

        prepare_source(release)
        for step in steps:
            carry_out(release, step)

        finish(release)
    except ReleaseError as problem:
        print(f"\nThere is no release {options.version}: {problem}", file=sys.stderr)
        return 1

    return 0


def parse_options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="the version to release, such as 0.2.0 or 0.2.0rc1")
    parser.add_argument("--dry-run", action="store_true", help="examine everything and show the steps; change nothing")
    parser.add_argument("--no-tag", action="store_true", help="make the commit, but no tag")
    parser.add_argument(
        "--files",
        action="store_true",
        help="this commit is the release already: only build and check its files, as the workflow on a tag does",
    )
    parser.add_argument("--no-images", action="store_true", help="leave out the images")
    parser.add_argument("--engine", choices=ENGINES, help="what builds the images [default: what is installed]")
    parser.add_argument(
        "--image-base", metavar="IMAGE", help="the base of the images [default: that of the Dockerfiles]"
    )
    parser.add_argument(
        "--image-options", default="", metavar="OPTIONS", help="more options for 'podman build' or 'docker build'"
    )
    arguments = parser.parse_args()

    return Options(
        version=arguments.version,
        is_dry_run=arguments.dry_run,
        has_tag=not arguments.no_tag,
        only_files=arguments.files,
        has_images=not arguments.no_images,
        engine=arguments.engine or find_engine(),
        image_base=arguments.image_base,
        image_options=shlex.split(arguments.image_options),
    )


def list_steps(release: Release) -> list[Step]:
    """Return the steps between the source and the end."""
    steps = [
        Step("built", "build the console, the executor of JavaScript graphs and the documentation", build_parts),
        Step("packages", "build the sdist, and the wheel from it", build_packages),
        Step("bill", "write the bill of materials", write_bill),
        Step("notes", "write the notes, which are the changelog's section", write_notes),
        Step("installed", "install the wheel in an empty environment, and use it", check_wheel),
    ]
    if release.options.has_images and release.options.engine is not None:
        steps += [
            Step("images", f"build the images with {release.options.engine}", build_images),
            Step("started", "start the platform's image", check_images),
            Step("archives", "save the images", save_images),
        ]

    return steps


# What must be true before anything is built


def examine(release: Release) -> None:
    """Look for everything that prevents the release. Raises ReleaseError with all reasons."""
    check_version_form(release.version)
    if is_landed(release):
        return

    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    find = find_file_problems if release.options.only_files else find_problems
    problems = find(release, changelog)
    if read_git("status", "--porcelain"):
        problems.insert(0, "the working tree has changes: commit or remove them ('git status' lists them)")

    if problems:
        raise ReleaseError("\n  - ".join(["", *problems]))

    if release.options.has_images and release.options.engine is None:
        say("neither podman nor docker is installed: the release will have no images")


def check_version_form(version: str) -> None:
    """Raises ReleaseError for a version that is not MAJOR.MINOR.PATCH."""
    if not _RELEASE.fullmatch(version):
        message = f"{version!r} is no version: write MAJOR.MINOR.PATCH, such as 0.2.0 or 0.2.0rc1"
        raise ReleaseError(message)


def find_problems(release: Release, changelog: str) -> list[str]:
    """Return what prevents a new release of this commit."""
    problems = []
    tags = read_git("tag", "--list", "v*").split()
    latest = find_latest(tags)
    current = read_version()

    if release.tag in tags:
        problems.append(f"the tag {release.tag} exists already: a version is released once, take the next one")
    elif latest is not None and Version(release.version) <= Version(latest):
        problems.append(f"{release.version} is not newer than {latest}, which was released last")
    elif Version(release.version) < Version(current):
        problems.append(f"{release.version} is older than {current}, the version in pyproject.toml")

    if re.search(rf"^## {re.escape(release.version)}\b", changelog, re.MULTILINE):
        problems.append(f"CHANGELOG.md has a section {release.version} already")

    if not read_entries(changelog):
        problems.append("CHANGELOG.md has nothing under '## Unreleased': write there what changed for users")

    return problems


def find_file_problems(release: Release, changelog: str) -> list[str]:
    """Return why this commit is not the release."""
    problems = []
    current = read_version()
    if current != release.version:
        problems.append(f"this commit is of version {current}, not {release.version}")

    if not re.search(rf"^## {re.escape(release.version)}\b", changelog, re.MULTILINE):
        problems.append(f"CHANGELOG.md has no section {release.version}: 'make release' writes it")

    return problems


def find_latest(tags: list[str]) -> str | None:
    """Return the newest version among tags; others, which are no versions, do not count."""
    versions = []
    for tag in tags:
        try:
            versions.append(Version(tag.removeprefix("v")))
        except InvalidVersion:
            continue

    return str(max(versions)) if versions else None


def is_landed(release: Release) -> bool:
    """Whether the branch is at the release's commit already: an earlier run ended before the tag."""
    return (
        release.source.is_dir() and not release.options.only_files and release.commit == read_git("rev-parse", "HEAD")
    )


def read_version() -> str:
    match = re.search(r'^version = "([^"]+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def show_plan(release: Release, steps: list[Step]) -> None:
    options = release.options
    lines = [*(step.description for step in steps), "write the checksums"]
    if not options.only_files:
        lines.insert(0, f"write version {release.version} and its section of the changelog, and commit them in a clone")

    if not options.only_files:
        lines.append("move the branch to the commit")

    lines.append(f"put the files into {release.target.relative_to(ROOT)}")
    if not options.only_files and options.has_tag:
        lines.append(f"make the annotated tag {release.tag}")

    print(f"A release {release.version} would:")
    for number, line in enumerate(lines, start=1):
        print(f"  {number}. {line}")


# The source


def prepare_source(release: Release) -> None:
    """Clone the checkout, and commit the version and the changelog in the clone, unless an earlier run has done it."""
    head = read_git("rev-parse", "HEAD")
    if is_prepared(release, head):
        say(f"going on with the commit {release.commit[:7]} of an earlier run")
        return

    shutil.rmtree(release.folder, ignore_errors=True)
    release.files.mkdir(parents=True)
    say("cloning the repository into build/")
    run_command("git", "-c", "advice.detachedHead=false", "clone", "--quiet", str(ROOT), str(release.source))
    run_command("git", "checkout", "--quiet", "--detach", head, folder=release.source)

    if not release.options.only_files:
        commit_release(release)

    release.mark_done("source")


def is_prepared(release: Release, head: str) -> bool:
    """Whether the clone has the release's commit upon this one."""
    if not release.is_done("source"):
        return False

    return release.commit == head or read_git("rev-parse", "HEAD~1", folder=release.source) == head


def commit_release(release: Release) -> None:
    """Write the version and the changelog's section, with the files that are generated from them, and commit."""
    say(f"writing version {release.version} and the changelog's section")
    current = read_version()
    if current != release.version:
        replace_version(release.source, current, release.version)
        release.run(sys.executable, "scripts/generate.py")

    changelog = release.source / "CHANGELOG.md"
    today = datetime.now(UTC).date()
    changelog.write_text(add_section(changelog.read_text("utf-8"), release.version, today), "utf-8")

    for name in ("user.name", "user.email"):
        value = read_git("config", "--default", "", name)
        if value:
            run_command("git", "config", name, value, folder=release.source)

    message = f"Release {release.version}\n\nThe changelog says what changed for users."
    run_command("git", "commit", "--quiet", "--all", "--message", message, folder=release.source)


def replace_version(source: Path, before: str, after: str) -> None:
    """Write a version wherever the one before is named: in the package, and as part of a file or an image."""
    named_by_package = {"pyproject.toml": 'version = "{}"', "src/portside/__init__.py": '__version__ = "{}"'}
    for name, form in named_by_package.items():
        replace_text(source / name, form.format(before), form.format(after))

    forms = [f"portside:{before}", f"portside-agent:{before}", f"portside-{before}-py3"]
    patterns = [argument for form in forms for argument in ("-e", form)]
    files = read_git("grep", "-l", "-F", *patterns, "--", ".", ":!tests", ":!CHANGELOG.md", folder=source).splitlines()
    for name in files:
        for form in forms:
            replace_text(source / name, form, form.replace(before, after))


def replace_text(file: Path, before: str, after: str) -> None:
    text = file.read_text("utf-8")
    file.write_text(text.replace(before, after), "utf-8")


def read_entries(changelog: str) -> list[str]:
    """Return the lines that are not released yet, without headings."""
    section = read_section(changelog, "Unreleased")
    return [line for line in section.splitlines() if line.strip() and not line.startswith("#")]


def read_section(changelog: str, name: str) -> str:
    """Return the text of a section, which is empty if there is none."""
    section = re.search(rf"^## {re.escape(name)}\b.*\n(?P<text>(?:(?!## ).*\n)*)", changelog, re.MULTILINE)
    return section["text"].strip() + "\n" if section else ""


def add_section(changelog: str, version: str, day: date) -> str:
    """Return the changelog with what is not released yet under a version, and a new empty section above."""
    heading = f"## {version} - {day.isoformat()}\n"
    return changelog.replace(UNRELEASED, f"{UNRELEASED}\n{heading}", 1)


# Files


def carry_out(release: Release, step: Step) -> None:
    """Do a step, unless an earlier run has done it. Raises ReleaseError."""
    if release.is_done(step.name):
        say(f"{step.description}: done before")
        return

    say(step.description)
    began_at = time.monotonic()
    step.act(release)
    release.mark_done(step.name)
    print(f"    {time.monotonic() - began_at:.0f} s", flush=True)


def build_parts(release: Release) -> None:
    """Build what git does not know. hatch_build.py refuses a wheel without the first two."""
    release.run(sys.executable, "-m", "scripts.javascript", "build", "--strict")
    release.run(sys.executable, "-m", "scripts.docs_site", "build", "--strict")
    missing = find_missing(release.source)
    if not (release.source / "src" / "portside" / "console" / "help" / "index.html").is_file():
        missing.append("the documentation")

    if missing:
        message = f"{' and '.join(missing)} were not built, and nothing says why"
        raise ReleaseError(message)


def build_packages(release: Release) -> None:
    build = [
        sys.executable,
        "-m",
        "uv",
        "build",
        "--quiet",
        "--build-constraints",
        "requirements.lock",
        "--require-hashes",
    ]
    release.run(*build, "--out-dir", release.files)
    (release.files / ".gitignore").unlink(missing_ok=True)


def write_bill(release: Release) -> None:
    release.run(sys.executable, "scripts/bill_of_materials.py", release.bill, "--commit", release.commit)


def write_notes(release: Release) -> None:
    changelog = (release.source / "CHANGELOG.md").read_text("utf-8")
    (release.files / NOTES).write_text(read_section(changelog, release.version), "utf-8")


def write_checksums(release: Release) -> None:
    files = sorted(file for file in release.files.iterdir() if file.name != CHECKSUMS)
    lines = [f"{hash_file(file)}  {file.name}\n" for file in files]
    (release.files / CHECKSUMS).write_text("".join(lines), "ascii")


def hash_file(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def check_wheel(release: Release) -> None:
    """Use the wheel as a stranger does, with an agent of each language."""
    check = [sys.executable, "scripts/check_installed.py", release.wheel]
    release.run(*check, "--agent", release.source / "examples" / "hello-agent-js")


# Images


def find_engine() -> str | None:
    """Return what builds and runs images on this machine, if there is something."""
    return next((program for program in ENGINES if shutil.which(program)), None)


def get_image(release: Release, name: str) -> str:
    return f"localhost/{name}:{release.version}"


def build_images(release: Release) -> None:
    engine = str(release.options.engine)
    options = list(release.options.image_options)
    if release.options.image_base:
        options += ["--build-arg", f"PYTHON={release.options.image_base}"]
    if engine == "podman":
        # The other format has no health checks.
        options += ["--format", "docker"]

    for dockerfile, name in IMAGES.items():
        say(f"  {name}")
        command = [engine, "build", "--quiet", "--file", f"docker/{dockerfile}.Dockerfile"]
        release.run(
            *command, "--build-arg", f"COMMIT={release.commit}", *options, "--tag", get_image(release, name), "."
        )


def check_images(release: Release) -> None:
    """Each image says its version, and the platform's starts and serves the console. Raises ReleaseError."""
    engine = str(release.options.engine)
    expected = f"portside, version {release.version}+g{release.commit[:7]}"
    for name in IMAGES.values():
        answer = read_output(
            engine, "run", "--rm", "--network", "none", get_image(release, name), "portside", "--version"
        )
        if answer != expected:
            message = f"the image {name} says {answer!r} and not {expected!r}"
            raise ReleaseError(message)

    options = ["--detach", "--network", "none", "--read-only", "--tmpfs", "/tmp"]
    container = read_output(engine, "run", *options, get_image(release, IMAGES["platform"]))
    try:
        wait_for_console(engine, container)
    finally:
        subprocess.run([engine, "rm", "--force", "--volumes", container], capture_output=True, check=False)


def wait_for_console(engine: str, container: str) -> None:
    """Wait until a container serves the console's first page. Raises ReleaseError."""
    program = "import urllib.request as r; print(len(r.urlopen('http://127.0.0.1:8700/console/').read()))"
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < deadline:
        asked = subprocess.run(
            [engine, "exec", container, "python", "-Ic", program], capture_output=True, text=True, check=False
        )
        if asked.returncode == 0:
            return

        time.sleep(_POLL_S)

    logs = subprocess.run([engine, "logs", container], capture_output=True, text=True, check=False)
    message = f"the platform's image does not serve the console:\n{asked.stderr}{logs.stdout}{logs.stderr}"
    raise ReleaseError(message)


def save_images(release: Release) -> None:
    """Write each image as an archive that 'podman load' and 'docker load' read."""
    engine = str(release.options.engine)
    for name in IMAGES.values():
        archive = release.files / f"{name}-image-{release.version}.tar.gz"
        with subprocess.Popen([engine, "save", get_image(release, name)], stdout=subprocess.PIPE) as saving:
            assert saving.stdout is not None
            with (
                archive.open("wb") as file,
                gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed,
            ):
                shutil.copyfileobj(saving.stdout, packed)

        if saving.returncode != 0:
            message = f"{engine} could not save the image {name}"
            raise ReleaseError(message)


# The end


def finish(release: Release) -> None:
    """Move the branch to the commit, put the files into dist/, and tag the commit. Raises ReleaseError."""
    write_checksums(release)
    if not release.options.only_files:
        land_commit(release)

    put_files(release)
    if release.options.has_tag and not release.options.only_files:
        make_tag(release)

    print(f"\nThe files are in {release.target.relative_to(ROOT)}:")
    for file in sorted(release.target.iterdir()):
        print(f"  {file.stat().st_size:>12,}  {file.name}")

    if release.options.only_files:
        return

    if not release.options.has_tag:
        print(f"\nThe commit is {release.commit[:7]}; without a tag, as you said.")
        return

    print(f"\nThe commit {release.commit[:7]} has the tag {release.tag}.")
    print(f"Publish it with: git push origin HEAD {release.tag}")


def put_files(release: Release) -> None:
    """Copy the files into dist/ in one step, in place of those of an earlier run."""
    fresh = release.target.with_name(f".{release.version}")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(release.files, fresh)
    shutil.rmtree(release.target, ignore_errors=True)
    fresh.rename(release.target)


def land_commit(release: Release) -> None:
    """Move the branch to the release's commit. Raises ReleaseError."""
    run_command("git", "fetch", "--quiet", str(release.source), "HEAD")
    try:
        run_command("git", "merge", "--quiet", "--ff-only", release.commit)
    except ReleaseError as problem:
        message = f"the branch has moved on while the files were built; start again, which builds them anew ({problem})"
        raise ReleaseError(message) from problem


def make_tag(release: Release) -> None:
    """Tag the release's commit, unless an earlier run has done it."""
    if not read_git("tag", "--list", release.tag):
        message = f"Portside {release.version}"
        run_command("git", "tag", "--annotate", release.tag, "--message", message, release.commit)


# Programs


def run_command(*command: str | Path, folder: Path | None = None, environment: dict[str, str] | None = None) -> None:
    """Run a program, which prints what it does. Raises ReleaseError."""
    result = subprocess.run([str(word) for word in command], cwd=folder or ROOT, env=environment, check=False)
    if result.returncode != 0:
        message = f"'{shlex.join(map(str, command))}' exited with {result.returncode}; what it printed stands above"
        raise ReleaseError(message)


def read_output(*command: str, folder: Path | None = None) -> str:
    """Return what a program prints. Raises ReleaseError."""
    result = subprocess.run(command, cwd=folder or ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        message = f"'{shlex.join(command)}' exited with {result.returncode}:\n{result.stderr}"
        raise ReleaseError(message)

    return result.stdout.strip()


def read_git(*arguments: str, folder: Path | None = None) -> str:
    return read_output("git", *arguments, folder=folder)


def say(text: str) -> None:
    print(f"· {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
