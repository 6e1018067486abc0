"""Writes a document of every kind that is stored, and asks for all of them, by HTTP alone: the
service that is asked may be another release than the one that wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from tests.service.asking import CHIP, PREDICTION, QUESTION, REPORT, SHAPE, changed
from tests.waiting import wait_for

SWEEP: dict[str, Any] = {
    "models": ["llama-3.1-8b"],
    "clusters": [{"preset": "h100", "num_chips": 8}],
    "workloads": [{"seq_len": 8192, "global_batch": 128}],
    "stacks": ["torchtitan"],
}
_GEMMS: dict[str, Any] = {
    "cluster": {"preset": "h100"},
    "gemms": [{"m": 8192, "n": 8192, "k": 8192, "tflops": 600}],
}
_HALL: dict[str, Any] = {
    "chip": "mine",
    "levels": [
        {"name": "rack", "size": 16, "gb_s_per_chip": 450},
        {"name": "leaf", "gb_s_per_chip": 50},
    ],
    "num_chips": 64,
}
_PROFILE = "/v1/profiles/default"


class Client(Protocol):
    """A client of httpx, or of the tests."""

    def request(self, method: str, url: str, **arguments: Any) -> Any: ...


class Written:
    """Where the documents of every kind lie."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.prediction = self._post("predictions", PREDICTION, key="p")
        self.recommendation = self._post("recommendations", {**QUESTION, "top": 2}, key="r")
        measured = {"outcome": "ok", "measured": {"step_time_s": 2.0}}
        of_answer = {"prediction_id": self.prediction["id"], **measured}
        memory = {"memory": {"reserved_gib": 60.0}}
        self.reports = [
            self._post("reports", {**REPORT, **memory, "source": "a"}, key="a"),
            self._post("reports", {**of_answer, "source": "b"}),
            *(
                self._post("reports", changed(REPORT, "measured.step_time_s", 2.0 + 0.01 * i))
                for i in range(6)
            ),
        ]
        self.benchmark = self._post("benchmarks", _GEMMS)
        self.entries = [
            self._post("catalog/chips", {"name": "mine", "chip": CHIP}),
            self._post("catalog/clusters", {"name": "hall", "cluster": _HALL}),
            self._post("catalog/architectures", {"name": "own-model", "model": SHAPE}),
        ]
        self.sweep = self._post("sweeps", SWEEP)
        self._ask("PUT", f"{_PROFILE}/policy", {"mode": "automatic"}, {"If-Match": "*"})
        self.calibration = self._post("profiles/default/calibrations", {"activate": True})

    def _post(self, path: str, body: Any, key: str | None = None) -> dict[str, Any]:
        headers = {} if key is None else {"Idempotency-Key": key}
        return self._ask("POST", f"/v1/{path}", body, headers)

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> dict[str, Any]:
        answer = self._client.request(method, path, json=body, headers=headers)
        assert answer.status_code in (200, 201, 202), answer.text
        found: dict[str, Any] = answer.json()
        return found

    def questions(self) -> Iterator[tuple[str, str, Any]]:
        """Methods, paths and bodies of requests that read a stored document each, or several."""
        yield from (("GET", path, None) for path in self._paths())
        named = {"prediction_id": self.prediction["id"]}
        recommended = {"recommendation_id": self.recommendation["id"]}
        measured = {"outcome": "ok", "measured": {"step_time_s": 2.5}}
        yield "POST", "/v1/reports", {**named, **measured}
        yield "POST", "/v1/reports", {**recommended, **measured}
        yield "POST", "/v1/explanations", {**named, **measured}
        yield "POST", "/v1/recommendations", {**QUESTION, "tolerance": 0.04}
        for preset in ("mine", "hall"):
            cluster = {"preset": preset, "num_chips": 64}
            yield "POST", "/v1/predictions", changed(PREDICTION, "cluster", cluster)
        yield "POST", "/v1/predictions", {**PREDICTION, "model": "own-model"}
        version = self.calibration["version"]
        yield "POST", f"{_PROFILE}/versions/{version}/replay", {}
        yield "POST", f"{_PROFILE}/calibrations", {}
        yield "POST", f"{_PROFILE}/calibrations", {"from_scratch": True}

    def _paths(self) -> Iterator[str]:
        for kind, answer in (
            ("predictions", self.prediction),
            ("recommendations", self.recommendation),
        ):
            place = f"/v1/{kind}/{answer['id']}"
            views = "", "?view=brief", "/launch/torchtitan", "/timeline"
            yield from (f"/v1/{kind}", *(f"{place}{view}" for view in views))
            yield f"/v1/evidence?{kind[:-1]}_id={answer['id']}"
        yield "/v1/reports"
        yield "/v1/reports?format=csv"
        yield "/v1/reports/summary"
        yield from (f"/v1/reports/{report['id']}" for report in self.reports)
        yield "/v1/benchmarks"
        yield f"/v1/benchmarks/{self.benchmark['id']}"
        for kind in ("chips", "clusters", "architectures"):
            yield f"/v1/catalog/{kind}"
        yield from (f"/v1/catalog/{one['kind']}/{one['name']}" for one in self.entries)
        yield "/v1/sweeps"
        place = f"/v1/sweeps/{self.sweep['id']}"
        yield from (place, f"{place}/items", f"{place}/items?format=csv")
        yield from ("/v1/profiles", _PROFILE, f"{_PROFILE}/drift", "/v1/audit")
        yield from (f"{_PROFILE}/versions/{version}" for version in (1, 2))


def finished(client: Client, written: Written) -> None:
    """Waits until all of the sweep is computed."""
    path = f"/v1/sweeps/{written.sweep['id']}"
    wait_for(lambda: client.request("GET", path).json()["state"] != "running")


def refused(client: Client, written: Written) -> dict[str, str]:
    """The answers that are none, each with the request that it was to."""
    found: dict[str, str] = {}
    for method, path, body in written.questions():
        arguments = {} if body is None else {"json": body}
        answer = client.request(method, path, **arguments)
        if answer.status_code >= 300:
            found[f"{method} {path} {body or ''}"] = answer.text
    return found
