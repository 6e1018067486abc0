"""What the pages must hold, and how long they may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.layouts.rules import RULES
from models.layouts.space import Space
from models.spec.constraints import Constraints
from service.settings import PREFIX, Settings
from service.web.problem_types import TYPES
from tests.benchmarks.problems import problem
from tests.docs.caches import modules_that_keep_values
from tests.docs.pages import name_of, pages
from tests.docs.tables import rule_meaning
from tests.docs.update import with_tables
from tests.openapi import openapi
from tests.paths import ROOT

PAGES = {name_of(page): page.read_text() for page in pages()}
EVERYTHING = "\n".join(PAGES.values())
_FOLDERS = ("models", "service", "tests", "docs", "migrations", ".ci")
_PATH = re.compile(
    rf"(?<![\w./-])((?:{'|'.join(map(re.escape, _FOLDERS))})/[\w./-]*\w(?:\.\w+)?/?)(?![\w{{*])"
)
_MODULE = re.compile(r"python -m ((?:service|tests)(?:\.\w+)*)")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_IDENTIFIER = re.compile(r"`(_?[A-Z][A-Za-z_]+)`")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].split()) <= 1000


def test_the_changelog_is_short() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 80


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_what_the_code_says(name: str) -> None:
    assert with_tables(PAGES[name]) == PAGES[name], "run `make docs`"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_explained(name: str) -> None:
    assert f"`{PREFIX}{name.upper()}`" in EVERYTHING


@pytest.mark.parametrize("name", TYPES)
def test_every_problem_type_is_explained(name: str) -> None:
    assert f"`/problems/{name}`" in EVERYTHING


def test_every_route_is_explained() -> None:
    paths = openapi()["paths"]
    routes = [f"`{method.upper()} {path}`" for path in paths for method in paths[path]]
    assert [route for route in routes if route not in EVERYTHING] == []


def test_the_page_of_caches_names_every_module_that_keeps_values() -> None:
    page = PAGES["docs/caches.md"]
    modules = modules_that_keep_values()
    assert modules
    assert [name for name in sorted(modules) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", ["RecommendationAnswer", "PredictionAnswer", "CheckAnswer"])
def test_every_word_of_an_answer_is_in_the_concepts(name: str) -> None:
    concepts = PAGES["docs/concepts.md"]
    missing = sorted({word for word in _fields(name) if f"`{word}`" not in concepts})
    assert not missing


@pytest.mark.parametrize("name", ["LayoutFields", "ConstraintFields", "WorkloadFields"])
def test_every_word_of_a_question_is_in_the_concepts(name: str) -> None:
    concepts = PAGES["docs/concepts.md"]
    missing = [
        word for word in openapi()["components"]["schemas"][name]["properties"]
        if f"`{word}`" not in concepts
    ]  # fmt: skip
    assert not missing


def test_every_rule_has_a_meaning() -> None:
    meanings = [rule_meaning(rule) for rule in RULES]
    assert all(meaning.endswith(".") for meaning in meanings)
    assert len(set(meanings)) == len(RULES)


def test_every_count_of_a_certificate_is_in_the_concepts() -> None:
    question = problem("llama-3-8b", ("h100", 8), "megatron", seq_len=4096, global_batch=16)
    for name in Space(question, Constraints()).cardinality:
        assert f"`{name}`" in PAGES["docs/concepts.md"], name


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_paths_and_modules_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    for path in _PATH.findall(text):
        assert (ROOT / path).exists(), path
    for module in _MODULE.findall(text):
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module


def test_names_of_the_code_that_contributors_are_told_exist() -> None:
    files = [path for top in ("models", "service", "tests") for path in (ROOT / top).rglob("*.py")]
    code = "\n".join(path.read_text() for path in [ROOT / "Makefile", *files])
    for name in _IDENTIFIER.findall(PAGES["CONTRIBUTING.md"]):
        assert (ROOT / name).exists() or re.search(rf"\b{name}\b", code), name


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in _LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        leads_to = (page.parent / path) if path else page
        assert leads_to.exists(), target
        if anchor:
            assert anchor in set(_anchors(leads_to)), target


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/guides/")])
def test_every_guide_leads_to_what_holds_of_every_request(name: str) -> None:
    assert "../reference.md#what-holds-of-every-request" in PAGES[name]


def test_the_readme_leads_to_every_page() -> None:
    """Through the pages that it links, so that none is lost."""
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop().resolve()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = (target.partition("#")[0] for target in _LINK.findall(page.read_text()))
        ahead += [page.parent / target for target in targets if target and "://" not in target]
    assert {page.resolve() for page in pages()} <= reached


def _fields(schema: str) -> Iterator[str]:
    """The names of every field of an answer, of what it contains too."""
    seen, ahead = set(), [schema]
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        document = openapi()["components"]["schemas"][name]
        yield from _properties(document)
        ahead += _references(document)


def _properties(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node.get("properties", {})
        for value in node.values():
            yield from _properties(value)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _anchors(page: Path) -> Iterator[str]:
    """As GitHub makes them of headings."""
    for heading in _HEADING.findall(page.read_text()):
        yield re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
