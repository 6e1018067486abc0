from __future__ import annotations

import pytest

from models.spec import catalogue
from tests.service.asking import CHIP, PREDICTION, SHAPE, assert_problem, changed

LEVELS = [{"name": "rack", "size": 16, "gb_s_per_chip": 450}, {"name": "leaf", "gb_s_per_chip": 50}]


@pytest.mark.parametrize("kind", ["chips", "clusters", "architectures", "stacks"])
def test_the_shipped_catalogue_is_there_by_name_and_alias(shared_client, kind: str) -> None:
    client = shared_client
    items = client.get(f"/v1/catalog/{kind}?limit=1000").json()["items"]
    assert len(items) >= 10
    assert {item["source"] for item in items} == {"shipped"}
    # A name of some: that all are known is asked of the catalogue, without a request each.
    for item in items[::5]:
        name = [item["name"], *item["aliases"]][-1]
        assert client.get(f"/v1/catalog/{kind}/{name}").json() == item


def test_a_registered_name_may_be_pinned_to_its_version(client) -> None:
    made = client.post("/v1/catalog/chips", json={"name": "mine", "chip": CHIP}).json()
    assert (made["pinned_name"], made["assumptions"]) == ("mine@1", [])
    asked = changed(PREDICTION, "cluster.preset", made["pinned_name"])
    assert client.post("/v1/predictions", json=asked).status_code == 201


@pytest.mark.parametrize("kind", ["chips", "clusters"])
def test_a_chip_of_a_generation_nobody_measured_says_so(client, kind: str) -> None:
    chip = {**CHIP, "generation": "rubin"}
    entry = {"chip": chip} if kind == "chips" else {"cluster": {"chip": chip}}
    made = client.post(f"/v1/catalog/{kind}", json={"name": "mine", **entry}).json()
    said = "generation 'rubin' is uncalibrated: coefficients of the generic family"
    assert made["assumptions"] == [said]
    predicted = client.post(
        "/v1/predictions", json=changed(PREDICTION, "cluster.preset", "mine")
    ).json()
    assert said in predicted["assumptions"]


ANNOUNCED = {chip.id: chip for chip in catalogue.chips().values() if chip.is_data_sheet_only}
STACK_OF_VENDOR = {"google": "maxtext", "aws": "axlearn"}


@pytest.mark.parametrize("chip", ANNOUNCED.values(), ids=ANNOUNCED)
def test_an_announced_chip_is_recommended_for_with_reservations(shared_client, chip) -> None:
    asked = {
        "model": "llama-3.1-70b",
        "cluster": {"preset": chip.id, "num_chips": 128},
        "workload": {"seq_len": 8192, "global_batch": 512},
        "stack": STACK_OF_VENDOR.get(chip.vendor, "megatron"),
        "time_limit_s": 10,
    }
    made = shared_client.post("/v1/recommendations", json=asked)
    assert made.status_code == 201, made.text
    answer = made.json()
    assert any(
        f"figures of {chip.id} are data sheet only" in line for line in answer["assumptions"]
    )
    launched = answer["layouts"][0]["prediction"]
    assert launched["provenance"]["grade"] == "data_sheet"
    assert 0.05 < launched["mfu"]["causal"] < 0.75
    device_gib = chip.usable_memory_gib / chip.devices_per_chip
    assert launched["needed_gib"] <= launched["usable_gib"] == device_gib
    assert launched["step_time_high_s"] > 1.15 * launched["step_time_s"]


def test_lists_are_paged_by_name(client) -> None:
    address, seen = "/v1/catalog/chips?limit=10", []
    while address:
        page = client.get(address)
        seen += [item["name"] for item in page.json()["items"]]
        address = page.headers["link"].split(">")[0].lstrip("<") if "link" in page.headers else ""
    assert seen == sorted({chip.id for chip in catalogue.chips().values()})


def test_a_registered_chip_is_used_by_its_latest_version(client) -> None:
    slow = client.post("/v1/catalog/chips", json={"name": "mine", "chip": CHIP})
    assert (slow.status_code, slow.json()["version"]) == (201, 1)
    assert client.get(slow.headers["location"]).json() == slow.json()
    fast = {**CHIP, "peak_tflops": {"bf16": 8000.0}}
    assert (
        client.post("/v1/catalog/chips", json={"name": "mine", "chip": fast}).json()["version"] == 2
    )

    def predicted(cluster: dict[str, object]) -> dict:
        return client.post("/v1/predictions", json=changed(PREDICTION, "cluster", cluster)).json()

    latest, first = (predicted({"preset": name, "num_chips": 64}) for name in ("mine", "mine@1"))
    assert latest["layouts"][0]["step_time_s"] < first["layouts"][0]["step_time_s"]
    assert latest["catalogue"]["chip"] == {"name": "mine", "source": "registered", "version": 2}
    assert first["catalogue"]["chip"]["version"] == 1
    assert latest["request"]["cluster"]["preset"] == "mine@2"
    by_chip = predicted({"chip": "mine", "num_chips": 64})
    assert by_chip["layouts"] == latest["layouts"]
    assert (
        "mine has no version 3, its last is 2"
        in predicted({"chip": "mine@3", "num_chips": 64})["detail"]
    )


def test_a_registered_cluster_keeps_the_chip_it_was_made_of(client) -> None:
    client.post("/v1/catalog/chips", json={"name": "mine", "chip": CHIP})
    body = {
        "name": "hall",
        "cluster": {"chip": "mine", "levels": LEVELS, "num_chips": 64, "usd_per_chip_hour": 2},
    }
    made = client.post("/v1/catalog/clusters", json=body)
    assert made.json()["given"]["cluster"]["chip"] == "mine@1"
    before = client.post(
        "/v1/predictions", json=changed(PREDICTION, "cluster", {"preset": "hall"})
    ).json()
    client.post(
        "/v1/catalog/chips", json={"name": "mine", "chip": {**CHIP, "peak_tflops": {"bf16": 1.0}}}
    )
    after = client.post(
        "/v1/predictions", json=changed(PREDICTION, "cluster", {"preset": "hall"})
    ).json()
    assert after["layouts"] == before["layouts"]
    assert after["catalogue"]["fabric"]["name"] == "hall"
    again = client.post("/v1/predictions", json=after["request"]).json()
    assert again["layouts"] == after["layouts"]


def test_a_request_may_take_another_share_of_a_registered_cluster(client) -> None:
    body = {"name": "hall", "cluster": {"chip": "h100", "levels": LEVELS, "num_chips": 8}}
    client.post("/v1/catalog/clusters", json=body)
    asked = changed(PREDICTION, "cluster", {"preset": "hall", "num_chips": 64})
    assert client.post("/v1/predictions", json=asked).status_code == 201


def test_a_registered_architecture_answers_to_its_name(client) -> None:
    made = client.post("/v1/catalog/architectures", json={"name": "my-model", "model": SHAPE})
    found = client.post("/v1/predictions", json=changed(PREDICTION, "model", "My_Model")).json()
    assert found["catalogue"]["architecture"]["name"] == "my-model"
    assert (
        found["catalogue"]["architecture"]["parameters"]["total"]
        == made.json()["resolved"]["parameters"]["total"]
    )
    assert found["request"]["model"] == "my-model@1"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("chips", {"name": "h100", "chip": CHIP}),
        ("chips", {"name": "dgx-h100-superpod", "chip": CHIP}),
        ("chips", {"name": "v5p-256", "chip": CHIP}),
        ("clusters", {"name": "dgx-h100-superpod", "cluster": {"chip": "h100"}}),
        ("clusters", {"name": "h100", "cluster": {"chip": "h100"}}),
        ("architectures", {"name": "llama-3.1-8b", "model": SHAPE}),
    ],
)
def test_shipped_names_are_reserved(shared_client, kind: str, body: dict) -> None:
    answer = shared_client.post(f"/v1/catalog/{kind}", json=body)
    assert answer.status_code == 409
    assert_problem(answer, "name-reserved")


def test_a_name_is_of_a_chip_or_of_a_cluster(client) -> None:
    """A preset may name either: what it means must not change when the other kind is registered."""
    chip, hall = (
        {"name": "one", "chip": CHIP},
        {"name": "one", "cluster": {"chip": "h100", "levels": LEVELS}},
    )
    for first, second in (
        ((chip, "chips"), (hall, "clusters")),
        ((hall, "clusters"), (chip, "chips")),
    ):
        name = f"of-{first[1]}"
        assert (
            client.post(f"/v1/catalog/{first[1]}", json={**first[0], "name": name}).status_code
            == 201
        )
        refused = client.post(f"/v1/catalog/{second[1]}", json={**second[0], "name": name})
        assert refused.status_code == 409
        assert (
            f"{name} is registered among the {first[1]}"
            in assert_problem(refused, "name-reserved")["detail"]
        )
        assert (
            client.post(f"/v1/catalog/{first[1]}", json={**first[0], "name": name}).json()[
                "version"
            ]
            == 2
        )


@pytest.mark.parametrize(
    ("kind", "body", "pointer"),
    [
        ("chips", {"name": "Mine", "chip": CHIP}, "/name"),
        ("chips", {"name": "mine@2", "chip": CHIP}, "/name"),
        ("chips", {"name": "mine", "chip": {}}, "/chip/generation"),
        (
            "chips",
            {"name": "mine", "chip": {**CHIP, "usable_memory_gib": 128.5}},
            "/chip/usable_memory_gib",
        ),
        (
            "clusters",
            {"name": "hall", "cluster": {"chip": {**CHIP, "usable_memory_gib": 200}}},
            "/cluster/chip/usable_memory_gib",
        ),
        (
            "clusters",
            {"name": "hall", "cluster": {"chip": "h100", "levels": [LEVELS[0]], "num_chips": 64}},
            "/cluster/num_chips",
        ),
        (
            "clusters",
            {"name": "hall", "cluster": {"chip": "h100", "levels": LEVELS[::-1]}},
            "/cluster/levels",
        ),
        (
            "architectures",
            {"name": "m", "model": {**SHAPE, "num_attention_heads": 33}},
            "/model/head_dim",
        ),
        ("architectures", {"name": "m", "model": "llama-3.1-8b"}, "/model"),
    ],
)
def test_bad_entries_are_refused(shared_client, kind: str, body: dict, pointer: str) -> None:
    assert_problem(shared_client.post(f"/v1/catalog/{kind}", json=body), "invalid", pointer)


def test_stacks_are_not_registered(shared_client) -> None:
    assert_problem(
        shared_client.post("/v1/catalog/stacks", json={"name": "mine"}), "method-not-allowed"
    )
