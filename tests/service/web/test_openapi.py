from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from service.routes import (
    benchmarks,
    catalog,
    checks,
    comparisons,
    frontiers,
    predictions,
    profiles,
    recommendations,
    reports,
)
from service.web.problem_types import TYPES
from tests.long import one_in
from tests.service.asking import PREDICTION, QUESTION, REPORT, assert_problem

PREFER = {"Prefer": "return=representation"}
ROUTERS = (
    benchmarks,
    predictions,
    comparisons,
    checks,
    frontiers,
    recommendations,
    reports,
    profiles,
    catalog,
)
EXAMPLES = [
    (route, name)
    for module in ROUTERS
    for route in module.router.routes
    if getattr(route, "body_field", None) is not None
    for name in route.body_field.field_info.openapi_examples or {}
]


@pytest.fixture(scope="module")
def document(shared_client) -> dict[str, Any]:
    return shared_client.get("/openapi.json").json()


@pytest.mark.parametrize(("route", "name"), one_in(2, EXAMPLES))
def test_every_example_works(client, document, route: Any, name: str) -> None:
    client.post("/v1/reports", json=REPORT)
    (method,) = route.methods
    operation = document["paths"][route.path_format][method.lower()]
    example = operation["requestBody"]["content"]["application/json"]["examples"][name]["value"]
    required = [
        item
        for item in operation.get("parameters", [])
        if item["in"] == "header" and item["required"]
    ]
    headers = {
        item["name"]: example["value"] for item in required for example in item["examples"].values()
    }
    answer = client.request(
        method, route.path_format.format(id="default", version=1), json=example, headers=headers
    )
    assert answer.status_code == (route.status_code or 200), answer.text
    TypeAdapter(route.response_model).validate_python(answer.json())


@pytest.mark.parametrize(("route", "name"), EXAMPLES)
def test_every_example_is_what_its_schema_says(document, route: Any, name: str) -> None:
    (method,) = route.methods
    content = document["paths"][route.path_format][method.lower()]["requestBody"]["content"][
        "application/json"
    ]
    schema = {**content["schema"], "components": document["components"]}
    Draft202012Validator(schema).validate(content["examples"][name]["value"])


def test_every_post_with_a_body_has_examples(document) -> None:
    for path, operations in document["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        assert all("examples" in media for media in content.values()), path


def test_every_operation_is_named_and_described(document) -> None:
    operations = [item for path in document["paths"].values() for item in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len({*names}) == len(names)
    assert all(operation["description"] for operation in operations)


def test_errors_are_documented_as_problems(document) -> None:
    post = document["paths"]["/v1/recommendations"]["post"]["responses"]
    assert {"201", "400", "409", "413", "415", "422", "503"} <= post.keys()
    assert "application/problem+json" in post["422"]["content"]
    assert TYPES["infeasible"].title in post["422"]["description"]
    activate = document["paths"]["/v1/profiles/{id}/versions/{version}/activate"]["post"][
        "responses"
    ]
    assert {"412", "428"} <= activate.keys()
    assert {"422", "503"} <= document["paths"]["/v1/profiles"]["get"]["responses"].keys()
    assert {"400", "412", "413", "503"} <= document["paths"]["/v1/profiles/{id}/policy"]["put"][
        "responses"
    ].keys()


def test_no_operation_forgets_what_its_parameters_bring_with_them(document) -> None:
    operations = [
        (f"{method} {path}", method, operation)
        for path, methods in document["paths"].items()
        if path.startswith("/v1")
        for method, operation in methods.items()
    ]
    for name, method, operation in operations:
        responses = operation["responses"]
        parameters = {item["name"]: item for item in operation.get("parameters", [])}
        expected = {"401", "403", "404", "406", "422", "429", "500", "503"}
        if method == "post":
            expected |= {"400", "409"}
        if "requestBody" in operation:
            expected |= {"400", "408", "413", "415"}
        if "if-match" in parameters:
            expected |= {"400", "412"}
            expected |= {"428"} if parameters["if-match"]["required"] else set()
            assert "ETag" in responses["200"]["headers"], name
        if "idempotency-key" in parameters:
            sent = {"Location", "Idempotency-Replayed"}
            sent |= {"Preference-Applied"} if "Prefer" in parameters else set()
            made = responses.get("201") or responses["202"]
            assert made["headers"].keys() == sent, name
        if "last-event-id" in parameters:
            expected |= {"400"}
        if "cursor" in parameters:
            assert "Link" in responses["200"]["headers"], name
        problems = {
            status
            for status, response in responses.items()
            if "application/problem+json" in response.get("content", {})
        }
        assert problems == expected, name


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/predictions/{id}", ""),
        ("/v1/predictions/{id}/timeline", ""),
        ("/v1/profiles", ""),
        ("/v1/profiles/{id}", ""),
        ("/v1/profiles/{id}/versions/{version}", ""),
        ("/v1/profiles/{id}/drift", ""),
        ("/v1/reports", "?limit=1"),
        ("/v1/reports/summary", ""),
        ("/v1/catalog/{kind}", "?limit=1"),
        ("/v1/catalog/{kind}/{name}", ""),
    ],
)
def test_headers_are_documented_where_they_are_sent(
    client, document, path: str, query: str
) -> None:
    for _ in range(2):
        client.post("/v1/reports", json=REPORT)
    known = document["components"]["headers"].keys()
    ids = {"id": client.post("/v1/predictions", json=PREDICTION).json()["id"]}
    if path.startswith("/v1/profiles"):
        ids = {"id": "default"}
    address = path.format(**ids, version=1, kind="chips", name="h100")
    answer = client.get(address + query, headers=PREFER)
    responses = document["paths"][path]["get"]["responses"]
    assert responses["200"].get("headers", {}).keys() == {
        name for name in known if name in answer.headers
    }
    seen = {"If-None-Match": answer.headers.get("ETag", "none")}
    again = client.get(address + query, headers=seen)
    assert (again.status_code == 304) == ("304" in responses)


def test_headers_of_what_is_created_are_documented(client, document) -> None:
    for path, body in (("/v1/reports", REPORT), ("/v1/predictions", PREDICTION)):
        _, again = (
            client.post(path, json=body, headers={"Idempotency-Key": path[4:], **PREFER})
            for _ in range(2)
        )
        documented = document["paths"][path]["post"]["responses"]["201"]["headers"].keys()
        assert documented == {
            name for name in document["components"]["headers"] if name in again.headers
        }


def test_what_must_be_sent_and_what_may_be_missing_is_documented(client, document) -> None:
    paths = document["paths"]
    guards = [
        item
        for item in paths["/v1/profiles/{id}/policy"]["put"]["parameters"]
        if item["in"] == "header"
    ]
    assert [(guard["name"], guard["required"]) for guard in guards] == [("if-match", True)]
    assert (
        "application/problem+json"
        in paths["/problems/{name}"]["get"]["responses"]["404"]["content"]
    )
    busy = paths["/v1/recommendations"]["post"]["responses"]
    assert "Retry-After" in busy["503"]["headers"].keys() & busy["409"]["headers"].keys()
    lines = paths["/v1/reports"]["get"]["responses"]["200"]["content"]["text/csv"]["schema"][
        "description"
    ]
    assert client.get("/v1/reports?format=csv").text.strip().replace(",", ", ") in lines


def test_problems_have_the_members_that_are_documented(client, document) -> None:
    members = document["components"]["schemas"]["Problem"]["properties"].keys()
    large = {**QUESTION, "model": "llama-3.1-405b", "cluster": {"preset": "h100", "num_chips": 8}}
    infeasible = assert_problem(client.post("/v1/recommendations", json=large), "infeasible")
    invalid = assert_problem(client.post("/v1/recommendations", json={}), "invalid")
    assert infeasible.keys() | invalid.keys() == members


def test_every_reference_leads_somewhere(document) -> None:
    schemas = document["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= schemas.keys()
    assert not {name for name in schemas if "@" in name}


def test_what_takes_a_name_says_how_to_pin_its_version(document) -> None:
    schemas = document["components"]["schemas"]
    for schema, name in (
        ("PredictionRequest", "model"),
        ("PredictionRequest", "cluster"),
        ("ClusterPreset", "preset"),
    ):
        assert "name@2" in schemas[schema]["properties"][name]["description"]


def test_an_address_is_not_taken_for_an_id(shared_client, document) -> None:
    """It has none of the methods that only an address with an id in this place has."""
    paths = document["paths"]
    before_ids = {path.rpartition("/")[0] for path in paths if path.endswith("}")}
    own = [path for path in paths if "{" not in path and path.rpartition("/")[0] in before_ids]
    assert "/v1/reports/summary" in own
    no_event = {"Last-Event-ID": "?"}  # which opens no stream
    for path in own:
        named = shared_client.options(path).headers["allow"].split(", ")
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT"):
            answer = shared_client.request(method, path, headers=no_event)
            is_refused = answer.status_code == 405
            assert is_refused == (method not in named), (method, path)


def test_the_docs_are_served(shared_client) -> None:
    page = shared_client.get("/docs")
    assert "swagger" in page.text.lower()
    assert "https://" not in page.text + page.headers["content-security-policy"]
    for address in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert shared_client.get(address).status_code == 200, address
    assert_problem(shared_client.get("/docs/static/nothing.js"), "not-found")
