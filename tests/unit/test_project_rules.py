"""Rules for the whole project: generated documents, budgets, forbidden names."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from portside.agent.served_routes import ROUTES as AGENT_ROUTES
from portside.agent.settings import AgentSettings
from portside.cli.main import COMMANDS, portside
from portside.dataplane.settings import ListenerSettings
from portside.kernel.errors import error_classes
from portside.kernel.schema_files import read_migrations
from portside.kernel.settings import describe
from portside.platform.modules import PACKAGES
from portside.platform.modules import ROUTES as PLATFORM_ROUTES
from portside.platform.settings import PlatformSettings

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
# Written in two halves, because this file is searched as well.
HOSTS = (
    ("pypi", ".org"),
    ("python", "hosted"),
    ("npm", "js.org"),
    ("yarn", "pkg.com"),
    ("crates", ".io"),
    ("proxy.go", "lang.org"),
    ("ana", "conda.org"),
)
REGISTRY_HOSTS = ["".join(halves) for halves in HOSTS]


def script(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, f"scripts/{name}.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text("utf-8")


def repository_files() -> list[Path]:
    """The files that are or would be committed; where there is no repository, those of the known folders."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    names = [name for name in listing.stdout.split("\0") if name]
    found = [ROOT / name for name in names] or [
        path for folder in ("src", "tests", "docs", "scripts", "examples") for path in (ROOT / folder).rglob("*")
    ]

    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def test_the_reference_is_up_to_date() -> None:
    done = script("generate", "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("kind", [PlatformSettings, AgentSettings, ListenerSettings])
def test_every_setting_is_in_the_reference(kind) -> None:
    text = page("settings")
    for setting in describe(kind):
        assert all(f"`{name}`" in text for name in setting.names), setting.names
        assert setting.description in text


def test_every_command_is_in_the_reference() -> None:
    text = page("cli")
    for name in COMMANDS:
        command = portside.get_command(click.Context(portside), name)
        assert f"## `portside {name}`" in text
        if isinstance(command, click.Group):
            for child in command.list_commands(click.Context(command)):
                assert f"### `portside {name} {child}`" in text


@pytest.mark.parametrize("routes", [PLATFORM_ROUTES, AGENT_ROUTES], ids=["platform", "agent"])
def test_every_route_is_in_the_reference_with_a_summary(routes) -> None:
    text = page("routes")
    for route in routes:
        assert f"`{route.method} {route.path}`" in text
        assert (route.handler.__doc__ or "").strip(), route.name


def test_every_error_class_is_in_the_reference() -> None:
    text = page("errors")
    for error in error_classes():
        if error.__module__.startswith("portside."):
            assert f"| `{error.code}` | {error.status} |" in text
            assert re.fullmatch(r"[a-z_]+", error.code)
            assert error.__doc__, error.__name__


def test_sizes_and_names_are_within_budget() -> None:
    done = script("budgets")
    assert (done.returncode, done.stdout.strip()) == (0, "")


def test_no_file_names_a_package_registry() -> None:
    found = []
    for path in repository_files():
        text = path.read_bytes().decode("utf-8", "replace").lower()
        found += [f"{path.relative_to(ROOT)}: {host}" for host in REGISTRY_HOSTS if host in text]

    assert found == []


def test_dependencies_are_pinned_with_hashes_and_name_no_index() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert pins

    for pin in pins:
        assert re.match(r"[a-z0-9._\[\]-]+==\S+", pin), pin

    assert sum("--hash=sha256:" in line for line in lines) >= len(pins)
    assert not any("://" in line or line.startswith("-") for line in lines)


@pytest.mark.parametrize("package", ["portside.agent", *PACKAGES])
def test_migrations_are_numbered_one_by_one(package: str) -> None:
    """Of two with one number only one would be applied."""
    numbers = [migration.number for migration in read_migrations(package)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_http_modules_hold_no_sql() -> None:
    """What import contracts cannot see: SQL as text."""
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text("utf-8")
        if "http" in file.relative_to(ROOT).as_posix().split("/portside/")[1]:
            assert "asyncpg" not in text, file
            assert not re.search(r"\b(select|insert into|delete from)\b.+\b(from|values|where)\b", text), file


def test_commands_print_through_the_module_that_escapes() -> None:
    printing = re.compile(r"click\.s?echo\(|\bprint\(|click\.confirm\(|std(?:out|err)\.write\(")
    commands = ROOT / "src" / "portside" / "cli"
    found = {file.name for file in commands.glob("*.py") if printing.search(file.read_text("utf-8"))}
    assert found == {"output.py"}


def test_the_list_of_costlier_tests_names_tests_that_exist() -> None:
    folder = ROOT / "tests"
    costly = tomllib.loads((folder / "extended.toml").read_text("utf-8"))

    for file, names in costly.items():
        text = (folder / file).read_text("utf-8")
        for name, held_by in names.items():
            assert name.startswith("*") or f"def {name.partition('[')[0]}(" in text, f"{file}: {name}"
            assert held_by, f"{file}: {name} does not say what holds its rule"

            for module, holder in _holders(file, held_by):
                found = re.search(
                    rf"((?:@pytest[^\n]*\n)*)(?:async )?def {holder}\(", (folder / module).read_text("utf-8")
                )
                assert found, f"{file}: {name} names {module}: {holder}, which does not exist"
                assert holder not in costly.get(module, {}), f"{file}: {name} names {holder}, which has moved too"
                assert "@pytest.mark.thorough\n" not in found[1], f"{file}: {name} names {holder}, which is thorough"


def _holders(file: str, held_by: str) -> Iterator[tuple[str, str]]:
    """Yield the tests that a text names, each with its module: the last one that the text named before it."""
    module = file
    for named in re.finditer(r"(\w+/test_\w+\.py)|\b(test_\w+)\b(?!\.py)", held_by):
        if named[1]:
            module = named[1]
        else:
            yield module, named[2]


def test_every_measurement_can_be_imported() -> None:
    modules = [f"bench.{path.stem}" for path in (ROOT / "bench").glob("*.py") if path.stem != "__main__"]
    command = [sys.executable, "-c", "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"]
    done = subprocess.run([*command, *modules], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert (len(modules) > 10, done.returncode, done.stderr) == (True, 0, "")


def test_a_measurement_says_how_many_turns_it_needs() -> None:
    command = [sys.executable, "-m", "bench.conversations", "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr.startswith("Give 60 turns or more")) == (1, True)
