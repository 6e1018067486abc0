from __future__ import annotations

import re
from typing import Any

import pytest
from asking import QUESTION, REPORT, assert_problem
from pydantic import TypeAdapter

from service.problems import TYPES
from service.routes import benchmarks, catalog, comparisons, frontiers, predictions, profiles, recommendations, reports

ROUTERS = (benchmarks, predictions, comparisons, frontiers, recommendations, reports, profiles, catalog)
EXAMPLES = [
    (route, name)
    for module in ROUTERS
    for route in module.router.routes
    if getattr(route, "body_field", None) is not None and "POST" in route.methods
    for name in route.body_field.field_info.openapi_examples or {}
]


@pytest.mark.parametrize(("route", "name"), EXAMPLES)
def test_every_example_works(client, route: Any, name: str) -> None:
    client.post("/v1/reports", json=REPORT)
    operation = client.get("/openapi.json").json()["paths"][route.path_format]["post"]
    example = operation["requestBody"]["content"]["application/json"]["examples"][name]["value"]
    answer = client.post(route.path_format.format(id="default", version=1), json=example)
    assert answer.status_code == (route.status_code or 200), answer.text
    TypeAdapter(route.response_model).validate_python(answer.json())


def test_every_post_with_a_body_has_examples(client) -> None:
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        assert all("examples" in media for media in content.values()), path


def test_every_operation_is_named_and_described(client) -> None:
    document = client.get("/openapi.json").json()
    operations = [item for path in document["paths"].values() for item in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len({*names}) == len(names)
    assert all(operation["description"] for operation in operations)


def test_errors_are_documented_as_problems(client) -> None:
    document = client.get("/openapi.json").json()
    post = document["paths"]["/v1/recommendations"]["post"]["responses"]
    assert {"201", "400", "409", "413", "415", "422", "503"} <= post.keys()
    assert "application/problem+json" in post["422"]["content"]
    assert TYPES["infeasible"].title in post["422"]["description"]
    activate = document["paths"]["/v1/profiles/{id}/versions/{version}/activate"]["post"]["responses"]
    assert {"412", "428"} <= activate.keys()
    assert {"422", "503"} <= document["paths"]["/v1/profiles"]["get"]["responses"].keys()
    assert {"400", "412", "413", "503"} <= document["paths"]["/v1/profiles/{id}/policy"]["put"]["responses"].keys()


def test_problems_have_the_members_that_are_documented(client) -> None:
    members = client.get("/openapi.json").json()["components"]["schemas"]["Problem"]["properties"].keys()
    large = {**QUESTION, "model": "llama-3.1-405b", "cluster": {"preset": "h100", "num_chips": 8}}
    infeasible = assert_problem(client.post("/v1/recommendations", json=large), "infeasible")
    invalid = assert_problem(client.post("/v1/recommendations", json={}), "invalid")
    assert infeasible.keys() | invalid.keys() == members


def test_every_reference_leads_somewhere(client) -> None:
    answer = client.get("/openapi.json")
    schemas = answer.json()["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', answer.text))
    assert references <= schemas.keys()
    assert not {name for name in schemas if "@" in name}


def test_what_takes_a_name_says_how_to_pin_its_version(client) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for schema, name in (("PredictionRequest", "model"), ("PredictionRequest", "cluster"), ("ClusterPreset", "preset")):
        assert "name@2" in schemas[schema]["properties"][name]["description"]


def test_the_docs_are_served(client) -> None:
    page = client.get("/docs")
    assert "swagger" in page.text.lower()
    assert "https://" not in page.text + page.headers["content-security-policy"]
    for address in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert client.get(address).status_code == 200, address
    assert_problem(client.get("/docs/static/nothing.js"), "not-found")
