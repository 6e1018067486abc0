"""The rules of the layers, read from the source: who may import whom, and what no module may do."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
    for package in ("models", "service")
    for path in sorted((ROOT / package).rglob("*.py"))
}
LAYERS = (
    "models",
    "service.settings service.deadline service.identifiers service.errors service.pointers service.known_fields "
    "service.faults service.cursors service.remembered service.owner",
    "service.formats service.tables",
    "service.schemas service.database",
    "service.store service.heap service.slots service.worker",
    "service.slices service.resolution service.assumptions service.basis service.creation service.measurements "
    "service.catalog service.disclosure service.profiles service.predictions service.recommendations service.reports "
    "service.evidence service.comparisons service.frontiers service.subject service.timelines "
    "service.gaps service.intake service.report_batches service.report_summaries service.drift service.replays "
    "service.json_text service.report_texts service.families service.report_table service.report_logs "
    "service.answer_pages service.benchmarks service.observations service.promotion service.calibrations "
    "service.failures service.unattended service.api_keys service.places",
    "service.problems service.json_body service.limits service.security service.telemetry service.etags "
    "service.queries service.heads service.authentication service.connections",
    "service.routes",
    "service.openapi service.fit_profile",
    "service.carry_runs service.seeds",
    "service.app",
    "service.__main__",
)
"""From the bottom up; a module imports from its own layer and from those below."""

SQL = ("service.tables", "service.database", "service.store", "service.settings", "service.__main__")
SERVICE = [name for name in MODULES if name.startswith("service.")]


def imports(name: str) -> Iterator[str]:
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(name: str) -> int | None:
    for index, members in enumerate(LAYERS):
        if any(name == member or name.startswith(f"{member}.") for member in members.split()):
            return index
    return None


def outside(name: str) -> set[str]:
    return {imported.split(".")[0] for imported in imports(name)}


@pytest.mark.parametrize("name", SERVICE)
def test_imports_go_down(name: str) -> None:
    own = layer(name)
    assert own is not None, f"{name} has no layer"
    for imported in imports(name):
        if imported.split(".")[0] in ("models", "service"):
            below = layer(imported)
            assert below is None or below <= own, f"{name} imports {imported}"


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[0] == "models"])
def test_models_know_only_numpy_and_the_standard_library(name: str) -> None:
    assert outside(name) <= {*sys.stdlib_module_names, "numpy", "models"}


@pytest.mark.parametrize("name", SERVICE)
def test_http_and_sql_stay_where_they_belong(name: str) -> None:
    if (layer(name) or 0) < (layer("service.problems") or 0):
        assert not {"fastapi", "starlette", "uvicorn"} & outside(name)
    if not name.startswith(SQL):
        assert not {"sqlalchemy", "alembic"} & outside(name)


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_checked_by_assert(name: str) -> None:
    assert not [node.lineno for node in ast.walk(MODULES[name]) if isinstance(node, ast.Assert)]


def test_only_the_entry_point_imports_the_application() -> None:
    assert {name for name in MODULES if "service.app.create_app" in imports(name)} == {"service.__main__"}
