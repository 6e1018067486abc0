"""Launches a job by the component of torchx as far as the batch script of Slurm, which is what a
dry run prints, and prints that beside what the launch said.

python torchx_client.py, with the script's arguments on standard input
"""

import contextlib
import io
import json
import sys

from torchx.runner import get_runner

said = io.StringIO()
arguments = ["-j", "1x8", "-h", "aws_p5.48xlarge", "--script", "pretrain_gpt.py"]
words = [*arguments, "--", *sys.stdin.read().split()]
with contextlib.redirect_stderr(said), get_runner() as runner:
    try:
        information = runner.dryrun_component(
            "shardwright.hooks.torchx:torchrun", words, "slurm", {"partition": "train"}
        )
    except ValueError as refusal:
        print(json.dumps({"refusal": str(refusal)}))
        sys.exit()
print(json.dumps({"script": str(information), "said": said.getvalue()}))
