"""A build: from the sources to the files that the platform serves.

The builder, Zensical, has an environment of its own in the user's cache, with the pins of `docs/requirements.lock`.
Builds are kept there too, by the hash of their sources.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.docs_site.checking import check_site
from scripts.docs_site.links import find_broken_links
from scripts.docs_site.navigation import order_pages
from scripts.docs_site.policy import adopt_style, move_scripts
from scripts.docs_site.problems import BadSiteError
from scripts.docs_site.shrinking import drop_unused_files, pack_search, shrink_page
from scripts.docs_site.sources import LOCK, ROOT, hash_sources, list_sources, read_sources
from scripts.docs_site.staging import stage
from scripts.kept_builds import CannotBuildError, KeptBuilds

TARGET = ROOT / "src" / "portside" / "console" / "help"
BUILDS = KeptBuilds("docs", result="index.html")


def build(target: Path = TARGET) -> None:
    """Build the site if its sources changed. Raises CannotBuildError and BadSiteError."""
    BUILDS.install(target, hash_sources(), _build_into)


def finish(site: Path) -> None:
    """Turn the files of the builder into those that the platform serves, and check them. Raises BadSiteError."""
    drop_unused_files(site)

    for file in sorted(site.rglob("*.html")):
        page = shrink_page(file.read_text("utf-8"))
        file.write_text(move_scripts(page, site), "utf-8")

    for file in (site / "assets" / "javascripts").glob("bundle.*.js"):
        file.write_text(adopt_style(file.read_text("utf-8")), "utf-8")

    pack_search(site)
    check_site(site)


def _build_into(target: Path) -> None:
    print("· building the documentation's site", flush=True)
    pages = list_sources()
    texts = read_sources(pages)
    sections = order_pages(texts)
    broken_links = find_broken_links(texts)
    if broken_links:
        raise BadSiteError("\n".join(broken_links))

    program = _install_builder()

    with tempfile.TemporaryDirectory(dir=BUILDS.folder) as name:
        folder = Path(name)
        stage(folder, texts, pages, sections)

        command = [program, "build", "--strict", "--clean"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BadSiteError(f"zensical build failed:\n{done.stdout}{done.stderr}")

        finish(folder / "site")
        (folder / "site").rename(target)


def _install_builder() -> str:
    """Return the program that builds the site, installed if it is missing. Raises CannotBuildError."""
    lock = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    environment = BUILDS.folder / f"builder-{lock}-{sys.version_info.major}.{sys.version_info.minor}"
    program = environment / "bin" / "zensical"
    if program.exists():
        return str(program)

    for old in BUILDS.folder.glob("builder-*"):
        shutil.rmtree(old, ignore_errors=True)

    print("· getting what builds the documentation's site", flush=True)
    python = str(environment / "bin" / "python")
    # Images are built without uv, which is many times as quick.
    has_uv = importlib.util.find_spec("uv") is not None
    pip = (
        [sys.executable, "-m", "uv", "pip", "install", "--python", python]
        if has_uv
        else [python, "-m", "pip", "install"]
    )
    try:
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, capture_output=True, text=True)
        command = [*pip, "--quiet", "--require-hashes", "--requirement", str(LOCK)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as problem:
        shutil.rmtree(environment, ignore_errors=True)
        raise CannotBuildError(f"run “make docs” with a network; pip said: {problem.stderr.strip()}") from problem

    return str(program)
