"""What a check proposes to change in a launch is all that has to be typed: the launch with just
these settings changed has the step time and the fit that were promised."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.formats.launch.documents import flat, nested
from service.formats.launch.formats import FORMATS
from service.formats.launch.job import with_changes
from service.formats.launch.knob_settings import KNOB_SETTINGS
from tests.service.ask.test_checks import check
from tests.service.formats.launch.jobs import problem_of, written

EXAMPLES = int(os.environ.get("EXAMPLES", "2"))
CHIPS = 16
CASES = {
    "megatron": ("h100", "llama-3-8b"),
    "megatron moe": ("h100", "mixtral-8x7b"),
    "megatron-bridge": ("h100", "mixtral-8x7b"),
    "torchtitan": ("h100", "llama-3.1-8b"),
    "maxtext": ("tpu-v5p", "llama-3.1-8b"),
    "deepspeed": ("h100", "llama-3-8b"),
    "accelerate": ("h100", "llama-3-8b"),
}
KNOBS = ("tp", "pp", "cp", "ep", "micro_batch", "global_batch", "virtual_stages", "dp_shard")


def launches(case: str) -> st.SearchStrategy[tuple[str, dict[str, Any], dict[str, Any]]]:
    """A format, settings of it that say a layout, and what a request has beside them."""
    name = case.partition(" ")[0]
    chip, model = CASES[case]
    format_ = FORMATS[name]
    problem = problem_of(format_.stacks[0], model, CHIPS, chip, global_batch=64)
    jobs = written(
        problem,
        format_.write,
        micro_batch=(1, 2, 4),
        recompute=("none", "full"),
        zero_stage=(1, 3),
    )
    beside: dict[str, Any] = {"cluster": {"preset": chip, "num_chips": CHIPS}}
    if name in ("deepspeed", "accelerate"):
        beside |= {"model": model, "workload": {"seq_len": 4096}}
    if name == "accelerate":
        beside["workload"]["global_batch"] = 64

    def with_beside(made: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
        said = made[1]
        return name, flat({**said.settings, **said.script_arguments}), beside

    return jobs.map(with_beside)


@st.composite
def typed_launches(draw: st.DrawFn, case: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """As launches, as somebody might type them: some settings are left to their defaults, and some
    counts are others, with which the layout may be illegal."""
    name, said, beside = draw(launches(case))
    counts = [
        setting
        for knob, setting in KNOB_SETTINGS[name].items()
        if knob in KNOBS and isinstance(said.get(setting), int)
    ]
    kept = {*counts, "module", "config", "run_name", "model_name"}
    open_ = [one for one in said if one not in kept and "size" not in one and "num" not in one]
    left_out = draw(st.sets(st.sampled_from(open_), max_size=4)) if open_ else set()
    changes: dict[str, Any] = dict.fromkeys(left_out)
    for setting in draw(st.sets(st.sampled_from(counts), max_size=2)):
        changes[setting] = draw(st.sampled_from([1, 2, 3, 4, 8, 16, 48, 66]))
    return name, with_changes(said, changes), beside


@pytest.mark.parametrize(
    "case",
    [
        case
        if case in ("megatron moe", "torchtitan")
        else pytest.param(case, marks=pytest.mark.long)
        for case in CASES
    ],
)
def test_what_is_promised_of_a_change_is_what_a_check_says_with_its_settings(
    shared_client: Any, case: str
) -> None:
    @settings(max_examples=EXAMPLES)
    @given(typed_launches(case))
    def keeps_its_promises(launch: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
        name, said, beside = launch
        first = shared_client.post("/v1/checks", json=body_of(name, said, beside))
        if first.status_code != 200:
            return  # what is typed cannot be read, or contradicts itself
        answer = first.json()
        changes = [answer["first_change"], *(answer["fits"] or {"enough": []})["enough"]]
        for change in filter(None, changes):
            assert change["settings"], change["words"]
            for setting in change["settings"]:
                assert setting["from"] != setting["to"]
            new = with_changes(said, {one["name"]: one["to"] for one in change["settings"]})
            again = check(shared_client, body_of(name, new, beside))
            assert again["legal"], (change, again["broken_rules"])
            assert again["prediction"]["step_time_s"] == pytest.approx(change["step_time_s"])
            assert again["fits"]["probability"] == pytest.approx(change["fit_probability"])

    keeps_its_promises()


def body_of(name: str, said: dict[str, Any], beside: dict[str, Any]) -> dict[str, Any]:
    document = nested(said) if FORMATS[name].words is None else said
    return {"launch": {"format": name, "settings": document}, **beside, "time_limit_s": 0.2}


_BEFORE_0_3 = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 2
seq_len = 8192
[compile]
enable = true
components = ["loss", "model"]
[activation_checkpoint]
mode = "full"
[parallelism]
tensor_parallel_degree = 8
data_parallel_shard_degree = 8
"""


def test_a_change_is_named_as_the_release_that_was_read_names_it(shared_client) -> None:
    body = {
        "launch": {"format": "torchtitan", "arguments": _BEFORE_0_3},
        "cluster": {"preset": "h100", "num_chips": 64},
    }
    answer = shared_client.post("/v1/checks", json=body).json()
    name = "parallelism.enable_async_tensor_parallel"
    assert answer["launch_read"]["version"] == "0.2.2"
    assert [one["name"] for one in answer["first_change"]["settings"]] == [name]
    assert name in answer["first_change"]["words"]
    assert name in [one["name"] for one in answer["switches"]]
