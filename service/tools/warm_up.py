"""Compile the cost model, so that a service that starts later need not.

`python -m service.tools.warm_up`
"""

from __future__ import annotations

from models.search.warm_up import warm_up
from service.runtime.cost_model import compile_cost_model
from service.web.logs import configure_logs


def main() -> None:
    configure_logs("INFO")
    compile_cost_model(warm_up)


if __name__ == "__main__":
    main()
