"""Example requests that the OpenAPI document shows. A test sends every one of them."""

from __future__ import annotations

from typing import Any

from fastapi.openapi.models import Example

_LLAMA_ON_H100: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 64},
    "workload": {"seq_len": 8192, "global_batch": 128},
    "stack": "torchtitan",
}
_FSDP = {"dp_shard": 64, "zero_stage": 3, "recompute": "selective"}
_SHAPE: dict[str, Any] = {
    "name": "moe-30b",
    "num_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "moe": {"num_experts": 128, "experts_per_token": 8, "moe_intermediate_size": 768},
}
_LAYERS: dict[str, Any] = {
    "name": "hybrid-4b",
    "hidden_size": 2048,
    "vocab_size": 151936,
    "layers": [
        {
            "repeat": 12,
            "layers": [
                {
                    "count": 3,
                    "recurrence": {
                        "kind": "gated_delta_net",
                        "num_heads": 32,
                        "num_key_heads": 16,
                        "key_head_dim": 128,
                    },
                    "mlp": {"intermediate_size": 6144},
                },
                {
                    "attention": {
                        "num_attention_heads": 16,
                        "num_key_value_heads": 2,
                        "head_dim": 256,
                        "qk_norm": True,
                        "output_gate": "element",
                    },
                    "mlp": {"intermediate_size": 6144},
                },
            ],
        }
    ],
}
_LAYER_KINDS: dict[str, Any] = {
    "name": "hybrid-8b",
    "hidden_size": 4096,
    "vocab_size": 131072,
    "layers": [
        *["mamba", "mlp", "mamba", "mlp", "mamba", "mlp", "mamba", "attention", "mlp"],
        {"repeat": 4, "layers": [*["mamba", "mlp"] * 4, "mamba", "attention", "mlp"]},
    ],
    "layer_kinds": {
        "mamba": {
            "recurrence": {
                "kind": "mamba2",
                "num_heads": 128,
                "head_dim": 64,
                "state_size": 128,
                "num_groups": 8,
            }
        },
        "attention": {
            "attention": {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
        },
        "mlp": {"mlp": {"intermediate_size": 21504, "gated": False}},
    },
}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
_DEEPSPEED: dict[str, Any] = {
    "format": "deepspeed",
    "arguments": {
        "train_batch_size": 128,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW"},
    },
}
_DEEPSPEED_QUESTION: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100"},
    "workload": {"seq_len": 8192},
}
_LEVELS: dict[str, Any] = {
    "chip": "h200",
    "levels": [
        {"name": "nvlink", "size": 8, "gb_s_per_chip": 450},
        {"name": "leaf", "gb_s_per_chip": 50},
    ],
}

PREDICTIONS: dict[str, Example] = {
    "one layout": {"summary": "FSDP over 64 H100", "value": {**_LLAMA_ON_H100, "layout": _FSDP}},
    "several layouts": {
        "summary": "A config.json, and two layouts to compare",
        "value": {
            **_LLAMA_ON_H100,
            "model": CONFIG,
            "layouts": [
                _FSDP,
                {"dp_shard": 32, "tp": 2, "sequence_parallel": True, "zero_stage": 3},
            ],
        },
    },
    "launch": {
        "summary": "A DeepSpeed document, with what it does not say",
        "value": {"launch": _DEEPSPEED, **_DEEPSPEED_QUESTION},
    },
}
FRONTIERS: dict[str, Example] = {
    "bandwidth": {
        "summary": "Scale-out bandwidth from a quarter to four times",
        "value": {**_LLAMA_ON_H100, "grid": {"scale_out": [0.25, 1, 4]}},
    },
    "domains": {
        "summary": "Size of a scale-up domain, and bandwidth within",
        "value": {
            **_LLAMA_ON_H100,
            "grid": {"domain": [4, 8, 32], "scale_up": [0.5, 1]},
            "tolerance": 0.05,
        },
    },
}
COMPARISONS: dict[str, Example] = {
    "why not": {
        "summary": "Why not TP8, against the fastest?",
        "value": {**_LLAMA_ON_H100, "first": {"constraints": {"tp": 8}}},
    },
    "two layouts": {
        "summary": "FSDP against two pipeline stages",
        "value": {
            **_LLAMA_ON_H100,
            "first": {"layout": _FSDP},
            "second": {"layout": {"pp": 2, "dp_shard": 32}},
        },
    },
    "launch": {
        "summary": "A DeepSpeed document against the fastest layout",
        "value": {"first": {"launch": _DEEPSPEED}, **_DEEPSPEED_QUESTION},
    },
}
CHECKS: dict[str, Example] = {
    "layout": {
        "summary": "A layout that runs, against the best on the same chips",
        "value": {**_LLAMA_ON_H100, "layout": {"dp_shard": 8, "tp": 8, "zero_stage": 3}},
    },
    "launch": {
        "summary": "A job script as it was typed: it says all but the chips",
        "value": {
            "launch": {
                "format": "megatron",
                "arguments": (
                    "#SBATCH --nodes=16 --ntasks-per-node=8\n"
                    "srun python pretrain_gpt.py --num-layers 32 --hidden-size 4096"
                    " --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
                    " --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear"
                    " --untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 8192"
                    " --max-position-embeddings 8192 --tensor-model-parallel-size 8"
                    " --sequence-parallel --use-distributed-optimizer --micro-batch-size 1"
                    " --global-batch-size 256 --bf16"
                ),
            },
            "cluster": {"preset": "h100"},
        },
    },
}
RECOMMENDATIONS: dict[str, Example] = {
    "names": {"summary": "Everything by name", "value": _LLAMA_ON_H100},
    "own shape and links": {
        "summary": "A model and a cluster in explicit fields, without pipelining",
        "value": {
            "model": _SHAPE,
            "cluster": {**_LEVELS, "num_chips": 64},
            "workload": {
                "seq_len": 4096,
                "global_batch": 512,
                "precision": "fp8",
                "load_balancing": "bias",
            },
            "stack": {"name": "megatron", "max_virtual_stages": 4},
            "constraints": {"pp": 1, "tp": [1, 2, 4, 8], "memory_reserve_gib": 2},
            "tolerance": 0.05,
        },
    },
    "layers": {
        "summary": "A hybrid layer by layer: three of a gated delta net, then one of attention",
        "value": {**_LLAMA_ON_H100, "model": _LAYERS},
    },
}
REPORTS: dict[str, Example] = {
    "step time": {
        "summary": "What ran and how long a step took",
        "value": {
            **_LLAMA_ON_H100,
            "layout": _FSDP,
            "outcome": "ok",
            "measured": {"step_time_s": 3.1},
            "memory": {"reserved_gib": 61.5},
        },
    },
    "mfu": {
        "summary": "MFU with attention counted over the full sequence",
        "value": {
            **_LLAMA_ON_H100,
            "layout": _FSDP,
            "outcome": "ok",
            "measured": {"mfu": {"value": 0.41, "attention": "full", "peak_dtype": "bf16"}},
        },
    },
    "out of memory": {
        "summary": "A run that did not fit",
        "value": {
            **_LLAMA_ON_H100,
            "layout": {**_FSDP, "micro_batch": 2, "recompute": "none"},
            "outcome": "out_of_memory",
            "failure": {"stage": 0, "peak_gib": 79.1},
        },
    },
}
REPORTS["many"] = {
    "summary": "Many at once",
    "value": {
        "reports": [REPORTS["step time"]["value"], REPORTS["out of memory"]["value"]],
        "all_or_nothing": True,
    },
}
CALIBRATIONS: dict[str, Example] = {
    "all reports": {"summary": "Learn from everything, look before activating", "value": {}},
    "a month": {
        "summary": "Learn from a time span and activate",
        "value": {
            "since": "2020-01-01T00:00:00Z",
            "until": "2100-01-01T00:00:00Z",
            "activate": True,
        },
    },
}
REPLAYS: dict[str, Example] = {
    "newest": {"summary": "The newest answers and reports", "value": {"limit": 20}}
}
BENCHMARKS: dict[str, Example] = {
    "nccl-tests": {
        "summary": "An all-reduce over the eight chips of a node",
        "value": {
            "cluster": {"preset": "h100", "num_chips": 8},
            "operation": "all_reduce",
            "nccl_tests": (
                "#       size         count      type   redop    root     time   algbw   busbw"
                " #wrong\n     1048576        262144     float     sum      -1    36.81   28.49  "
                " 49.85      0\n  1073741824     268435456     float     sum      -1   4029.4 "
                " 266.48  466.33      0\n"
            ),
        },
    },
    "products": {
        "summary": "Matrix products on a chip",
        "value": {
            "cluster": {"preset": "h100"},
            "gemms": [{"m": 8192, "n": 8192, "k": 8192, "tflops": 690.0}],
            "precision": "bf16",
        },
    },
}
LOGS: dict[str, Example] = {
    "torchtitan": {
        "summary": "Lines of torchtitan, of a run that the request describes",
        "value": {
            **_LLAMA_ON_H100,
            "layout": _FSDP,
            "log": "".join(
                f"[rank0]:[titan] 2026-01-29 10:15:{second},145 - root - INFO - step: {step:2d} "
                f" loss:  9.3421  memory: 48.91GiB(51.52%)  tps: {tps}\n"
                for second, step, tps in ((32, 1, "512"), (45, 10, "7,034"), (58, 20, "7,022"))
            ),
        },
    }
}
EXPLANATIONS: dict[str, Example] = {
    "slow": {
        "summary": "A run that was slower than it should be",
        "value": {**_LLAMA_ON_H100, "layout": _FSDP, "measured": {"step_time_s": 3.1}},
    },
    "log": {
        "summary": "The log of a run that the request describes",
        "value": LOGS["torchtitan"]["value"],
    },
    "out of memory": {
        "summary": "A run that did not fit",
        "value": {
            **_LLAMA_ON_H100,
            "layout": {**_FSDP, "micro_batch": 2, "recompute": "none"},
            "outcome": "out_of_memory",
        },
    },
    "launch": {
        "summary": "A run by the configuration that started it",
        "value": {
            **_DEEPSPEED_QUESTION,
            "launch": _DEEPSPEED,
            "cluster": {"preset": "h100", "num_chips": 64},
            "measured": {"step_time_s": 3.4},
        },
    },
}
POLICIES: dict[str, Example] = {
    "automatic": {
        "summary": "Learn from every 200 reports, and promote what improves",
        "value": {"mode": "automatic", "margin": 0.01, "after_reports": 200},
    }
}
SWEEPS: dict[str, Example] = {
    "purchase": {
        "summary": "Two models on two clusters of three sizes",
        "value": {
            "models": ["llama-3.1-8b", "llama-3.1-70b"],
            "clusters": [
                {"preset": preset, "num_chips": num_chips}
                for preset in ("h100", "b200")
                for num_chips in (64, 128, 256)
            ],
            "workloads": [{"seq_len": 8192, "global_batch": 512}],
            "stacks": ["torchtitan"],
        },
    }
}
ETAGS: dict[str, Example] = {
    "as shipped": {"summary": "Of a profile that nobody has changed", "value": '"default-1"'}
}
CHIPS: dict[str, Example] = {
    "chip": {
        "summary": "A chip by its data sheet",
        "value": {
            "name": "example-accelerator",
            "chip": {
                "vendor": "example",
                "generation": "hopper",
                "peak_tflops": {"bf16": 800.0, "fp8": 1600.0},
                "memory_gb": 128,
                "usable_memory_gib": 118,
                "memory_bandwidth_gb_s": 4000,
                "scale_up": {"gb_s_per_chip": 450, "domain": 16},
                "scale_out_gb_s": 50,
                "usd_per_chip_hour": 2.1,
            },
        },
    }
}
CLUSTERS: dict[str, Example] = {
    "levels": {
        "summary": "Nested switches",
        "value": {"name": "example-cluster", "cluster": _LEVELS},
    },
    "torus": {
        "summary": "A torus",
        "value": {
            "name": "example-torus",
            "cluster": {
                "chip": "tpu-v5p",
                "torus": {
                    "ndim": 3,
                    "max_chips": 4096,
                    "gb_s_per_link": 90,
                    "wrap": "cubes",
                    "wrap_length": 4,
                },
                "num_chips": 512,
                "usd_per_chip_hour": 4.2,
            },
        },
    },
}
ARCHITECTURES: dict[str, Example] = {
    "shape": {"summary": "Explicit fields", "value": {"name": "example-moe", "model": _SHAPE}},
    "layers": {
        "summary": "A list of layers that have names",
        "value": {"name": "example-hybrid", "model": _LAYER_KINDS},
    },
    "config.json": {
        "summary": "A Hugging Face config",
        "value": {"name": "example-llama", "model": CONFIG},
    },
}
TICKETS: dict[str, Example] = {
    "reports": {"summary": "New reports", "value": {"stream": "/v1/reports/events"}}
}
