"""Features that --constraint of Slurm requires of every node."""

from __future__ import annotations

import pytest

from service.formats.shell.command import split_command
from service.formats.shell.features import required_features


@pytest.mark.parametrize(
    ("expression", "num_nodes", "features"),
    [
        ("h100", 16, ("h100",)),
        ("h100&ib", 16, ("h100", "ib")),
        ("h100,ib", None, ("h100", "ib")),
        ("[h100*4]", 4, ("h100",)),
        ("[h100*4]", None, ("h100",)),
        ("[h100*4]", 16, ()),
        ("[h100*4&ib*12]", 16, ()),
        ("h100|a100", 16, ()),
        ("[rack1|rack2]&h100", 16, ()),
        ("GPU_SKU:H100_SXM5", 2, ("H100_SXM5",)),
        ("(h100&ib)", 2, ("h100", "ib")),
        ("", 2, ()),
        ("&&*,4", 2, ()),
    ],
)
def test_features_are_those_that_every_node_has(
    expression: str, num_nodes: int | None, features: tuple[str, ...]
) -> None:
    assert required_features(expression, num_nodes) == features


@pytest.mark.parametrize(
    "script",
    [
        "#SBATCH -N 2 --gpus-per-node=8 --constraint=h100\nsrun torchrun --nnodes 2 a.py --x 1",
        "#SBATCH -N 2 --gpus-per-node=8\n#SBATCH -C 'h100'\nsrun torchrun --nnodes 2 a.py --x 1",
        "#SBATCH -N 2 --gpus-per-node=8 -C a100\nsrun -C h100 torchrun --nnodes 2 a.py --x 1",
        '#SBATCH -N 2 --gpus-per-node=8\n#SBATCH --constraint="[h100*2]"\nsrun python a.py',
    ],
)
def test_a_constraint_of_the_script_or_of_its_step_is_read(script: str) -> None:
    assert split_command(script).features == ("h100",)
