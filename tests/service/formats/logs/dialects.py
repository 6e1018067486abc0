"""Lines as the frameworks print them, and the real logs that some checkouts have beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from statistics import fmean

import pytest

from service.formats.megatron.arguments import question
from tests.paths import SHARED

FOLDER = SHARED / "training_logs"


needs_folder = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="the collection of real training logs (shared/training_logs) is not beside the project",
)


def megatron(
    iteration: int, ms: object, loss: object = "7.9E+00", batch: int = 128, skipped: int = 0
) -> str:
    return (
        f" iteration {iteration:8d}/    1000 | consumed samples: {iteration * batch:12d} | elapsed"
        f" time per iteration (ms): {ms} | learning rate: 6.0E-05 | global batch size: {batch:5d} |"
        f" lm loss: {loss} | loss scale: 1.0 | grad norm: 1.040 | number of skipped iterations:"
        f" {skipped:3d} | number of nan iterations:   0 |"
    )


def torchtitan(step: int, tps: str, loss: object = 8.1423, memory: float = 30.99) -> str:
    return (
        f"[titan] 2025-06-04 08:52:21,904 - root - INFO - step: {step:2}  loss: {loss:>7}  "
        f"memory: {memory:5.2f}GiB(32.62%)  tps: {tps}  tflops: 406.23  mfu: 41.08%"
    )


def maxtext(step: int, seconds: object, loss: object = 9.774) -> str:
    return (
        f"completed step: {step}, seconds: {seconds}, TFLOP/s/device: 193.354, Tokens/s/device:"
        f" 4195.595, total_weights: 1572864, loss: {loss}"
    )


def dll(step: int, seconds: float, at: datetime) -> str:
    return (
        f"DLL {at.isoformat(' ', 'microseconds')} - {step} reduced_train_loss : 11.16  lr : 0.0 "
        f" global_step : {float(step)}  consumed_samples : 128.0  train_step_timing in s :"
        f" {seconds!r}  epoch : 0 "
    )


def bar(step: int, seconds: float, previous: float | None) -> str:
    """A progress bar that advances: drawn with the values of the step before, then with its own."""

    def drawn(index: int, value: float) -> str:
        values = (
            f"v_num=None, reduced_train_loss=11.20, global_step={index:.3f}, train_step_timing in"
            f" s={value:.3f}"
        )
        return f"Epoch 0: :   5%|▌         | {step + 1}/20 [00:44<14:12, {values}]"

    stale = "" if previous is None else drawn(step - 1, previous)
    return stale + drawn(step, seconds)


def nemo2(step: int, seconds: float) -> str:
    return (
        f"[default0]:Training epoch 0, iteration {step}/99 | lr: 1.5e-07 | global_batch_size: 128 |"
        f" global_step: {step} | reduced_train_loss: 11.03 | train_step_timing in s: {seconds:.4g}"
        f" | consumed_samples: {128 * step}"
    )


def means(times: Sequence[float], window: int) -> list[float]:
    return [fmean(times[max(0, end - window) : end]) for end in range(1, len(times) + 1)]


def dll_log(own: Sequence[float], window: int, first: int = 0) -> str:
    """What a timer with a buffer of `window` steps prints."""
    at, lines = datetime(2025, 6, 11, 1, 55), []
    for index, (mean, seconds) in enumerate(zip(means(own, window), own, strict=True)):
        at += timedelta(seconds=seconds + 0.003)
        lines.append(dll(first + index, mean, at))
    return text(lines)


def text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def sample(name: str, first: int = 1, last: int | None = None) -> str:
    return text((FOLDER / name).read_text().split("\n")[first - 1 : last])


def dump(**arguments: object) -> str:
    """As Megatron prints them."""
    lines = [
        f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(arguments.items())
    ]
    ruler = "------------------------ arguments ------------------------"
    return text([ruler, *lines, "-------------------- end of arguments ---------------------"])


COMMON = {
    "add_bias_linear": False, "add_qkv_bias": False, "bf16": True, "fp16": False, "fp8": None,
    "fp8_recipe": "delayed", "fp4": None, "optimizer": "adam", "exp_avg_dtype": "torch.float32",
    "exp_avg_sq_dtype": "torch.float32", "untie_embeddings_and_output_weights": True,
    "swiglu": True, "hybrid_override_pattern": None, "is_hybrid_model": False, "window_size": None,
    "recompute_method": None, "overlap_grad_reduce": True, "moe_router_force_load_balancing": False,
    "optimizer_cpu_offload": False, "context_parallel_size": 1,
    "pipeline_model_parallel_layout": None, "use_distributed_optimizer": True,
    "use_megatron_fsdp": False, "data_parallel_sharding_strategy": "optim_grads_params",
    "num_distributed_optimizer_instances": 1,
}  # fmt: skip


LLAMA = COMMON | {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
    "kv_channels": 128, "group_query_attention": True, "num_query_groups": 8,
    "padded_vocab_size": None, "vocab_size": 128256, "qk_layernorm": False, "num_experts": None,
    "moe_layer_freq": 1, "multi_latent_attention": False, "mtp_num_layers": None,
    "seq_length": 8192, "global_batch_size": 128, "micro_batch_size": 2,
    "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1,
    "expert_model_parallel_size": 1, "expert_tensor_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": None, "sequence_parallel": True,
    "data_parallel_size": 32, "world_size": 64, "recompute_granularity": None,
}  # fmt: skip


DEEPSEEK = COMMON | {
    "num_layers": 61, "hidden_size": 7168, "ffn_hidden_size": 18432, "num_attention_heads": 128,
    "kv_channels": 128, "group_query_attention": False, "num_query_groups": 1,
    "padded_vocab_size": 129280, "vocab_size": 129280, "qk_layernorm": True, "num_experts": 256,
    "moe_router_topk": 8, "moe_ffn_hidden_size": 2048, "moe_shared_expert_intermediate_size": 2048,
    "moe_layer_freq": "([0]*3+[1]*58)", "multi_latent_attention": True, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128,
    "mtp_num_layers": 1, "seq_length": 4096, "global_batch_size": 8192, "micro_batch_size": 1,
    "fp8": "e4m3", "fp8_recipe": "mxfp8", "exp_avg_dtype": "torch.bfloat16",
    "exp_avg_sq_dtype": "torch.bfloat16", "moe_router_force_load_balancing": True,
    "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 8,
    "virtual_pipeline_model_parallel_size": 4, "num_layers_per_virtual_pipeline_stage": None,
    "pipeline_model_parallel_layout": "Et*3|(tt|)*29,m|L", "expert_model_parallel_size": 64,
    "expert_tensor_parallel_size": 1, "sequence_parallel": True, "data_parallel_size": 64,
    "world_size": 1024, "recompute_granularity": "selective",
    "recompute_modules": "['mla_up_proj', 'mlp']",
}  # fmt: skip


def asked(**arguments: object) -> dict:
    return dict(question({name: str(value) for name, value in arguments.items()}))
