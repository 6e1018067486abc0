from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.pages.ask_answer import mesh_of_answer
from service.pages.mesh import mesh_of

_AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    degrees = {axis: draw(st.sampled_from((1, 2, 3, 4))) for axis in _AXES}
    return {**degrees, "placement": draw(st.permutations(_AXES))}


def group(layout: dict[str, Any], axis: str, rank: int) -> list[int]:
    """The chips that differ from one only in their place along an axis, by counting them all."""

    def coordinates(chip: int) -> dict[str, int]:
        place = {}
        for name in layout["placement"]:
            chip, place[name] = divmod(chip, layout[name])
        return place

    own = coordinates(rank)
    chips = range(prod(layout[name] for name in _AXES))
    return [
        chip
        for chip in chips
        if all(value == own[name] for name, value in coordinates(chip).items() if name != axis)
    ]


@given(layouts(), st.sampled_from((1, 2, 4, 6, 8, 72)))
def test_an_axis_stays_in_a_node_where_each_of_its_groups_does(
    layout: dict[str, Any], domain: int
) -> None:
    num_chips = prod(layout[name] for name in _AXES)
    for axis in mesh_of(layout, num_chips, domain).axes:
        groups = [group(layout, axis.name, rank) for rank in range(num_chips)]
        stays = all(len({chip // domain for chip in chips}) == 1 for chips in groups)
        assert axis.within_domain <= stays
        assert all(max(chips) - min(chips) == (axis.degree - 1) * axis.stride for chips in groups)


@given(layouts(), st.sampled_from((1, 2, 4, 6, 8, 72)))
def test_each_chip_that_is_drawn_has_the_stage_that_the_placement_gives_it(
    layout: dict[str, Any], domain: int
) -> None:
    num_chips = prod(layout[name] for name in _AXES)
    mesh = mesh_of(layout, num_chips, domain)
    for row in mesh.rows:
        for node in row.nodes:
            for chip in node.chips:
                assert chip.rank // domain == node.number
                stage = sorted(group(layout, "pp", chip.rank)).index(chip.rank)
                assert chip.stage == stage
                assert stage in row.stages
    shown = sum(len(row.nodes) + row.hidden for row in mesh.rows)
    assert mesh.hidden_rows or shown == -(-num_chips // domain)


@pytest.mark.parametrize(
    ("cluster", "devices_of_domain", "devices"),
    [
        ({"preset": "trainium3", "num_chips": 32}, 128, 128),  # of 4 devices a chip, in one domain
        ({"preset": "h100", "num_chips": 16, "chips_per_domain": 4}, 4, 16),
        ({"preset": "gb200-nvl72", "num_chips": 8}, 8, 8),
    ],
)
def test_a_node_has_all_devices_of_a_domain_that_the_job_uses(
    shared_client, cluster: dict[str, Any], devices_of_domain: int, devices: int
) -> None:
    question = {
        "model": "llama-3.1-8b",
        "cluster": cluster,
        "workload": {"seq_len": 4096, "global_batch": 128},
        "stack": "generic",
    }
    mesh = mesh_of_answer(shared_client.post("/v1/recommendations", json=question).json())
    assert (mesh.domain, mesh.num_devices) == (devices_of_domain, devices)


def test_a_torus_has_axes_and_no_nodes() -> None:
    layout = {**dict.fromkeys(_AXES, 1), "dp_shard": 64, "placement": list(_AXES)}
    mesh = mesh_of(layout, 64, None)
    assert not mesh.rows
    assert [axis.degree for axis in mesh.axes] == [64]
