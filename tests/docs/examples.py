"""Runs the examples of a page against a live service, in the order in which a reader meets them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from models.search.warm_up import warm_up
from service.app import create_app
from service.runtime.cost_model import compile_cost_model
from service.settings import Settings
from tests.docs.pages import Block
from tests.paths import ROOT
from tests.waiting import LONG_S

ADDRESS = "http://127.0.0.1:8000"
"""Where the pages say that the service listens."""
_START_S = LONG_S
_PAGE_S = 5 * LONG_S  # some forty commands, and a sweep whose processes let all others go first
_PRELUDE = "set -euo pipefail\n"


@contextmanager
def served(database_url: str, **settings: object) -> Iterator[str]:
    """The address of a service on a free port."""
    compile_cost_model(warm_up)
    app = create_app(Settings.model_validate({"database_url": database_url, **settings}))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    ends = time.monotonic() + _START_S
    while not server.started:
        if time.monotonic() > ends or not thread.is_alive():
            raise RuntimeError("the service did not start")
        time.sleep(0.01)
    try:
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join(_START_S)


def run(examples: Sequence[Block], address: str, database_url: str, folder: Path) -> list[str]:
    """What each example prints. One shell runs them all in `folder`, so that later ones may use the
    files and variables of earlier ones. Raises AssertionError where one fails."""
    outputs = [folder / f"output-{index}" for index in range(len(examples))]
    script = _PRELUDE + "".join(
        _step(example, output) for example, output in zip(examples, outputs, strict=True)
    )
    for output in outputs:
        output.unlink(missing_ok=True)
    here = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", script.replace(ADDRESS, address)],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SHARDWRIGHT_DATABASE_URL": database_url,
        },
        capture_output=True,
        text=True,
        timeout=_PAGE_S,
        check=False,
    )
    texts = [output.read_text() if output.exists() else "" for output in outputs]
    if done.returncode:
        reached = sum(output.exists() for output in outputs) - 1
        raise AssertionError(
            f"this example failed:\n{examples[reached].text}\n{texts[reached]}\n{done.stderr}"
        )
    return texts


def _step(example: Block, output: Path) -> str:
    text = example.text.replace(".venv/bin/python", sys.executable)
    if example.language == "python":
        text = f"python3 - <<'END_OF_EXAMPLE'\n{text}END_OF_EXAMPLE\n"
    return f"{{\n{text}}} > {output}\n"
