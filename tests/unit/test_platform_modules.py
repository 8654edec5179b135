"""Each package that has routes or tables has a module in the platform's list, with all of its routes."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import portside
from portside.kernel.http.routes import Routes
from portside.platform.modules import MODULES

SOURCE = Path(portside.__file__).parent
ROUTES_OBJECT = re.compile(r"^(\w*routes) = .*Routes", re.MULTILINE)
# The agent server is another program, with a list of its own.
OTHER_SERVERS = {"agent"}


def find_routes() -> Iterator[tuple[str, Routes]]:
    """Yield each `Routes` object, with the name of its package."""
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in OTHER_SERVERS:
            continue

        for name in ROUTES_OBJECT.findall(file.read_text()):
            yield parts[0], getattr(import_module(".".join(("portside", *parts))), name)


@pytest.mark.parametrize(("package", "routes"), [pytest.param(*found, id=found[0]) for found in find_routes()])
def test_the_routes_of_each_package_are_in_its_module(package: str, routes: Routes) -> None:
    [module] = [module for module in MODULES if module.package == f"portside.{package}"]
    assert list(routes)
    assert all(any(route is served for served in module.routes) for route in routes)


def test_no_package_has_two_modules() -> None:
    packages = [module.package for module in MODULES]
    assert len(set(packages)) == len(packages)


def test_each_package_with_tables_says_so_in_its_module() -> None:
    folders = {folder.parent.name for folder in SOURCE.glob("*/migrations")} - OTHER_SERVERS
    assert folders == {module.package.removeprefix("portside.") for module in MODULES if module.has_migrations}
