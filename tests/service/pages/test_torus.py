from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from service.pages.mesh import mesh_of
from service.pages.torus import Torus

_CUBE = [
    {"name": "z", "kind": "ring", "scale": "up", "domain": 4, "gb_s": 90.0},
    {"name": "y", "kind": "ring", "scale": "up", "domain": 16, "gb_s": 90.0},
    {"name": "x", "kind": "ring", "scale": "up", "domain": 64, "gb_s": 90.0},
]
_NETWORK = {"name": "DCN", "kind": "switch", "scale": "out", "domain": 256, "gb_s": 6.0}


def _torus(links: list[dict[str, Any]], num_chips: int = 64, **knobs: Any) -> Torus | None:
    layout = {
        "placement": ["tp", "cp", "dp_shard", "dp_replicate", "pp"], "torus_axes": ["z", "y", "x"],
        "torus_block": 1, "tp": 1, "cp": 1, "dp_shard": 1, "dp_replicate": 1, "pp": 1, **knobs,
    }  # fmt: skip
    return mesh_of(layout, num_chips, None, links).torus


def _served(torus: Torus) -> Counter[tuple[str, str]]:
    """Links of the whole slice by direction and axis."""
    assert torus.hidden == 0
    counted = Counter[tuple[str, str]]()
    for plane in torus.planes:
        for chip in plane.chips:
            for link in chip.links:
                counted[link.along, link.axis] += 1 + plane.alike
    return counted


@pytest.mark.parametrize(("order", "along"), [("zyx", "across"), ("yzx", "up"), ("xyz", "deep")])
def test_the_innermost_axis_has_the_links_along_the_dim_that_is_filled_first(
    order: str, along: str
) -> None:
    torus = _torus(_CUBE, tp=4, dp_shard=16, torus_axes=[*order])
    assert torus is not None
    others = {"across", "up", "deep"} - {along}
    expected = {(along, "tp"): 64, **{(other, "dp_shard"): 64 for other in others}}
    assert _served(torus) == expected
    assert torus.spans["tp"] == (order[0],)


def test_a_block_holds_its_group_and_all_links_within() -> None:
    torus = _torus(_CUBE, tp=8, dp_shard=8, torus_block=2)
    assert torus is not None
    served = _served(torus)
    # Each of eight cubes of two chips a side has four links along each dim.
    assert {name: count for name, count in served.items() if name[1] == "tp"} == {
        (along, "tp"): 32 for along in ("across", "up", "deep")
    }
    assert torus.spans["tp"] == ("z", "y", "x")


def test_planes_that_look_the_same_are_drawn_once() -> None:
    alike = _torus(_CUBE, tp=4, dp_shard=16)
    assert alike is not None
    assert [(plane.number, plane.alike) for plane in alike.planes] == [(0, 3)]
    staged = _torus(_CUBE, tp=4, dp_shard=4, pp=4)
    assert staged is not None
    assert [plane.number for plane in staged.planes] == [0, 1, 2, 3]
    for plane in staged.planes:
        assert {chip.stage for chip in plane.chips} == {plane.number}


def test_a_line_has_no_link_from_its_last_chip_to_its_first() -> None:
    line = [{**_CUBE[0], "kind": "line"}]
    torus = _torus(line, 4, tp=4)
    assert torus is not None
    assert _served(torus) == {("across", "tp"): 3}


def test_other_slices_are_counted() -> None:
    torus = _torus([*_CUBE, _NETWORK], 256, tp=4, dp_shard=64)
    assert torus is not None
    assert torus.other_slices == 3
    assert "the network between slices" in torus.spans["dp_shard"]
    assert "the network between slices" not in torus.spans["tp"]


def test_a_part_of_a_slice_is_not_drawn() -> None:
    assert _torus(_CUBE, 32, tp=4, dp_shard=8) is None


def test_devices_of_a_chip_share_its_place() -> None:
    pair = {"name": "die", "kind": "switch", "scale": "up", "domain": 2, "gb_s": 600.0}
    cube = [{**link, "domain": 2 * link["domain"]} for link in _CUBE]
    torus = _torus([pair, *cube], 128, tp=2, dp_shard=64)
    assert torus is not None
    assert torus.devices_of_place == 2
    assert set(_served(torus)) == {(along, "dp_shard") for along in ("across", "up", "deep")}
    assert torus.spans == {"tp": (), "dp_shard": ("z", "y", "x")}
