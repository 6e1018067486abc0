"""Two layouts side by side, in words."""

from __future__ import annotations

from dataclasses import replace

from models.advice.comparison import compare
from models.spec.layout import Layout
from models.spec.switches import changed
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
    assert "GiB less: activations -" in " ".join(apart.reasons)


def test_software_is_compared_in_the_words_of_the_framework() -> None:
    question = llama(8, 64)
    layout = Layout(dp_shard=8, zero_stage=3)
    other = changed(question.stack, {"overlap_data": False, "max_virtual_stages": 2})
    reasons = compare(question, PROFILE, layout, layout, second_stack=other).reasons
    (told,) = (reason for reason in reasons if reason.startswith("the stack of the first has"))
    assert (
        "overlap_data true (--overlap-grad-reduce), not false (--overlap-grad-reduce not set)"
        in told
    )
    assert "max_virtual_stages 16, not 2" in told
