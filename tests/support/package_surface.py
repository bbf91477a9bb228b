"""An import-linter contract: a package is imported by its own name, and its modules are private to it."""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class PackageSurfaceContract(Contract):
    """Fails where a module imports a module of a package that it is not part of, rather than the package.

    `public_modules` are those that others may import as well.
    """

    root = fields.StringField()
    public_modules = fields.SetField(subfield=fields.StringField(), required=False, default=set())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare every import between modules of `root` with the packages around its two ends."""
        modules = {module for module in graph.modules if _is_within(module, self.root)}
        packages = {module for module in modules if graph.find_children(module)}
        found = [
            (importer, imported)
            for importer in modules - {self.root}
            for imported in graph.find_modules_directly_imported_by(importer)
            if imported in modules - packages - set(self.public_modules)
            # Modules of the root itself (errors, limits) are open to all.
            and (package := imported.rpartition(".")[0]) != self.root
            and not _is_within(importer, package)
        ]
        return ContractCheck(kept=not found, metadata={"found": sorted(found)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name each import that reaches into a package."""
        found: Any = check.metadata["found"]
        for importer, imported in found:
            package = imported.rpartition(".")[0]
            output.print_error(f"{importer} imports {imported}: import the name from {package}")


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
