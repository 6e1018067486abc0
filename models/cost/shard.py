"""What one device works on: its part of a micro-batch and of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.columns import Array, Columns, SharedRows, all_distinct, distinct
from models.spec.layout import Layouts


@dataclass(frozen=True, slots=True)
class Shards(Columns):
    """`tokens` of a micro-batch that a device's cp rank holds, and how tp, ep and etp cut a layer;
    shape (n,)."""

    tokens: Array
    tp: Array
    sequence_parallel: Array
    ep: Array
    etp: Array

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def local_tokens(self) -> Array:
        """Tokens of which a device holds norms, residuals and routing."""
        return self.tokens / np.where(self.sequence_parallel, self.tp, 1)

    @classmethod
    def of(cls, layouts: Layouts, seq_len: int, *, shared: bool = True) -> SharedRows[Shards]:
        """Those of some layouts: alike where tokens and cuts are, whatever else differs."""
        x = layouts
        tokens, token_code = _tokens(x, seq_len)
        columns = (token_code, x.tp, x.sequence_parallel, x.ep, x.etp)
        first, code = distinct(*columns) if shared else all_distinct(len(x))
        one = cls(
            tokens[token_code[first]],
            x.tp[first],
            x.sequence_parallel[first],
            x.ep[first],
            x.etp[first],
        )
        return SharedRows(one, code)

    def bodies(self, *, shared: bool = True) -> SharedRows[Shards]:
        """Without the experts."""
        return self._alike(shared, self.tokens, self.tp, self.sequence_parallel)

    def experts(self, *, shared: bool = True) -> SharedRows[Shards]:
        """The experts only."""
        return self._alike(shared, self.local_tokens, self.ep, self.etp)

    def _alike(self, shared: bool, tokens: Array, *others: Array) -> SharedRows[Shards]:
        if not shared:
            return SharedRows(self, np.arange(len(self)))
        _, number = np.unique(tokens, return_inverse=True)
        first, code = distinct(number, *others)
        return SharedRows(self.take(first), code)


def _tokens(x: Layouts, seq_len: int) -> tuple[Array, Array]:
    """(distinct numbers of tokens of a micro-batch after cp, which of them each layout has)."""
    first, code = distinct(x.micro_batch, x.cp)
    tokens, of_pair = np.unique(x.micro_batch[first] * seq_len / x.cp[first], return_inverse=True)
    return tokens, of_pair[code]
