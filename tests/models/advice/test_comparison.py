"""Two layouts side by side, in words."""

from __future__ import annotations

from dataclasses import replace

from models.advice.comparison import compare
from models.spec.layout import Layout
from tests.models.advice.problems import PROFILE, llama


def test_what_is_alike_is_not_told_as_a_difference_of_nothing() -> None:
    question = llama(8, 64)
    one = Layout(dp_shard=8, zero_stage=3, micro_batch=1)
    other = replace(one, placement=("dp_shard", "tp", "cp", "dp_replicate", "pp"))
    found = compare(question, PROFILE, one, other)
    told = " ".join(found.reasons)
    assert "0.0 GiB" not in told
    assert "0.0% " not in told
    assert "both take as long, within 0.05%" in told
    assert "both need as much memory, within 0.05 GiB" in told
    apart = compare(question, PROFILE, one, replace(one, micro_batch=2))
    assert "GiB less: activations_gib -" in " ".join(apart.reasons)
