"""Writes the bill of materials of a release (CycloneDX 1.6, JSON): `bill_of_materials.py FILE [--commit COMMIT]`.

It names what Portside needs when it runs: the Python packages of requirements.lock, without those that only development
needs, and the packages of JavaScript whose code is in the console and in the executor. It does not name what an image
adds to them, the packages of its base image. Equal sources give an equal file.
"""

import argparse
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
OURS = "portside (pyproject.toml)"
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))?(?: \\)?$")
_VIA = re.compile(r"^ +# +(?:via\b *)?(?P<name>.*)$")


class Pin(NamedTuple):
    """A pinned package of Python; `marker` says where it is needed, and `via` which packages require it."""

    name: str
    version: str
    marker: str | None
    via: frozenset[str]


class MissingBuildError(Exception):
    """Something that the bill is written from was not built; the message says what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="the file to write")
    parser.add_argument("--commit", default="", help="the commit that the release is built from")
    options = parser.parse_args()

    try:
        text = write_bill(ROOT, options.commit)
    except MissingBuildError as problem:
        print(problem, file=sys.stderr)
        return 1

    options.file.write_text(text, "utf-8")
    return 0


def write_bill(root: Path, commit: str = "") -> str:
    """Return the bill of the sources in a folder. Raises MissingBuildError, and ValueError if it is not valid."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    portside = _make_component("pypi", project["name"], project["version"], license_name=project["license"])
    portside.type = ComponentType.APPLICATION
    if commit:
        portside.properties.add(Property(name="portside:commit", value=commit))

    bill = Bom(serial_number=uuid5(NAMESPACE_URL, f"portside {project['version']} {commit}"))
    bill.metadata.timestamp = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    bill.metadata.component = portside

    _add_python(bill, portside, read_pins((root / "requirements.lock").read_text("utf-8")), project)
    _add_javascript(bill, portside, root)

    text = JsonV1Dot6(bill).output_as_string(indent=2)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        message = f"the bill of materials is not valid: {problem}"
        raise ValueError(message)

    return f"{text}\n"


# Python


def read_pins(text: str) -> dict[str, Pin]:
    """Return the packages of a lock file by their names."""
    pins: dict[str, Pin] = {}
    current: re.Match[str] | None = None
    via: set[str] = set()

    for line in [*text.splitlines(), ""]:
        pin = _PIN.match(line)
        if current is not None and (pin or not line):
            name = canonicalize_name(current["name"])
            pins[name] = Pin(name, current["version"], current["marker"], frozenset(via))

        if pin:
            current = pin
            via = set()
        elif (parent := _VIA.match(line)) and parent["name"]:
            via.add(parent["name"] if parent["name"] == OURS else canonicalize_name(parent["name"]))

    return pins


def find_needed(pins: Mapping[str, Pin], roots: Iterable[str]) -> set[str]:
    """Return the names of packages that some of them require, directly or through others."""
    needed = {canonicalize_name(name) for name in roots}
    while True:
        more = {pin.name for pin in pins.values() if pin.via & needed} - needed
        if not more:
            return needed

        needed |= more


def _add_python(bill: Bom, portside: Component, pins: Mapping[str, Pin], project: Mapping[str, Any]) -> None:
    required = [Requirement(line).name for line in project["dependencies"]]
    extras = project["optional-dependencies"]
    optional = [Requirement(line).name for extra, lines in extras.items() if extra != "dev" for line in lines]
    always_needed = find_needed(pins, required)

    components = {}
    for name in sorted(find_needed(pins, [*required, *optional])):
        pin = pins[name]
        component = _make_component("pypi", name, pin.version, license_name=_read_license(name))
        component.scope = ComponentScope.REQUIRED if name in always_needed else ComponentScope.OPTIONAL
        if pin.marker:
            component.properties.add(Property(name="portside:needed-where", value=pin.marker))

        components[name] = component
        bill.components.add(component)

    named = {canonicalize_name(name) for name in (*required, *optional)}
    bill.register_dependency(portside, [components[name] for name in sorted(named)])
    for name, component in components.items():
        bill.register_dependency(component, [components[each] for each in components if name in pins[each].via])


def _read_license(name: str) -> str | None:
    """Return the licence that an installed package names, or None: packages of other systems are not installed."""
    try:
        message = metadata(name)
    except PackageNotFoundError:
        return None

    text = message.get("License-Expression") or message.get("License") or ""
    classifiers = [
        each for each in message.get_all("Classifier") or [] if each.startswith("License :: OSI Approved :: ")
    ]
    if not text or "\n" in text:
        text = classifiers[0].rpartition(" :: ")[2] if classifiers else ""

    return text or None


# JavaScript


def _add_javascript(bill: Bom, portside: Component, root: Path) -> None:
    bundled = root / "src" / "portside" / "executor_js" / "bundled.json"
    if not bundled.is_file():
        message = f"{bundled.relative_to(root)} is missing: run 'make console' first"
        raise MissingBuildError(message)

    packages = {
        "the console": read_npm_packages(root / "console" / "package-lock.json"),
        "the executor of JavaScript graphs": {
            (name, package["version"]): package["license"] for name, package in json.loads(bundled.read_text()).items()
        },
        "node_modules, which a platform installs for TypeScript": read_npm_packages(
            root / "executor-js" / "runtime" / "package-lock.json"
        ),
    }

    components: dict[tuple[str, str], Component] = {}
    for place, licenses in packages.items():
        for (name, version), license_name in sorted(licenses.items()):
            component = components.setdefault(
                (name, version), _make_component("npm", name, version, license_name=license_name)
            )
            component.properties.add(Property(name="portside:contained-in", value=place))
            if component.scope is None:
                is_bundled = not place.startswith("node_modules")
                component.scope = ComponentScope.REQUIRED if is_bundled else ComponentScope.OPTIONAL

    bill.components.update(components.values())
    bill.register_dependency(portside, components.values())


def read_npm_packages(lock: Path) -> dict[tuple[str, str], str]:
    """Return the licences of the packages in a lock file, without types and those that only a build needs."""
    packages = json.loads(lock.read_text("utf-8"))["packages"]
    licenses = {}
    for path, package in packages.items():
        name = path.rpartition("node_modules/")[2]
        if name and not name.startswith("@types/") and not package.get("dev") and not package.get("devOptional"):
            licenses[name, package["version"]] = package["license"]

    return licenses


def _make_component(kind: str, name: str, version: str, *, license_name: str | None) -> Component:
    namespace, _, short_name = name.rpartition("/")
    purl = PackageURL(type=kind, namespace=namespace or None, name=short_name, version=version)
    licenses = [] if license_name is None else [LicenseFactory().make_from_string(license_name)]
    return Component(
        type=ComponentType.LIBRARY,
        group=namespace or None,
        name=short_name,
        version=version,
        purl=purl,
        bom_ref=purl.to_string(),
        licenses=licenses,
    )


if __name__ == "__main__":
    sys.exit(main())
