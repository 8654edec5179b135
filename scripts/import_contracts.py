"""The kind of contract in `.importlinter` that says what may be imported; new packages are refused all the rest."""

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowedImports(Contract):
    """Each package below `root` may import the packages that its line in `imports` names, and no other.

    A line is `package: packages`; a name with dots allows only that module. The lines go from the lowest package to the
    highest, and name only packages above them, so there are no circles. A package without a line, and a permission that
    nothing uses, break the contract too.
    """

    type_name = "allowed_imports"

    root = fields.StringField()
    imports = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002, FBT001 - of its base
        """Return what breaks the contract."""
        allowed = self._parse()
        problems = self._find_unordered(allowed)
        used = set[tuple[str, str]]()

        for module in sorted(graph.modules):
            package = self._get_package(module)
            if package is None:
                continue
            if package not in allowed:
                problems.append(f"{module}: its package has no line in .importlinter")
                continue

            for target in sorted(graph.find_modules_directly_imported_by(module)):
                if self._get_package(target) in {None, package}:
                    continue

                names = [name for name in allowed[package] if self._covers(name, target)]
                used.update((package, name) for name in names)
                if not names:
                    problems.append(f"{module} imports {target}, which the line of {package} does not name")

        problems += [
            f"{package}: nothing of {name} is imported, so its line must not name it"
            for package, names in allowed.items()
            for name in names
            if (package, name) not in used
        ]
        return ContractCheck(kept=not problems, metadata={"problems": problems})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print what breaks the contract."""
        for problem in check.metadata["problems"]:
            output.print_error(f"- {problem}")

    def _parse(self) -> dict[str, list[str]]:
        lines: Any = self.imports
        pairs = [line.split(":", 1) for line in lines]
        return {package.strip(): names.split() for package, names in pairs}

    def _find_unordered(self, allowed: dict[str, list[str]]) -> list[str]:
        problems = []
        lower_packages = set[str]()
        for package, names in allowed.items():
            unknown = [name for name in names if name.split(".")[0] not in lower_packages]
            problems += [f"{package}: {name} has no line above it" for name in unknown]
            lower_packages.add(package)

        return problems

    def _get_package(self, module: str) -> str | None:
        """Return the package of a module; None for the root itself and for libraries."""
        parts = module.split(".")
        return parts[1] if parts[0] == str(self.root) and len(parts) > 1 else None

    def _covers(self, name: str, module: str) -> bool:
        allowed = f"{self.root}.{name}"
        return module == allowed or module.startswith(f"{allowed}.")
