"""Clusters on the wire: the links of a chip may be said by the cluster alone."""

from __future__ import annotations

from typing import Any

from tests.service.asking import CHIP, PREDICTION, assert_problem, changed, without

LEVELS = [{"size": 16, "gb_s_per_chip": 450}, {"gb_s_per_chip": 50}]
UNLINKED = without(CHIP, "scale_up", "scale_out_gb_s")


def asked(**cluster: Any) -> dict[str, Any]:
    return changed(PREDICTION, "cluster", {"num_chips": 64, **cluster})


def test_levels_say_what_scale_up_would(shared_client) -> None:
    by_levels = shared_client.post("/v1/predictions", json=asked(chip=UNLINKED, levels=LEVELS))
    by_both = shared_client.post("/v1/predictions", json=asked(chip=CHIP, levels=LEVELS))
    by_chip = shared_client.post("/v1/predictions", json=asked(chip=CHIP))
    assert by_levels.is_success, by_levels.text
    assert by_levels.json()["layouts"] == by_both.json()["layouts"]
    assert by_levels.json()["layouts"] == by_chip.json()["layouts"]


def test_the_answer_can_be_asked_again(shared_client) -> None:
    answer = shared_client.post("/v1/predictions", json=asked(chip=UNLINKED, levels=LEVELS)).json()
    request = {name: value for name, value in answer["request"].items() if name != "layouts"}
    again = shared_client.post(
        "/v1/predictions", json={**request, "layouts": answer["request"]["layouts"]}
    )
    assert again.json()["layouts"] == answer["layouts"]


def test_a_chip_without_links_is_told_who_may_say_them(shared_client) -> None:
    response = shared_client.post("/v1/predictions", json=asked(chip=UNLINKED))
    problem = assert_problem(response, "invalid", "/cluster/chip/scale_up")
    assert "levels or torus" in str(problem["errors"])


def test_a_chip_is_not_registered_without_links(shared_client) -> None:
    entry = {"name": "unlinked", "chip": UNLINKED}
    response = shared_client.post("/v1/catalog/chips", json=entry)
    assert_problem(response, "invalid", "/chip/scale_up")
