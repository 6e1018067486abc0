"""The array type of the models, and sums of arrays."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def total(arrays: Iterable[Array | float]) -> Array:
    """Element-wise sum; scalars and arrays mix."""
    return np.asarray(reduce(add, arrays, 0.0))
