"""What a launch leaves open, read by the readers of the formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from models.errors import Invalid
from service.errors import Refused
from service.resolve.launched_question import LaunchedQuestion, launched_question
from service.resolve.resolution import Resolver
from service.schemas.launch_request import LaunchedPredictionRequest
from service.store import Store, database

FSDP2 = {
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_processes": 32,
    "fsdp_config": {"fsdp_version": 2},
}
ZERO = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
AUTO = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)
LLAMA_2 = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu"
    " --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm --bf16"
    " --position-embedding-type rope --seq-length 4096 --micro-batch-size 2"
)
ASKED = {"cluster": {"preset": "h100", "num_chips": 32}, "model": "llama-3-8b"}


@pytest.fixture
def asked(databases: Any) -> Iterator[Any]:
    url = databases.prepared()
    store = Store(database.connect(url))

    def ask(format_: str, arguments: Any, **members: Any) -> LaunchedQuestion:
        launch = {"format": format_, "arguments": arguments}
        request = LaunchedPredictionRequest.model_validate({**ASKED, "launch": launch, **members})
        with store.reading() as rows:
            return launched_question(Resolver(rows), request.launch, request)

    yield ask
    store.close()
    databases.drop(url)


def faults(ask: Any, *arguments: Any, **members: Any) -> dict[str, str]:
    """The rules that a launch breaks, by the field or else the value that they are about."""
    with pytest.raises((Invalid, Refused)) as caught:
        ask(*arguments, **members)
    error = caught.value
    found = error.errors if isinstance(error, Refused) else [error]
    return {str(one.value or one.field): one.rule for one in found}


@pytest.mark.parametrize(
    ("format_", "document", "setting"),
    [
        ("accelerate", FSDP2, "per_device_train_batch_size"),
        ("deepspeed", {**ZERO, **AUTO}, "train_micro_batch_size_per_gpu"),
        ("deepspeed", ZERO, "train_micro_batch_size_per_gpu"),
    ],
)
def test_a_micro_batch_that_nobody_says_is_1_and_told(
    asked: Any, format_: str, document: dict[str, Any], setting: str
) -> None:
    found = asked(format_, document, workload={"seq_len": 4096, "global_batch": 64})
    assert found.layout.micro_batch == 1
    (line,) = [one for one in found.read.assumed if "micro_batch is 1" in one]
    assert "with 2 micro-batches a step on each of 32 data-parallel ranks" in line
    assert setting in line
    assert "gradient_accumulation_steps" in line


def test_a_micro_batch_follows_from_an_accumulation_that_is_said(asked: Any) -> None:
    document = {**FSDP2, "gradient_accumulation_steps": 2}
    found = asked("accelerate", document, workload={"seq_len": 4096, "global_batch": 128})
    assert found.layout.micro_batch == 2
    assert any("128 in 2 micro-batches on each of 32" in line for line in found.read.assumed)


def test_an_accumulation_that_nobody_says_is_told(asked: Any) -> None:
    document = {**ZERO, **AUTO, "train_micro_batch_size_per_gpu": 2}
    found = asked("deepspeed", document, workload={"seq_len": 4096, "global_batch": 256})
    lines = "; ".join(found.read.assumed)
    assert "gradient_accumulation_steps is 4: a global batch of 256" in lines


def test_a_batch_of_defaults_says_so(asked: Any) -> None:
    document = {**FSDP2, "per_device_train_batch_size": 2}
    found = asked("accelerate", document, workload={"seq_len": 4096})
    assert found.question.workload.global_batch == 64
    lines = "; ".join(found.read.assumed)
    assert "1 micro-batch (the default of gradient_accumulation_steps)" in lines
    workload = {"seq_len": 4096, "global_batch": 128}
    (rule,) = faults(asked, "accelerate", document, workload=workload).values()
    assert "nobody wrote it (the default of gradient_accumulation_steps)" in rule


def test_defaults_of_a_release_are_told_and_contradicted_as_such(asked: Any) -> None:
    flags = "--parallelism.tensor_parallel_degree 2"
    lines = "; ".join(asked("torchtitan", flags).read.assumed)
    assert "workload.seq_len is 2048: the default of training.seq_len in torchtitan" in lines
    assert "layout.micro_batch is 8: the default of training.local_batch_size" in lines
    # They are those of a configuration that is not here, and give way to the request.
    assert asked("torchtitan", flags, workload={"seq_len": 4096}).question.workload.seq_len == 4096
    command = "trl sft --model_name_or_path Qwen/Qwen3-8B"
    rules = faults(asked, "accelerate", command, model=None, workload={"seq_len": 4096})
    rule = rules["workload.seq_len = 1024"]
    assert "seq_len = 4096 of the request, and nobody wrote it (the default of" in rule
    same = asked("torchtitan", flags, workload={"seq_len": 2048}).read.assumed
    assert not any("seq_len" in line for line in same)


@pytest.mark.parametrize("kind", ["GPT2BPETokenizer", "Llama2Tokenizer", "HuggingFaceTokenizer"])
def test_a_vocabulary_is_asked_for_and_not_guessed_from_the_type_of_a_tokenizer(
    asked: Any, kind: str
) -> None:
    flags = f"{LLAMA_2} --tokenizer-type {kind} --tokenizer-model /data/tokenizer.model"
    assert "model.vocab_size" in faults(asked, "megatron", flags, model=None)


def test_the_vocabulary_of_a_public_tokenizer_is_told(asked: Any) -> None:
    flags = f"{LLAMA_2} --tokenizer-model meta-llama/Llama-2-7b-hf"
    found = asked("megatron", flags, model=None)
    assert any("vocab_size is 32000: the 32000 entries of" in line for line in found.read.assumed)
    own = asked("megatron", flags, model={"vocab_size": 50257})
    assert own.resolved.problem.architecture.vocab_size == 50257
    assert not any("vocab_size" in line for line in own.read.assumed)


def test_what_nobody_says_has_its_place_and_what_may_have_been_meant(asked: Any) -> None:
    flags = f"{LLAMA_2} --tokenizer-type HuggingFaceTokenizer"
    rule = faults(asked, "megatron", flags, model=None)["model.vocab_size"]
    assert "write it there, or give it beside the launch" in rule
    misspelt = LLAMA_2.replace("--seq-length", "--seq-lenght")
    rules = faults(asked, "megatron", misspelt, model={"vocab_size": 32000})
    assert any("did you mean --seq-length?" in rule for rule in rules.values()), rules


SPARSE = f"{LLAMA_2} --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm".replace(
    "11008", "14336 --group-query-attention --num-query-groups 8"
)


@pytest.mark.parametrize(
    ("flags", "model", "counts"),
    [
        (SPARSE, "mixtral-8x7b", set()),
        (SPARSE, "llama-3-8b", {"num_experts", "vocab_size"}),
        (SPARSE.replace("topk 2", "topk 4"), "mixtral-8x7b", {"experts_per_token"}),
        (SPARSE.replace("14336", "28672"), "mixtral-8x7b", {"moe_intermediate_size"}),
        (f"{SPARSE} --mtp-num-layers 1", "mixtral-8x7b", {"mtp_layers"}),
        (f"{SPARSE} --kv-channels 64", "mixtral-8x7b", {"head_dim"}),
        (
            SPARSE.replace("--num-experts 8 --moe-router-topk 2", ""),
            "mixtral-8x7b",
            {"num_experts"},
        ),
        (SPARSE, {"moe": {"num_experts": 16}}, {"num_experts"}),
        (SPARSE, {"vocab_size": 31990}, set()),
        (SPARSE, {"vocab_size": 128256}, {"vocab_size"}),
    ],
)
def test_a_model_has_the_counts_that_its_launch_has(
    asked: Any, flags: str, model: Any, counts: set[str]
) -> None:
    text = f"{flags} --vocab-size 32000"
    if not counts:
        asked("megatron", text, model=model)
        return
    found = faults(asked, "megatron", text, model=model)
    assert {value.partition(" = ")[0].removeprefix("model.") for value in found} == counts
    assert all("contradicts" in rule for rule in found.values())


def test_a_wrong_format_is_named(asked: Any) -> None:
    rule = faults(asked, "torchtitan", SPARSE)["torchtitan"]
    assert rule == "is not the format of these arguments, which look like megatron: give megatron"
