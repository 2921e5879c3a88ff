"""The project's own source, read as syntax trees."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "edgedraft": ROOT / "sdk" / "edgedraft",
    "edgedraft_cloud": ROOT / "cloud" / "edgedraft_cloud",
    "edgedraft_models": ROOT / "models" / "edgedraft_models",
    "edgedraft_apps": ROOT / "apps" / "edgedraft_apps",
}


@dataclass(frozen=True)
class Module:
    """A module of one of the packages."""

    name: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @property
    def generated(self) -> bool:
        return self.path.stem.endswith("_pb2")

    def imports(self) -> set[str]:
        """Full names of the modules that it imports anywhere, with `from x import y` as `x.y`."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: relative import"
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        return found

    def calls(self) -> Iterator[str]:
        """Names of the methods that it calls or refers to."""
        return (node.attr for node in ast.walk(self.tree) if isinstance(node, ast.Attribute))


def modules(package: str) -> list[Module]:
    folder = PACKAGES[package]
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found.append(Module(".".join(parts).removesuffix(".__init__"), path))
    assert found
    return found
