"""A component of torchx that checks a job as it is launched:

    torchx run -s slurm shardwright.hooks.torchx:torchrun -j 2x8 -h aws_p5.48xlarge --script t.py

It builds what `dist.torchrun` does. The line for people goes to standard error.
"""

# Without annotations from __future__: torchx reads the types of a component's options off them.
import shlex
import sys
from collections.abc import Mapping, Sequence

from torchx import specs
from torchx.components import dist

from shardwright.hooks.checking import check_job, check_request
from shardwright.hooks.finding import Finding
from shardwright.hooks.policy import HookPolicy
from shardwright.secrets import mask_items, mask_secrets


def torchrun(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = "",
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x2",
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    max_retries: int = 0,
) -> specs.AppDef:
    """Launches torchrun, as dist.torchrun does, once the job is checked.

    Args:
        script_args: arguments of the program
        script: the program that torchrun starts
        m: the module that torchrun starts
        image: image of the job
        name: name of the job
        h: a named resource, which takes the place of cpu, gpu and memMB
        cpu: CPUs of a replica
        gpu: GPUs of a replica
        memMB: memory of a replica in MB
        j: nodes x processes of a node, such as 2x8
        env: environment variables of the job
        mounts: what is mounted into the job
        max_retries: how often a scheduler may start the job again
    """
    policy = _policy()
    variables = dict(env or {})
    if policy is not None:
        program = ["-m", m] if m else [script or ""]
        finding = _check_launch(policy, [*program, *script_args], j, h, variables)
        line = finding.line("shardwright check")
        if line:
            sys.stderr.write(f"{line}\n")
        if finding.is_refused:
            raise ValueError(line)
        if policy.patch and finding.verdict is not None:
            variables = {**finding.variables(policy.service.url), **variables}
    image_option = {"image": image} if image else {}
    return dist.torchrun(
        *script_args,
        script=script,
        m=m,
        name=name,
        h=h,
        cpu=cpu,
        gpu=gpu,
        memMB=memMB,
        j=j,
        env=variables,
        mounts=mounts,
        max_retries=max_retries,
        **image_option,
    )


def _policy() -> HookPolicy | None:
    """Returns the administrator's policy. Prints the reason and returns None where it cannot be
    read, so that the job goes on."""
    try:
        return HookPolicy.read()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"shardwright: not checked, goes on unchanged: {error}\n")
        return None


def _check_launch(
    policy: HookPolicy, words: Sequence[str], j: str, h: str | None, env: Mapping[str, str]
) -> Finding:
    """Returns what a check finds of torchrun with these words. `j` is torchx's "NODESxPROCESSES",
    such as "2x8", and `h` names the resource of a node."""
    nodes, _, per_node = j.rpartition(":")[2].rpartition("x")
    sizes = [f"--nnodes={nodes or 1}", f"--nproc-per-node={per_node}"]
    words = [str(word) for word in mask_items(words)]
    launch = {
        "arguments": shlex.join(["torchrun", *sizes, *words]),
        "environment": {name: mask_secrets(value) for name, value in env.items()},
    }
    return check_job(policy, check_request(launch, chip=policy.chip_of([h]) or h))
