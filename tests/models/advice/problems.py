"""Problems that the tests of advice have in common."""

from __future__ import annotations

from hypothesis import strategies as st

from models.spec import catalogue
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload

PROFILE = shipped_profile()


rows = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30
)


def llama(chips: int, global_batch: int, cluster: str = "h100") -> Problem:
    return Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster(cluster, chips),
        workload=Workload(seq_len=4096, global_batch=global_batch),
        stack=catalogue.stack("megatron"),
    )
