"""An answer says which reports moved it, and by how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.service.asking import ON_POSTGRESQL_FIRST, PREDICTION, QUESTION, SHAPE, changed
from tests.service.learning.test_own_versions import OWN, SHARED, Tenants

OTHER = changed(PREDICTION, "model", "qwen3-8b")
CHIP = "h100-sxm-80gb"
MODEL = "llama-3-8b"
"""The catalogue's name of the model of `QUESTION`."""


@pytest.fixture
def tenants(make_client: Callable[..., Any]) -> Callable[..., Tenants]:
    return lambda **settings: Tenants(make_client, **settings)


def reported(service: Tenants, tenant: str) -> tuple[list[str], list[str]]:
    """Slow runs of one model and a quick one of another, and the version that is learnt of them."""
    slow = service.report(tenant, 5)
    quick = service.report(tenant, 2, factor=0.9, question=OTHER)
    service.calibrate(tenant)
    return slow, quick


@ON_POSTGRESQL_FIRST
def test_a_prediction_names_the_reports_of_its_tenant_that_moved_it(tenants) -> None:
    service = tenants()
    shared_s = service.step_s("a")
    slow, _ = reported(service, "a")
    answer = service.ask("a")
    learned = answer["learned"]
    assert learned["against_version"] == 1
    change = answer["layouts"][0]["step_time_s"] / shared_s - 1
    # Shifts too small to be stored move a step by less than a tenth of a percent together.
    assert 1 + learned["step_time_change"] == pytest.approx(1 + change, rel=1e-3)
    first = learned["reports"][0]
    assert (first["chip"], first["stack"], first["runs"]) == (CHIP, QUESTION["stack"], 5)
    assert first["model"] == MODEL
    assert first["latest"] == sorted(slow, reverse=True)[:3]
    assert first["step_time_change"] > 0.05
    assert (
        f"{learned['step_time_change']:.1%} longer than under the shared version 1"
        in learned["sentence"]
    )
    assert f"from 5 reports of {MODEL} on {CHIP}" in learned["sentence"]
    assert f"(latest {max(slow)})" in learned["sentence"]


def test_a_recommendation_has_the_sentence_among_its_reasons(tenants) -> None:
    service = tenants()
    reported(service, "a")
    answer = service.post("a", "/v1/recommendations", QUESTION).json()
    facts = [fact["kind"] for fact in answer["reason_facts"]]
    assert answer["reasons"][facts.index("learned")] == answer["learned"]["sentence"]


@ON_POSTGRESQL_FIRST
def test_who_has_reported_nothing_is_told_of_no_reports(tenants) -> None:
    service = tenants()
    reported(service, "a")
    assert service.ask("b")["learned"] is None
    assert service.ask("a", {**PREDICTION, "profile": {"version": 1}})["learned"] is None


def test_a_shared_version_names_catalogue_models_and_no_reports(tenants) -> None:
    service = tenants()
    named = changed(PREDICTION, "model", {**SHAPE, "name": "secret-8b"})
    for tenant in "ab":
        service.report(tenant, 4)
        service.report(tenant, 4, question=named)
    answered = service.client.post(
        f"{SHARED}/calibrations", json={"activate": True}, headers=service.operator
    )
    assert answered.json()["calibration"]["promotion"]["promoted"], answered.text
    answer = service.ask("c")
    learned = answer["learned"]
    assert answer["profile"] == {"id": "default", "version": 2}
    assert "longer than under version 1: " in learned["sentence"]
    groups = {(one["model"], one["runs"]) for one in learned["reports"]}
    assert groups == {(MODEL, 8), (None, 8)}
    assert all(one["latest"] == [] for one in learned["reports"])
    hidden = next(one for one in learned["reports"] if one["model"] is None)
    assert hidden["parameters"] is None
    assert "secret" not in str(answer)


@pytest.mark.long
def test_models_without_a_name_are_told_by_their_parameters(tenants) -> None:
    service = tenants()
    question = changed(PREDICTION, "model", SHAPE)
    service.report("a", 3, question=question)
    service.calibrate("a")
    learned = service.ask("a", question)["learned"]
    (group,) = learned["reports"]
    assert group["model"].startswith("custom-")
    assert "from 3 reports of a model of 8." in learned["sentence"]
    assert group["parameters"] == pytest.approx(8.6e9, rel=0.1)


@pytest.mark.long
def test_answers_under_a_version_of_before_influences_have_none(tenants) -> None:
    service = tenants()
    service.report("a", 3)
    service.calibrate("a")
    with service.store.of(None, sees_all=True).writing() as rows:
        profile = next(one for one in rows.profiles.all() if one.tenant == "a")
        row = rows.profiles.version(profile.id, 1)
        row.content = {name: row.content[name] for name in row.content if name != "influences"}
        row.content_hash = "of-an-earlier-release"
    answer = service.ask("a")
    assert answer["profile"]["id"] == profile.id
    assert answer["learned"] is None


def test_a_version_whose_report_is_withdrawn_names_it_no_more(tenants) -> None:
    service = tenants()
    slow, _ = reported(service, "a")
    service.withdraw("a", slow[-1])
    assert service.ask("a")["learned"] is None
    service.calibrate("a")
    answer = service.ask("a")
    assert slow[-1] not in str(answer["learned"])
    assert answer["learned"]["reports"][0]["runs"] == 4


def test_a_version_of_a_profile_is_shown_without_its_influences(tenants) -> None:
    service = tenants()
    reported(service, "a")
    assert "influences" not in service.get("a", f"{OWN}/versions/1").json()
