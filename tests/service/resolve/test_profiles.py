from __future__ import annotations

from dataclasses import replace

import pytest

from models.spec.profile import shipped_profile
from service.resolve import profiles
from service.store import Store, database
from tests.service.asking import PREDICTION, QUESTION, assert_problem


def ship(database_url: str, monkeypatch, **changes: object) -> None:
    """What a release with another profile does when it starts."""
    monkeypatch.setattr(profiles, "shipped_profile", lambda: replace(shipped_profile(), **changes))
    engine = database.connect(database_url)
    profiles.seed(Store(engine))
    engine.dispose()


def activate(client, version: int):
    etag = client.get("/v1/profiles/default").headers["etag"]
    return client.post(
        f"/v1/profiles/default/versions/{version}/activate", headers={"If-Match": etag}
    )


def test_the_shipped_profile_is_version_one(client) -> None:
    found = client.get("/v1/profiles/default").json()
    assert found["active_version"] == 1
    assert [version["origin"] for version in found["versions"]] == ["shipped"]
    assert client.get("/v1/profiles").json()["items"] == [found]
    version = client.get("/v1/profiles/default/versions/1").json()
    assert len(version["terms"]) == len(shipped_profile().terms)


def test_a_version_is_immutable_and_has_an_etag(client) -> None:
    first = client.get("/v1/profiles/default/versions/1")
    again = client.get(
        "/v1/profiles/default/versions/1", headers={"If-None-Match": first.headers["etag"]}
    )
    assert again.status_code == 304


def test_the_same_shipped_profile_is_not_added_again(
    client, database_url: str, monkeypatch
) -> None:
    ship(database_url, monkeypatch)
    assert len(client.get("/v1/profiles/default").json()["versions"]) == 1


def test_a_release_brings_a_new_version_and_predictions_use_it(
    client, database_url: str, monkeypatch
) -> None:
    ship(database_url, monkeypatch, residual_spread=0.5, neighbourhoods=())
    assert client.get("/v1/profiles/default").json()["active_version"] == 2
    assert client.post("/v1/predictions", json=PREDICTION).json()["profile"]["version"] == 2


def test_activating_an_older_version_brings_its_predictions_back(
    client, database_url: str, monkeypatch
) -> None:
    wide = client.post("/v1/predictions", json=PREDICTION).json()["layouts"]
    ship(database_url, monkeypatch, residual_spread=0.5, neighbourhoods=())
    assert client.post("/v1/predictions", json=PREDICTION).json()["layouts"] != wide
    answer = activate(client, 1)
    assert answer.status_code == 200
    assert answer.json()["active_version"] == 1
    assert answer.headers["etag"] == client.get("/v1/profiles/default").headers["etag"]
    assert client.post("/v1/predictions", json=PREDICTION).json()["layouts"] == wide


@pytest.mark.parametrize("path", ["/v1/predictions", "/v1/recommendations"])
def test_a_request_may_pin_the_version(client, database_url: str, monkeypatch, path: str) -> None:
    ship(database_url, monkeypatch, residual_spread=0.5, neighbourhoods=())
    body = (
        PREDICTION
        if path == "/v1/predictions"
        else {**QUESTION, "cluster": {"preset": "h100", "num_chips": 8}}
    )
    assert client.post(path, json=body).json()["profile"]["version"] == 2
    for version in (1, 2):
        made = client.post(path, json={**body, "profile": {"version": version}}).json()
        assert (
            made["profile"] == made["request"]["profile"] == {"id": "default", "version": version}
        )
    assert client.post(path, json=made["request"]).status_code == 201
    found = assert_problem(
        client.post(path, json={**body, "profile": {"version": 9}}), "invalid", "/profile/version"
    )
    assert "1 to 2" in found["detail"]
    wrong = {**body, "profile": {"id": "defualt", "version": 1}}
    assert_problem(client.post(path, json=wrong), "unknown-name", "/profile/id")


def test_activation_needs_the_state_that_was_seen(client) -> None:
    address = "/v1/profiles/default/versions/1/activate"
    seen = client.get("/v1/profiles/default").headers["etag"]
    missing = client.post(address)
    assert missing.status_code == 428
    assert_problem(missing, "precondition-required")
    assert client.post(address, headers={"If-Match": f'"x", {seen}'}).status_code == 200
    stale = client.post(address, headers={"If-Match": seen})
    assert stale.status_code == 412
    assert_problem(stale, "precondition-failed")
    assert_problem(client.post(address, headers={"If-Match": f"W/{seen}"}), "precondition-failed")
    assert client.post(address, headers={"If-Match": "*"}).status_code == 200


@pytest.mark.parametrize("header", ["default-1", '"a" "b"', '"open', "", "*, *", "W/x"])
def test_an_unreadable_precondition_is_a_bad_header(shared_client, header: str) -> None:
    answer = shared_client.post(
        "/v1/profiles/default/versions/1/activate", headers={"If-Match": header}
    )
    assert "If-Match" in assert_problem(answer, "bad-header")["detail"]


@pytest.mark.parametrize("body", [b"null", b'{"version": 2}', b"\xff"])
def test_activation_takes_no_body_but_an_empty_object(client, body: bytes) -> None:
    answer = client.post(
        "/v1/profiles/default/versions/1/activate", content=body, headers={"If-Match": "*"}
    )
    assert_problem(answer, "invalid", "")
    empty = client.post(
        "/v1/profiles/default/versions/1/activate", content=b" {}\n", headers={"If-Match": "*"}
    )
    assert empty.status_code == 200


def test_an_unknown_version_cannot_be_activated(client) -> None:
    assert_problem(activate(client, 9), "not-found")
