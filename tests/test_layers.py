"""The rules of the layers, read from the source: who may import whom, and what no module may do."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGES = ("models", "service")
LAYERS = (
    "models.errors models.columns models.package_data",
    "models.spec",
    "models.compilation",
    "models.layouts",
    "models.cost",
    "models.prediction",
    "models.search models.calibration",
    "models.advice",
    "service.settings service.durations service.identifiers service.json_pointers"
    " service.loopback service.metrics",
    "service.errors service.known_fields service.nearest_names service.own_profile",
    "service.field_violations",
    "service.formats",
    "service.schemas",
    "service.store",
    "service.api_keys",
    "service.signed_tokens",
    "service.sessions service.stream_tickets",
    "service.web service.runtime",
    "service.resolve",
    "service.ask",
    "service.learning",
    "service.sweeps",
    "service.routes service.tools",
    "service.pages",
    "service.app",
    "service.__main__",
)
"""Folders and the modules beside them, from the bottom up: each imports from itself and from those
of lower layers, but not from its neighbours in a layer."""

HTTP = ("service.web", "service.routes", "service.pages", "service.app", "service.__main__")
SQL = ("service.store", "service.settings", "service.__main__")
"""The only ones that may know the libraries of HTTP, and of databases."""


@cache
def modules() -> dict[str, list[ast.Import | ast.ImportFrom | ast.Assert]]:
    """The imports and assertions of every module. Each test looks at all modules: two thousand
    tests of one each would cost ten seconds."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {name_of(path): [*statements(ast.parse(path.read_text()))] for path in paths}


def statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom | ast.Assert]:
    """Yields the imports and assertions at any depth. None is inside an expression, and most nodes
    are."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert):
            yield node
        elif not isinstance(node, ast.expr):
            yield from statements(node)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports(name: str) -> list[str]:
    found: list[str] = []
    for node in modules()[name]:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def place(name: str) -> tuple[int, str] | None:
    """The layer of a module, counted from below, and the member of it that the module belongs
    to."""
    for index, members in enumerate(LAYERS):
        for member in members.split():
            if name == member or name.startswith(f"{member}."):
                return index, member
    return None


def outside(name: str) -> set[str]:
    return {imported.split(".")[0] for imported in imports(name)}


def modules_of(package: str) -> list[str]:
    found = [name for name in modules() if name.split(".")[0] == package]
    assert len(found) > 50
    return found


def goes_down(name: str, imported: str) -> bool:
    own, target = place(name), place(imported)
    return own is not None and (target is None or target == own or target[0] < own[0])


def test_every_module_has_a_layer() -> None:
    assert [name for name in modules() if name not in PACKAGES and place(name) is None] == []


def test_imports_go_down() -> None:
    assert [
        f"{name} imports {imported}"
        for name in modules()
        if name not in PACKAGES
        for imported in imports(name)
        if imported.split(".")[0] in PACKAGES and not goes_down(name, imported)
    ] == []


def test_models_know_only_numpy_and_the_standard_library() -> None:
    for name in modules_of("models"):
        known = {"numpy", "models"}
        if name.startswith("models.compilation"):
            known |= {"numba", "llvmlite"}
        assert outside(name) <= {*sys.stdlib_module_names, *known}, name


def test_http_and_sql_stay_where_they_belong() -> None:
    for name in modules_of("service"):
        if not name.startswith(HTTP):
            assert not {"fastapi", "starlette", "uvicorn"} & outside(name), name
        if not name.startswith(SQL):
            assert not {"sqlalchemy", "alembic"} & outside(name), name


def test_nothing_is_checked_by_assert() -> None:
    assert [
        f"{name}, line {node.lineno}"
        for name, nodes in modules().items()
        for node in nodes
        if isinstance(node, ast.Assert)
    ] == []


def test_only_the_entry_point_imports_the_application() -> None:
    importers = {name for name in modules() if "service.app.create_app" in imports(name)}
    assert importers == {"service.__main__"}


@pytest.mark.parametrize("package", ["models", "service"])
def test_a_test_lies_where_what_it_tests_lies(package: str) -> None:
    """So that the test of a module is found by its name: each folder of tests is one of the code,
    and below tests/models each file is named for a module."""
    tests = ROOT / "tests" / package
    for path in tests.rglob("test_*.py"):
        if path.parent.name == "faults":
            continue  # they befall the whole service
        tested = ROOT / package / path.relative_to(tests)
        assert tested.parent.is_dir(), path
        if package == "models":
            assert tested.with_name(path.name.removeprefix("test_")).exists(), path
