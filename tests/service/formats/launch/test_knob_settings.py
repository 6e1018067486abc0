"""What a framework calls a knob is what its written configuration changes with it."""

from __future__ import annotations

import pytest

from models.layouts.defaults import with_stack_defaults
from models.layouts.neighbours import neighbours
from models.spec.layout import Layout
from service.formats.launch.formats import FORMATS
from service.formats.launch.knob_settings import KNOB_SETTINGS, alternatives_in_settings
from service.resolve.launch_settings import written_settings
from tests.benchmarks.problems import problem

KNOBS = ("tp", "pp", "cp", "ep", "etp", "micro_batch", "schedule", "offload_optimizer")
GIVEN = (
    {"dp_shard": 16},
    {"dp_shard": 16, "ep": 4},
    {"dp_shard": 4, "pp": 2, "tp": 2},
    {"dp_shard": 4, "cp": 2, "tp": 2},
)


def test_every_format_has_names_for_knobs() -> None:
    assert KNOB_SETTINGS.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_a_change_of_a_knob_changes_its_setting(name: str) -> None:
    format_ = FORMATS[name]
    cluster = "tpu-v5p" if name == "maxtext" else "h100"
    asked = problem("mixtral-8x7b", (cluster, 16), format_.stacks[0], seq_len=4096, global_batch=64)
    seen = set[str]()
    for given in GIVEN:
        layout = with_stack_defaults(asked, Layout(**given), given)
        before = written_settings(format_, asked, layout)
        for knob, variant in neighbours(asked, layout):
            setting = KNOB_SETTINGS[name].get(knob)
            after = written_settings(format_, asked, variant)
            if knob not in KNOBS or setting is None or not before or not after:
                continue
            if name in ("torchtitan", "maxtext") and layout.pp > 1 and knob == "micro_batch":
                continue  # their pipelines have another setting for it
            changed = {key for key in {**before, **after} if before.get(key) != after.get(key)}
            assert setting in changed, (knob, changed)
            seen.add(knob)
    assert seen


@pytest.mark.parametrize("name", FORMATS)
def test_counts_that_are_offered_are_what_is_written(name: str) -> None:
    format_ = FORMATS[name]
    cluster = "tpu-v5p" if name == "maxtext" else "h100"
    asked = problem("mixtral-8x7b", (cluster, 16), format_.stacks[0], seq_len=4096, global_batch=64)
    seen = set[str]()
    for given in GIVEN:
        layout = with_stack_defaults(asked, Layout(**given), given)
        said = written_settings(format_, asked, layout)
        for knob, setting in KNOB_SETTINGS[name].items():
            value = getattr(layout, knob, None)
            if type(value) is not int or said.get(setting) is None:
                continue
            offered = alternatives_in_settings(name, knob, [value])
            is_of_pipeline = name == "torchtitan" and layout.pp > 1 and knob == "micro_batch"
            if offered is not None and not is_of_pipeline:
                assert offered == f"{setting} {said[setting]}"
                seen.add(knob)
    assert seen


@pytest.mark.parametrize(
    ("name", "knob", "values", "words"),
    [
        ("megatron", "sequence_parallel", [True], "--sequence-parallel"),
        ("megatron", "sequence_parallel", [False], "without --sequence-parallel"),
        ("megatron", "dp_shard", [1, 2], None),
        ("megatron", "layers_per_chunk", [(1, 2)], None),
        ("megatron", "recompute", ["none"], None),
        (
            "megatron",
            "schedule",
            ["1f1b", "interleaved"],
            "without --num-virtual-stages-per-pipeline-rank",
        ),
        ("torchtitan", "dp_shard", [4, 2], "parallelism.data_parallel_shard_degree 2 or 4"),
        ("torchtitan", "schedule", ["1f1b"], None),
    ],
)
def test_what_cannot_be_typed_is_not_offered(
    name: str, knob: str, values: list, words: str | None
) -> None:
    assert alternatives_in_settings(name, knob, values) == words
