"""What a config.json says of norms and positions reaches the launch, or a note says that it does
not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.formats import huggingface
from service.formats.launch.formats import FORMATS
from service.formats.launch.job import LaunchConfiguration
from service.formats.model_details import ModelDetails
from service.formats.rope_scaling import RopeScaling
from tests.service.formats.launch.jobs import job_of, problem_of

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "type": "yarn",
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
}


def details(scaling: dict[str, Any] | None = None, **known: Any) -> ModelDetails:
    stretched = None if scaling is None else RopeScaling.of(scaling)
    return ModelDetails(rope_theta=500_000.0, rope_scaling=stretched, norm_epsilon=1e-6, **known)


def launched(name: str, model: str, known: ModelDetails) -> LaunchConfiguration:
    job = job_of(problem_of(name, model), dp_shard=8, zero_stage=1)
    return FORMATS[name].write(replace(job, details=known))


def test_megatron_is_told_norms_positions_and_their_stretching() -> None:
    made = launched("megatron", "llama-3.1-8b", details(LLAMA3, context_length=131_072))
    assert made.settings["--norm-epsilon"] == 1e-6
    assert made.settings["--rotary-base"] == 500_000
    assert made.settings["--use-rope-scaling"] is True
    assert made.settings["--rope-scaling-factor"] == 8.0
    assert made.settings["--max-position-embeddings"] == 131_072
    assert "--norm-epsilon" not in made.placeholders


def test_megatron_stretches_latent_attention_with_yarn() -> None:
    made = launched("megatron", "deepseek-v3", details(YARN))
    assert made.settings["--rope-type"] == "yarn"
    assert made.settings["--rotary-scaling-factor"] == 40.0
    assert made.settings["--mscale-all-dim"] == 1.0


@pytest.mark.parametrize(
    "scaling", [{**LLAMA3, "original_max_position_embeddings": 4096}, YARN, {"type": "longrope"}]
)
def test_a_stretching_without_arguments_is_noted(scaling: dict[str, Any]) -> None:
    made = launched("megatron", "llama-3.1-8b", details(scaling))
    assert "--use-rope-scaling" not in made.settings
    assert any("stretches rotary positions" in note for note in made.notes)


def maxtext_of_sizes(known: ModelDetails) -> LaunchConfiguration:
    """The launch of a model that MaxText has no file for."""
    problem = problem_of("maxtext")
    short = replace(problem.architecture, layers=problem.architecture.layers[:4], name="small")
    job = job_of(replace(problem, architecture=short), dp_shard=16, zero_stage=3)
    return FORMATS["maxtext"].write(replace(job, details=known))


def test_maxtext_is_told_norms_positions_and_their_stretching() -> None:
    made = maxtext_of_sizes(details(LLAMA3))
    assert made.settings["normalization_layer_epsilon"] == 1e-6
    assert made.settings["rope_max_timescale"] == 500_000
    assert made.settings["rope_type"] == "llama3.1"
    assert not any("MaxText's defaults" in note for note in made.notes)


def test_maxtext_says_what_it_is_not_told() -> None:
    notes = " ".join(maxtext_of_sizes(ModelDetails()).notes)
    assert "normalization_layer_epsilon and rope_max_timescale are left" in notes
    stretched = maxtext_of_sizes(details({**LLAMA3, "factor": 32.0}))
    assert "rope_type" not in stretched.settings
    assert "stretches rotary positions (llama3, factor 32)" in " ".join(stretched.notes)


def test_maxtext_says_that_no_flags_of_the_compiler_are_set() -> None:
    assert any("XLA_FLAGS is not set" in note for note in maxtext_of_sizes(details()).notes)


def test_what_is_not_known_of_a_model_is_to_be_filled_in() -> None:
    made = launched("megatron", "llama-3.1-8b", ModelDetails())
    assert {"--norm-epsilon", "--rotary-base"} <= made.placeholders.keys()


def test_a_launch_is_never_shorter_than_its_sequences() -> None:
    made = launched("megatron", "llama-3.1-8b", details(context_length=16))
    seq_len = problem_of("megatron", "llama-3.1-8b").workload.seq_len
    assert made.settings["--max-position-embeddings"] == seq_len


def test_the_three_numbers_are_read_of_a_config() -> None:
    config = {
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "rope_scaling": LLAMA3,
    }
    read = huggingface.details(config)
    assert read.norm_epsilon == 1e-5
    assert read.context_length == 131_072
    assert read.rope_scaling is not None
    assert read.rope_scaling.kind == "llama3"
