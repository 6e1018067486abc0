"""A real PostgreSQL for the tests, made of the binaries that Debian installs."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

_OPTIONS = "-c fsync=off -c full_page_writes=off -c listen_addresses=''"


def binaries() -> Path | None:
    """The folder of the newest release that is installed, if any is and somebody may run it."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name)
    )
    return found[-1] if found and _account() else None


def _account() -> str | None:
    """Who runs the server: PostgreSQL refuses to run as root."""
    if os.geteuid():
        return pwd.getpwuid(os.geteuid()).pw_name
    return next((user.pw_name for user in pwd.getpwall() if user.pw_name == "postgres"), None)


class Server:
    """A server whose data lie in a folder, and which listens on a socket there."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._account = _account()
        self._folder = folder
        self._data = folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        shutil.chown(folder, self._account)
        initialise = ["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8"]
        self._run("initdb", "-D", self._data, *initialise)

    def start(self) -> None:
        options = f"{_OPTIONS} -k {self._folder}"
        log = self._folder / "log"
        self._run("pg_ctl", "-D", self._data, "-w", "-o", options, "-l", log, "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", self._data, "-m", mode, "stop")

    def is_running(self) -> bool:
        """It ends by itself where it cannot write its log."""
        status = [self._programs / "pg_ctl", "-D", self._data, "status"]
        ended = subprocess.run(
            status, check=False, user=self._account, cwd=self._folder, stdout=subprocess.DEVNULL
        )
        return ended.returncode == 0

    def freeze(self) -> None:
        """All of its processes stand still, though their connections stay."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """To the postmaster and all that it has started."""
        postmaster = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for process in (postmaster, *map(int, children)):
            os.kill(process, number)

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._programs / program, *arguments]
        subprocess.run(
            command, check=True, user=self._account, cwd=self._folder, stdout=subprocess.DEVNULL
        )
