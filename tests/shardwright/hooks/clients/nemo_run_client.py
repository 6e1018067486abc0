"""Adds a task with the plugin to an experiment of NeMo-Run and makes a dry run of it, from a script
within a git repository, as NeMo-Run wants it. Prints the batch script and what was said.

python nemo_run_client.py, with the script on standard input, in a folder of its own
"""

import contextlib
import io
import json
import os
import subprocess
import sys

os.environ["NEMORUN_HOME"] = os.getcwd()
subprocess.run(["git", "init", "-q"], check=True)
author = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
subprocess.run(["git", *author, "commit", "-q", "--allow-empty", "-m", "start"], check=True)

import nemo_run as run

from shardwright.hooks.nemo_run import Refused, ShardwrightPlugin

executor = run.SlurmExecutor(
    account="research",
    partition="train",
    nodes=1,
    ntasks_per_node=8,
    gpus_per_node=8,
    container_image="megatron",
    tunnel=run.LocalTunnel(job_dir=os.getcwd()),
)
task = run.Script(inline=sys.stdin.read())
said = io.StringIO()
printed = io.StringIO()
try:
    with (
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(printed),
        run.Experiment("llama") as experiment,
    ):
        plugin = ShardwrightPlugin(chip="b300")
        experiment.add(task, executor=executor, name="llama", plugins=[plugin])
        experiment.dryrun()
except Refused as refusal:
    print(json.dumps({"refusal": str(refusal)}))
else:
    print(json.dumps({"script": printed.getvalue(), "said": said.getvalue()}))
