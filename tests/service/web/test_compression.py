"""Compressed answers, as real clients get them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from service.web.compression import CompressionMiddleware, accepts_gzip
from tests.docs.examples import served
from tests.service.asking import PREDICTION
from tests.service.conftest import Databases

LARGE = "/v1/catalog/chips?limit=1000"
GZIP = {"Accept-Encoding": "gzip"}
PLAIN = {"Accept-Encoding": "identity"}


@pytest.fixture(scope="module")
def http(databases: Databases) -> Iterator[httpx.Client]:
    url = databases.prepared()
    with (
        served(url) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        yield client
    databases.drop(url)


def raw(
    client: httpx.Client, address: str, headers: dict[str, str]
) -> tuple[httpx.Response, bytes]:
    with client.stream("GET", address, headers=headers) as response:
        return response, b"".join(response.iter_raw())


def test_a_large_answer_is_compressed_for_those_who_accept_it(http) -> None:
    packed, sent = raw(http, LARGE, GZIP)
    plain, whole = raw(http, LARGE, PLAIN)
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(sent) == whole
    assert len(sent) < len(whole) / 4
    assert int(packed.headers["content-length"]) == len(sent)
    for response in (packed, plain):
        assert "Accept-Encoding" in response.headers["vary"]
    small, _ = raw(http, "/livez", GZIP)
    assert "content-encoding" not in small.headers


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        ("gzip", True),
        ("br, GZIP", True),
        ("gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("*", True),
        ("*;q=0", False),
        ("*;q=0, gzip", True),
        ("gzip;q=0, *", False),
        ("x-gzipped", False),
        ("", False),
    ],
)
def test_gzip_is_sent_to_those_who_accept_it(accepted: str, expected: bool) -> None:
    assert accepts_gzip(Headers({"Accept-Encoding": accepted})) == expected


def test_each_coding_has_an_etag_of_its_own_and_either_is_recognised(http) -> None:
    address = http.post("/v1/predictions", json=PREDICTION).headers["location"]
    tags = {
        name: raw(http, address, headers)[0].headers["etag"]
        for name, headers in (("gzip", GZIP), ("plain", PLAIN))
    }
    assert tags["plain"] == f'"{address.removeprefix("/v1/")}"'
    assert tags["gzip"] == f'{tags["plain"][:-1]}-gzip"'
    for tag in tags.values():
        for seen in (tag, f"W/{tag}", f'"another", {tag}'):
            response, body = raw(http, address, {**GZIP, "If-None-Match": seen})
            assert (response.status_code, body) == (304, b"")
            assert response.headers["etag"] == tag
            assert "Accept-Encoding" in response.headers["vary"]
    response, _ = raw(http, address, {**GZIP, "If-None-Match": '"predictions/other-gzip"'})
    assert response.status_code == 200


def test_a_change_may_be_guarded_by_the_etag_of_the_compressed_state(http) -> None:
    tag = raw(http, "/v1/profiles/default", GZIP)[0].headers["etag"]
    activate = "/v1/profiles/default/versions/1/activate"
    assert http.post(activate, headers={"If-Match": tag}).status_code == 200
    assert http.post(activate, headers={"If-Match": '"default-9-gzip"'}).status_code == 412


def test_head_answers_with_the_headers_of_the_compressed_answer(http) -> None:
    head = http.head(LARGE, headers=GZIP)
    packed, sent = raw(http, LARGE, GZIP)
    assert head.content == b""
    for name in ("content-encoding", "content-length", "vary"):
        assert head.headers[name] == packed.headers[name]
    assert int(head.headers["content-length"]) == len(sent)


def test_events_are_sent_as_they_come() -> None:
    def events(_: Request) -> StreamingResponse:
        return StreamingResponse(
            (f"data: {'x' * 2000}\n\n" for _ in range(2)), media_type="text/event-stream"
        )

    app = Starlette(routes=[Route("/", events)], middleware=[Middleware(CompressionMiddleware)])
    with TestClient(app) as client, client.stream("GET", "/", headers=GZIP) as response:
        assert "content-encoding" not in response.headers
        assert len([*response.iter_raw()]) >= 2
