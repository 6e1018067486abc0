"""A Slurm of one node with eight GPUs that do not exist, which runs as root on this machine."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import shardwright.hooks.slurm
from tests.paths import ROOT
from tests.shardwright.hooks.overhead import PATIENT_S

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "logger")
FILES = Path(shardwright.hooks.slurm.__file__).parent
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_START_S = 60.0
_BUDGETED = {"cli_filter.lua": "cli_filter.lua", "sbatch": "bin/sbatch-checked"}
"""The files that have the budget in them, and where they lie in the folder of a cluster."""
_BUDGET = re.compile(r"(BUDGET_S = |timeout -k 0\.1 |no answer within )2")
_FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}

_CONFIGURATION = """
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
# The node has fewer cores than this, and none of the GPUs.
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 RealMemory=1000 Gres=gpu:b300:8 State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES State=UP
CliFilterPlugins=cli_filter/lua
TaskProlog={folder}/task_prolog
EpilogSlurmctld={folder}/epilog_slurmctld
"""


def with_budget(name: str, budget_s: int) -> str:
    """Returns the text of one of the files with another budget."""
    return _BUDGET.sub(rf"\g<1>{budget_s}", (FILES / name).read_text())


def missing() -> str | None:
    """Returns what this machine lacks to run a Slurm; None where it has all."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=_PATH) is None]
    if absent:
        return f"needs {', '.join(absent)}: Debian's slurmctld, slurmd, slurm-client, munge"
    return None if os.geteuid() == 0 else "starts Slurm's daemons, which needs root"


class SlurmCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policy = folder / "hooks.toml"

    def configure(self, url: str, more: str = "", *, budget_s: int = PATIENT_S) -> None:
        """Says what the hooks are allowed, where they ask, and how long."""
        self.policy.write_text(f'url = "{url}"\nbudget_s = {budget_s}\n{more}')
        for name, place in _BUDGETED.items():
            (self.folder / place).write_text(with_budget(name, budget_s))

    def submit(
        self, script: str, *options: str, program: str = "sbatch"
    ) -> subprocess.CompletedProcess[str]:
        """Submits a script that lies in the folder, and returns how that ended."""
        path = self.folder / "job.sh"
        path.write_text(script)
        output = f"--output={self.folder}/job-%j.log"
        # Sites that use the wrapper have no filter.
        conf = "slurm.conf" if program == "sbatch" else "unfiltered.conf"
        return self.run(
            "env", f"SLURM_CONF={self.folder}/{conf}", program, output, *options, str(path)
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True
        )

    @property
    def environment(self) -> Mapping[str, str]:
        # Compiled files are kept, as where the package is installed.
        inherited = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        return {
            **inherited,
            "PATH": f"{self.folder}/bin:{_PATH}",
            "SLURM_CONF": f"{self.folder}/slurm.conf",
            "SHARDWRIGHT_HOOKS": str(self.policy),
        }

    def job(self, job_id: str) -> str:
        return self.run("scontrol", "show", "job", "-o", job_id).stdout

    def state(self, job_id: str) -> str:
        """The state of a job once it has ended. Raises TimeoutError where it does not end."""
        ends = time.monotonic() + _START_S
        while time.monotonic() < ends:
            state = self.job(job_id).partition("JobState=")[2].split(" ")[0]
            if state in _FINAL:
                return state
            time.sleep(0.2)
        raise TimeoutError(self.job(job_id))


@contextmanager
def cluster(folder: Path) -> Iterator[SlurmCluster]:
    """A Slurm whose node takes jobs, with the hooks as this package has them."""
    slurm = SlurmCluster(folder)
    _write_files(folder)
    slurm.configure("http://127.0.0.1:9")
    daemons = [
        ["munged", "--foreground", "--force", *_munge_options(folder)],
        ["slurmctld", "-D", "-f", f"{folder}/slurm.conf"],
        ["slurmd", "-D", "-f", f"{folder}/slurm.conf"],
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for daemon in daemons:
            with (folder / f"{daemon[0]}.out").open("wb") as out:
                started.append(
                    subprocess.Popen(daemon, env=slurm.environment, stdout=out, stderr=out)
                )
            time.sleep(1)  # each needs the one before
        _await_node(slurm)
        yield slurm
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=_START_S)


def _write_files(folder: Path) -> None:
    host = socket.gethostname().split(".")[0]
    ports = {"controller_port": _free_port(), "node_port": _free_port()}
    configuration = _CONFIGURATION.format(host=host, folder=folder, **ports)
    (folder / "slurm.conf").write_text(configuration)
    filtered = "CliFilterPlugins=cli_filter/lua\n"
    (folder / "unfiltered.conf").write_text(configuration.replace(filtered, ""))
    devices = ",".join(f"/dev/tty{number}" for number in range(1, 9))
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu Type=b300 File={devices}\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    for name in ("state", "spool", "bin"):
        (folder / name).mkdir()
    shutil.copy(FILES / "task_prolog", folder)
    # slurmctld hands its epilog no environment, and this machine has no settings in /etc.
    files = f"SHARDWRIGHT_HOOKS={folder}/hooks.toml SLURM_CONF={folder}/slurm.conf"
    here = f"export PATH={folder}/bin:$PATH {files}\n"
    epilog = (FILES / "epilog_slurmctld").read_text().replace("setsid", f"{here}setsid")
    (folder / "epilog_slurmctld").write_text(epilog)
    (folder / "epilog_slurmctld").chmod(0o755)
    hook = folder / "bin" / "shardwright-slurm"
    hook.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m shardwright.hooks.slurm "$@"\n'
    )
    hook.chmod(0o755)
    shutil.copy(FILES / "sbatch", folder / "bin" / "sbatch-checked")  # with its mode


def _munge_options(folder: Path) -> list[str]:
    return [
        f"--key-file={folder}/munge.key",
        f"--socket={folder}/munge.sock",
        f"--pid-file={folder}/munge.pid",
        f"--log-file={folder}/munge.log",
        f"--seed-file={folder}/munge.seed",
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_node(slurm: SlurmCluster) -> None:
    ends = time.monotonic() + _START_S
    while "idle" not in slurm.run("sinfo", "-h", "-o", "%T").stdout:
        if time.monotonic() > ends:
            log = (slurm.folder / "slurmctld.log").read_text()
            raise RuntimeError(f"the node takes no jobs: {log[-2000:]}")
        time.sleep(0.2)
