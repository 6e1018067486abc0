"""Compile the cost model, so that a service that starts later need not.

`python -m service.tools.warm_up`
"""

from __future__ import annotations

import sys
import time

from models.search.warm_up import warm_up
from service.runtime.cost_model import compile_cost_model
from service.tools.progress_line import ProgressLine
from service.web.logs import configure_logs


def main() -> None:
    """Compiles the cost model, and shows the progress."""
    configure_logs("WARNING")
    began, line = time.monotonic(), ProgressLine(sys.stdout)
    compile_cost_model(warm_up, line.show)
    line.end(f"the cost model is compiled, after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
