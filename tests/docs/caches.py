"""The caches of the code, found in its syntax trees."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.paths import ROOT

_FOLDERS = ("models", "service", "shardwright")
_KEEPING = re.compile(r"(?:LRU|TTL)Cache(?:\[.*\])?|.*\bmemory\.keep\w*|.*\.recall", re.DOTALL)
"""Functions that make a cache, or put a value into the memory of a database."""
_MAY_KEEP = re.compile(r"[cC]ache|memory\s*\.|\.\s*recall")
"""What a module without a cache has nothing of, so that it need not be parsed."""


@dataclass(frozen=True, slots=True)
class Decorated:
    """A function of a module, or a method of a class, with one of its decorators."""

    file: str
    owner: str
    """The class of a method, or an empty text."""
    function: ast.FunctionDef
    decorator: str
    """The name of the decorator."""
    values: Sequence[str]
    """The decorator's arguments, with constants of the module in place of their names."""

    @property
    def parameters(self) -> list[str]:
        given = self.function.args
        return [each.arg for each in (*given.args, *given.kwonlyargs)]


def cached_functions() -> list[tuple[str, str, str, str]]:
    """Returns the file, the name, the key and the size of every cache of a function's results."""
    return [
        (each.file, each.function.name, *described)
        for each in _decorated()
        if (described := _described(each)) is not None
    ]


def cached_properties() -> dict[tuple[str, str], list[str]]:
    """Returns the names of the cached properties of each class, by its file and name."""
    found = defaultdict[tuple[str, str], list[str]](list)
    for each in _decorated():
        if each.decorator == "cached_property":
            found[each.file, each.owner].append(each.function.name)
    return dict(found)


def modules_that_keep_values() -> set[str]:
    """Returns the files that make a cache by hand, or use the memory of a database."""
    return {
        file
        for file, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _KEEPING.fullmatch(ast.unparse(node.func))
    }


def _described(each: Decorated) -> tuple[str, str] | None:
    """Returns the key and the size of a cache; None where the decorator makes none."""
    parameters = each.parameters
    if each.decorator == "cache":
        return (_listed(parameters), "all") if parameters else ("none", "one")
    if each.decorator == "lru_cache":
        return _listed(parameters), _last(each.values[0])
    if each.decorator == "cached_by_identity":
        size, *objects = each.values
        by_identity = int(objects[0]) if objects else 1
        key = f"{_listed(parameters[:by_identity])} by identity"
        others = parameters[by_identity:]
        return f"{key}, {_listed(others)} by value" if others else key, _last(size)
    if each.decorator == "cached":
        made, key, *_ = each.values
        return f"`{key.partition(': ')[2]}`", _last(made.removeprefix("LRUCache(").rstrip(")"))
    return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _last(size: str) -> str:
    return f"the last {int(size):,}" if int(size) > 1 else "the last one"


def _decorated() -> Iterator[Decorated]:
    for file, tree in _modules():
        constants = _integers(tree)
        bodies = {"": tree.body}
        bodies |= {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
        for owner, body in bodies.items():
            for function in body:
                if isinstance(function, ast.FunctionDef):
                    for decorator in function.decorator_list:
                        values = _arguments(decorator, constants)
                        yield Decorated(file, owner, function, _name(decorator), values)


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text("utf-8")
            if _MAY_KEEP.search(text):
                yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def _integers(tree: ast.Module) -> dict[str, str]:
    """Returns the values of the integers that a module names."""
    return {
        target.id: str(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, int)
    }


def _arguments(decorator: ast.expr, constants: dict[str, str]) -> list[str]:
    if not isinstance(decorator, ast.Call):
        return []
    values = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
    for value in values:
        for node in ast.walk(value):
            if isinstance(node, ast.Name):
                node.id = constants.get(node.id, node.id)
    return [ast.unparse(value) for value in values]


def _name(node: ast.expr) -> str:
    """Returns the last name of a decorator or of a function that is called."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
