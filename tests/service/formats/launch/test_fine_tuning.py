"""What launch configurations say of images."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.formats.launch.formats import FORMATS
from service.formats.launch.job import Inexpressible
from tests.models.cost.encoders import ENCODER, FROZEN, PROJECTOR_ALONE, with_encoder
from tests.service.formats.launch.jobs import job_of, problem_of


def job(stack: str, encoder=ENCODER):
    problem = problem_of(stack)
    problem = replace(problem, architecture=with_encoder(problem.architecture, encoder))
    return job_of(problem, dp_shard=16, zero_stage=1 if stack.startswith("megatron") else 3)


@pytest.mark.parametrize("name", ["megatron", "maxtext", "torchtitan"])
def test_programs_that_train_on_text_alone_have_no_words_for_an_encoder(name: str) -> None:
    with pytest.raises(Inexpressible, match=r"model\.encoder"):
        FORMATS[name].write(job(FORMATS[name].stacks[0]))


@pytest.mark.parametrize("name", ["deepspeed", "accelerate", "megatron-bridge"])
@pytest.mark.parametrize(
    ("encoder", "words"),
    [(ENCODER, "1024 tokens of images"), (PROJECTOR_ALONE, "train its projector"),
     (FROZEN, "freeze the encoder and its projector")],
)  # fmt: skip
def test_others_say_what_a_script_or_a_recipe_has_to_do(name: str, encoder, words: str) -> None:
    written = FORMATS[name].write(job(FORMATS[name].stacks[0], encoder))
    assert any(words in note for note in written.notes)
