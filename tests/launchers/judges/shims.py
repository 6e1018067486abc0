"""What stands in for hardware and libraries that a machine without accelerators has not.

Frameworks ask for them while they check a configuration. Every judge takes its shims from here, and
docs/launch.md lists them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

CAPABILITY = {
    "ampere": (8, 0),
    "ada": (8, 9),
    "hopper": (9, 0),
    "blackwell": (10, 0),
    "rubin": (10, 7),
}
"""The compute capability of the chips of a generation, as CUDA reports it."""
NAMES = {8: "NVIDIA A100", 9: "NVIDIA H100", 10: "NVIDIA B200"}
"""What CUDA calls chips of a major capability."""
TRANSFORMER_ENGINE = "2.14.0"
ABSENT = ("transformer_engine", "nvidia_resiliency_ext", "megatron.energon", "modelopt", "peft")
"""Libraries that Megatron-Bridge imports, and that are not installed."""


@dataclass(frozen=True)
class Shim:
    """One answer that a framework is given in place of the real one."""

    frameworks: str
    asks: str
    """What the framework asks for."""
    told: str
    """What it is told."""
    apply: Callable[[], None]


class _Absent(ModuleType):
    """A module of which anything can be imported, and nothing used."""

    __path__: list[str] = []
    __version__ = TRANSFORMER_ENGINE

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (), {}) if name[:1].isupper() else MagicMock(name=name)
        setattr(self, name, found)
        return found


def _capability(*_: object) -> tuple[int, int]:
    return CAPABILITY.get(os.environ["JUDGED_GENERATION"], CAPABILITY["hopper"])


def _device() -> None:
    import torch

    def properties(*_: object) -> SimpleNamespace:
        major, minor = _capability()
        return SimpleNamespace(major=major, minor=minor, name=NAMES[major])

    torch.cuda.get_device_capability = _capability
    torch.cuda.get_device_properties = properties


def _transformer_engine() -> None:
    import megatron.core.models.common.embeddings.rope_utils as rope_utils
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.utils
    from packaging.version import Version

    megatron.core.utils._te_version = Version(TRANSFORMER_ENGINE)
    for module in (rope_utils, moe_utils):
        for name in dir(module):
            if name.startswith("fused_") and getattr(module, name) is None:
                setattr(module, name, object())
    for name in ("", ".pytorch", ".pytorch.optimizers"):
        sys.modules[f"transformer_engine{name}"] = _Absent(f"transformer_engine{name}")
    sys.modules["transformer_engine.pytorch.optimizers"].FusedAdam = _FusedAdam


class _FusedAdam:
    def __init__(
        self,
        master_weight_dtype: object,
        exp_avg_dtype: object,
        exp_avg_sq_dtype: object,
        use_decoupled_grad: bool,
    ) -> None:
        raise NotImplementedError


JAX_DEVICES: list[Any] = []
"""Of the job at hand."""


def _jax_devices() -> None:
    import jax

    jax.devices = lambda *_: JAX_DEVICES


def _torchtitan() -> None:
    import torchtitan.distributed.parallel_dims
    from torchtitan.components.quantization import float8, mx, nvfp4

    sys.meta_path.insert(0, _AbsentModules("torchvision"))  # which multimodal models import
    torchtitan.distributed.parallel_dims.device_type = "cpu"
    for module in (float8, mx, nvfp4):
        module.has_cuda_capability = lambda major, minor: _capability() >= (major, minor)


def _process_group() -> None:
    """Register the backend "fake", whose collectives do nothing."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401


class _AbsentModules(MetaPathFinder, Loader):
    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{absent}.") for absent in self.names):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _bridge() -> None:
    """Megatron-Bridge imports the modules of all models with any of its own, and their libraries
    with these."""
    import megatron.core

    sys.meta_path.insert(0, _AbsentModules(*ABSENT))
    folder = Path(megatron.core.__file__).parents[1]
    for name in ("bridge", "bridge.models", "bridge.models.conversion", "bridge.recipes"):
        module = ModuleType(f"megatron.{name}")
        module.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[module.__name__] = module


def _current_device() -> None:
    import accelerate.utils.dataclasses
    import torch

    accelerate.utils.dataclasses.is_cuda_available = lambda *_, **__: True
    torch.cuda.current_device = lambda: 0


SHIMS = {
    "device": Shim(
        "Megatron-LM, Megatron-Bridge",
        "the compute capability and the name of the GPU",
        "those of the generation of the job's chip: 8.0, 8.9, 9.0 or 10.0",
        _device,
    ),
    "transformer_engine": Shim(
        "Megatron-LM, Megatron-Bridge",
        "the version of Transformer Engine, and whether it has FusedAdam and fused kernels for"
        " rotary embeddings and permutation",
        f"{TRANSFORMER_ENGINE}, and yes",
        _transformer_engine,
    ),
    "bridge": Shim(
        "Megatron-Bridge",
        f"{', '.join(f'`{name}`' for name in ABSENT)}, and the modules of every model",
        "that they are there, with anything in them; no models",
        _bridge,
    ),
    "current_device": Shim(
        "accelerate",
        "a device to load parameters to",
        "GPU 0",
        _current_device,
    ),
    "jax_devices": Shim(
        "MaxText",
        "the devices, and the processes that hold them (`skip_jax_distributed_system`)",
        "as many as the job has, at the coordinates of its slices; that this is all",
        _jax_devices,
    ),
    "torchtitan": Shim(
        "torchtitan",
        "the kind of device of its meshes, the compute capability for low precision, torchvision",
        "`cpu`, that of the generation of the job's chip, a module of which nothing can be used",
        _torchtitan,
    ),
    "process_group": Shim(
        "Megatron-LM, Megatron-Bridge, torchtitan, DeepSpeed",
        "a process group of all ranks",
        "PyTorch's `fake` backend, as rank 0 of a world of the job's size",
        _process_group,
    ),
}
