"""Recipe file + dotted overrides -> Config. Every mistake is one line naming the key, the value and the remedy."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tandem.config.tree import Config
from tandem.types import UserError


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML recipe and apply `key.sub=value` overrides (values are YAML).

    Raises:
        UserError: the file is missing or no YAML mapping, or a key or value is not the tree's.
    """
    try:
        tree = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"recipe {path}: cannot be read ({reason}); name an existing YAML file") from problem
    except yaml.YAMLError as problem:
        raise UserError(f"recipe {path}: not valid YAML: {' '.join(str(problem).split())}") from problem
    if not isinstance(tree, dict):
        raise UserError(f"recipe {path}: must hold keys such as 'model:' and 'run:'")
    for override in overrides:
        _apply(tree, override)
    try:
        return Config.model_validate(tree)
    except ValidationError as problem:
        raise UserError(f"recipe {path}: {_explain(problem)}") from problem


def dump_yaml(config: Config) -> str:
    """The resolved config as YAML; `load_recipe` reads it back to an equal Config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"override '{override}': write it as key.sub=value")
    *parents, leaf = key.split(".")
    node = tree
    for parent in parents:
        child = node.get(parent)
        child = dict(child) if isinstance(child, Mapping) else {}
        node[parent] = child
        node = child
    try:
        node[leaf] = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise UserError(f"override '{override}': the value is not valid YAML; quote it") from problem


def _explain(problem: ValidationError) -> str:
    lines = []
    for error in problem.errors():
        key = ".".join(str(part) for part in error["loc"])
        if error["type"] == "extra_forbidden":
            lines.append(f"unknown key '{key}'{_hint(error['loc'])}")
        elif error["type"] == "missing":
            lines.append(f"key '{key}' is missing; add it")
        else:
            got = "" if isinstance(error["input"], dict) else f", got {error['input']!r}"
            lines.append(f"{key + ': ' if key else ''}{error['msg'].removeprefix('Value error, ')}{got}")
    return "; ".join(lines)


def _hint(loc: tuple[int | str, ...]) -> str:
    section: type[BaseModel] = Config
    for part in loc[:-1]:
        field = section.model_fields.get(str(part))
        if field is None:
            return ""
        section = _section(field.annotation) or section
    close = difflib.get_close_matches(str(loc[-1]), section.model_fields, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; known here: {', '.join(section.model_fields)}"


def _section(annotation: Any) -> type[BaseModel] | None:
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
