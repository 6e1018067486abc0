from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from service import api_keys
from service.pages.numbers import error
from service.settings import Settings
from service.store import Store, database
from tests.service.asking import CHIP, REPORT, changed
from tests.service.conftest import Databases, MakeClient, serving
from tests.service.pages.questions import HOSTILE
from tests.service.pages.reported_runs import calibrated, reported_runs
from tests.service.pages.test_ask import data_of
from tests.service.pages.test_session import sign_in

API = "/v1/profiles/default"


@pytest.fixture(scope="module")
def with_versions(databases: Databases) -> Iterator[TestClient]:
    """A service whose profile has three versions, of which the first is active."""
    with serving(databases) as client:
        reported_runs(client.post)
        calibrated(client.post)
        client.follow_redirects = False
        yield client


def fields_of(page: str) -> dict[str, str]:
    """The hidden fields of the form that changes the version."""
    form = page[page.index('<form method="post" action="/profiles"') :]
    hidden = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in hidden}


def change(client: TestClient, version: str, of: str = "default", **fields: str) -> Any:
    """Sends the form of a profile as a browser does."""
    shown = fields_of(client.get("/profiles", params={"profile": of}).text)
    return client.post("/profiles", data={**shown, "version": version, **fields})


def active(client: TestClient) -> int | None:
    return client.get(API).json()["active_version"]


def test_the_page_shows_the_errors_of_every_version_as_the_api_has_them(
    with_versions: TestClient,
) -> None:
    page = with_versions.get("/profiles").text
    versions = [with_versions.get(f"{API}/versions/{n}").json() for n in (3, 2)]
    marks = data_of(page)["versions"]
    assert [mark["version"] for mark in marks] == [3, 2]
    for mark, version in zip(marks, versions, strict=True):
        calibration = version["calibration"]
        unseen = calibration["unseen"]
        assert (mark["before"], mark["after"]) == (unseen["error_before"], unseen["error_after"])
        assert error(unseen["error_after"]) in page
        assert calibration["promotion"]["reason"] in html.unescape(page)
    assert with_versions.get(f"{API}/versions/1").json()["made_by"] in page


def test_a_version_shows_what_it_changes_for_each_chip_and_framework(
    with_versions: TestClient,
) -> None:
    page = with_versions.get("/profiles?version=2").text
    calibration = with_versions.get(f"{API}/versions/2").json()["calibration"]
    assert "What version 2 has learnt" in page
    kinds = calibration["unseen"]["kinds"]
    assert {kind["kind"].partition(":")[0] for kind in kinds} == {"chip", "stack"}
    for kind in kinds:
        before, after = error(kind["error_before"]), error(kind["error_after"])
        name = kind["kind"].partition(":")[2]
        cells = f'<td>{name}</td><td class="n">{kind["runs"]}</td>'
        assert f'{cells}<td class="n">{before}</td><td class="n">{after}</td>' in page
    assert calibration["moved"][0]["scope"] in page


def test_a_version_is_activated_and_rolled_back(with_versions: TestClient) -> None:
    answer = change(with_versions, "2")
    assert (answer.status_code, answer.headers["location"]) == (303, "/profiles?profile=default")
    assert active(with_versions) == 2
    page = with_versions.get("/profiles").text
    assert "Predictions use version 2" in page
    assert ">1 (roll back)</option>" in page
    assert change(with_versions, "1").status_code == 303
    assert active(with_versions) == 1


def test_a_profile_that_changed_meanwhile_is_left_alone(with_versions: TestClient) -> None:
    seen = fields_of(with_versions.get("/profiles").text)
    change(with_versions, "2")
    late = change(with_versions, "3", etag=seen["etag"])
    assert late.status_code == 409
    assert "The profile changed since the page was opened" in late.text
    assert active(with_versions) == 2
    change(with_versions, "1")


def test_another_site_cannot_activate_a_version(with_versions: TestClient) -> None:
    answer = change(with_versions, "2", form_token="x" * 43)
    assert answer.status_code == 403
    assert active(with_versions) == 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"version": "99"}, 404),
        ({"version": HOSTILE}, 422),
        ({"version": "9" * 18}, 422),
        ({"version": "2", "profile": HOSTILE}, 422),
        ({"version": ""}, 409),
    ],
)
def test_a_change_that_makes_no_sense_is_told_and_not_made(
    with_versions: TestClient, fields: dict[str, str], status: int
) -> None:
    answer = change(with_versions, **fields)
    assert answer.status_code == status
    assert 'role="alert"' in answer.text
    assert "<img" not in answer.text
    assert active(with_versions) == 1


@pytest.mark.parametrize(
    ("query", "status"),
    [({"version": 99}, 404), ({"profile": "no-such"}, 404), ({"profile": HOSTILE}, 422)],
)
def test_what_is_not_there_is_told(
    with_versions: TestClient, query: dict[str, Any], status: int
) -> None:
    answer = with_versions.get("/profiles", params=query)
    assert answer.status_code == status
    assert "<img" not in answer.text


def test_a_profile_that_is_not_there_is_not_changed(with_versions: TestClient) -> None:
    answer = change(with_versions, "2", profile="no-such")
    assert answer.status_code == 404
    assert "no-such" in answer.text


def test_before_any_calibration_there_is_no_picture(client: TestClient) -> None:
    page = client.get("/profiles").text
    assert "Predictions use version 1" in page
    assert "No version has an error on runs that it has not seen" in page
    assert "There is no other version yet." in page


def test_only_a_key_that_may_calibrate_activates_what_all_share(
    make_client: MakeClient, database_url: str
) -> None:
    client = make_client(require_api_keys=True)
    store = Store(database.connect(Settings(database_url=database_url).database_url))
    sign_in(client, api_keys.create(store, "research", ["recommend", "report"]))
    page = client.get("/profiles").text
    assert "a key with the scope <code>calibrate</code>" in page
    token = re.findall(r'name="form_token" value="([\w-]+)"', page)[0]
    fields = {"profile": "default", "version": "1", "etag": '"default-0"', "form_token": token}
    refused = client.post("/profiles", data=fields)
    assert refused.status_code == 403
    assert "needs the scope calibrate" in refused.text


def test_a_page_names_no_chip_that_only_another_tenant_has_described(
    make_client: MakeClient, database_url: str
) -> None:
    client = make_client(require_api_keys=True)
    store = Store(database.connect(Settings(database_url=database_url).database_url))
    a, b = (api_keys.create(store, tenant, ["report", "calibrate"]) for tenant in "ab")
    secret = {"chip": {"name": "secret-chip", **CHIP}, "num_chips": REPORT["cluster"]["num_chips"]}
    bearer = {"Authorization": f"Bearer {a}"}
    reports = [changed(REPORT, "cluster", secret)] * 8
    client.post("/v1/reports", json={"reports": reports}, headers=bearer)
    assert client.post(f"{API}/calibrations", headers=bearer).status_code == 201
    for key, is_seen in ((a, True), (b, False)):
        sign_in(client, key)
        assert ("secret-chip" in client.get("/profiles").text) == is_seen
        page = client.get(f"{API}/versions?limit=1", headers={"Authorization": f"Bearer {key}"})
        listed = page.json()["items"][0]
        assert listed.pop("active") is False
        version = client.get(f"{API}/versions/2").json()
        assert listed == {name: version[name] for name in listed}


def test_a_tenant_sees_and_leaves_its_own_version(
    make_client: MakeClient, database_url: str
) -> None:
    client = make_client(require_api_keys=True)
    store = Store(database.connect(Settings(database_url=database_url).database_url))
    key = api_keys.create(store, "research", ["recommend", "report"])
    bearer = {"Authorization": f"Bearer {key}"}

    def post(path: str, json: Any) -> Any:
        return client.post(path, json=json, headers=bearer)

    reported_runs(post)
    version = str(post("/v1/profiles/own/calibrations", {}).json()["version"])
    own = client.get("/v1/profiles/own", headers=bearer).json()["id"]
    sign_in(client, key)
    client.follow_redirects = False
    assert change(client, version, of=own).status_code == 303
    page = client.get("/profiles").text
    assert f"Predictions use version {version}" in page
    assert "of research alone" in page
    assert '<option value="">the version that all share</option>' in page
    assert change(client, "", of=own).status_code == 303
    assert client.get("/v1/profiles/own").json()["active_version"] is None
    assert "Profile default" in client.get("/profiles").text
