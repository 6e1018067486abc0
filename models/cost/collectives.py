"""Collectives on nested levels and tori: α + bytes / bandwidth, per level.

Every collective costs a group so much a byte and so much before the first. Bytes are those of the
whole tensor a device ends up with (gather) or starts from (scatter, reduce). Sources: bandwidth
terms as in Thakur et al. 2005 (doi:10.1177/1094342005051521) per level; torus terms from the public
scaling book (jax-ml/scaling-book, sharding.md): an axis gathers at the sum of its link directions
and an all-to-all takes a quarter of a gather on a closed ring.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.columns import Array
from models.layouts.placement import Group
from models.spec.hardware import Dim
from models.spec.profile import Coefficients, Number

TREE_HOPS = 10.0
"""How many hops of a ring one pass over a tree costs for every doubling of nodes: 90 us were
measured there and back, where a hop takes 4.5 us."""
TREE_HOPS_INSIDE = 3.2
"""The same within a scale-up domain. NCCL's tuning.cc has a tree's hop 0.66 times as long as a
ring's there, and 2.1 times as long between nodes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a collective costs over each of n groups: seconds a byte, and seconds before the first
    byte; both of shape (n,)."""

    byte_s: Array
    latency_s: Array

    def take(self, rows: Array) -> Cost:
        return Cost(self.byte_s.take(rows), self.latency_s.take(rows))

    def least_of(self, choices: int, *, apart: int = 1) -> Cost:
        """The least of both costs among `choices` for each group, where the rows list all groups
        for the first choice, then for the second, and so on. `apart` such lists stay separate."""
        return Cost(
            *(
                v.reshape(apart, choices, -1).min(axis=1).ravel()
                for v in (self.byte_s, self.latency_s)
            )
        )

    def times(self, count: int) -> Cost:
        return Cost(np.tile(self.byte_s, count), np.tile(self.latency_s, count))

    def time(self, size: Array | float) -> Array:
        return np.asarray(size * self.byte_s + self.latency_s)


@dataclass(frozen=True, slots=True)
class Network:
    """A cluster's dims with achieved bandwidths and latencies."""

    dims: tuple[Dim, ...]
    c: Coefficients

    def gather(self, group: Group) -> Cost:
        """All-gather, or a reduce-scatter of the same size (its mirror image)."""
        return Cost(self._transfer(group), self._latency(group, self._ring(group)))

    def reduce(self, group: Group) -> Cost:
        """All-reduce: a reduce-scatter and a gather."""
        path = np.minimum(self._ring(group), self._tree(group))
        return Cost(2 * self._transfer(group), self._latency(group, 2 * path))

    def _transfer(self, group: Group) -> Array:
        """Seconds a byte of a gather.

        Switched levels carry rings. A ring passes on all but a member's own part over every link,
        and a domain has as many rings as members to leave it by, so the bus bandwidth of large
        messages does not depend on the number of nodes. Levels work at the same time on different
        pieces, so the slowest one counts.

        A torus gathers level by level: what enters a domain is all but the part already inside.
        What goes between slices is a collective of its own, before or after the one within them,
        so its time is added.
        """
        slowest: Array = np.zeros_like(group.degree)
        between: Array = np.zeros_like(group.degree)
        inside: Array = np.ones_like(group.members[0])
        beyond = group.degree
        stages = self._stages(group)
        within = len(stages) - (
            sum(dim.scale == "out" for dim in self.dims) if self._is_torus else 0
        )
        for number, (members, bandwidth) in enumerate(stages):
            missing = 1 - 1 / (beyond if self._is_torus else group.degree)
            seconds = np.where(members > 1, missing / (inside * bandwidth), 0.0)
            if number < within:
                slowest = np.maximum(slowest, seconds)
            else:
                between = between + seconds
            inside = inside * members
            beyond = beyond / members
        return slowest + between

    def all_to_all(self, group: Group, copies: list[Array] | None = None) -> Cost:
        """Every device sends its bytes, spread evenly over the group.

        Switched levels: the part that leaves a domain crosses its own NIC only (no aggregation),
        all of it crosses the innermost links. Ring dims: n/8 of the bytes per one-way link on a
        closed ring, n/4 on an open one. `copies[d]` scales what crosses dim d (tokens sent once to
        a domain instead of once to each expert).
        """
        degree = group.degree
        slowest: Array = np.zeros_like(degree)
        inside: Array = np.ones_like(group.members[0])
        for d, dim in enumerate(self.dims):
            members = group.members[d]
            sent = copies[d] if copies else 1.0
            rate = self._rate(dim) * self.c.alltoall
            if dim.kind == "ring":
                closed = dim.wraps & (members * group.stride[d] * self._below(d) == dim.domain)
                time = sent * members * group.stride[d] / (np.where(closed, 8, 4) * rate)
            else:
                if dim.peer_gb_s:
                    rate = rate * np.minimum((members - 1) * dim.peer_gb_s / dim.gb_s, 1.0)
                time = sent * (1 - inside / degree) / np.maximum(rate, 1.0)
            slowest = np.maximum(slowest, np.where(members > 1, time, 0.0))
            inside = inside * members
        return Cost(slowest, self._latency(group, self._tree(group)))

    def send(self, group: Group) -> Cost:
        """Point to point between neighbours of a group, over the slowest links any neighbours are
        joined by."""
        time, hop = np.zeros((2, len(group.degree)))
        for d, dim in enumerate(self.dims):
            rate = self._rate(dim) * (dim.peer_gb_s / dim.gb_s if dim.peer_gb_s else 1.0)
            seconds = self.c.scaleup_hop_s if dim.scale == "up" else self.c.scaleout_hop_s
            time = np.where(group.members[d] > 1, np.maximum(time, 1 / rate), time)
            hop = np.where(group.members[d] > 1, np.maximum(hop, seconds), hop)
        return Cost(time, hop)

    def _rate(self, dim: Dim) -> Number:
        return dim.gb_s * 1e9 * (self.c.scaleup if dim.scale == "up" else self.c.scaleout)

    def _below(self, d: int) -> int:
        return self.dims[d - 1].domain if d else 1

    def _stages(self, group: Group) -> list[tuple[Array, Array]]:
        """(members, bytes/s per device) per stage: each switched dim by itself, all ring dims as
        one."""
        stages: list[tuple[Array, Array]] = []
        ring_members, ring_rate = np.ones_like(group.members[0]), np.zeros_like(group.members[0])
        rings = [d for d, dim in enumerate(self.dims) if dim.kind == "ring"]
        for d, dim in enumerate(self.dims):
            members, rate = group.members[d], self._rate(dim)
            if dim.kind == "switch":
                if dim.peer_gb_s:
                    rate = rate * np.clip((members - 1) * dim.peer_gb_s / dim.gb_s, 1e-9, 1.0)
                stages.append((members, np.asarray(rate)))
                continue
            covers = members * group.stride[d] * self._below(d) == dim.domain
            directions = np.where(dim.wraps & covers, 2.0, 1.0) / group.stride[d]
            ring_members = ring_members * members
            ring_rate = ring_rate + np.where(members > 1, directions * rate, 0.0)
            if d == rings[-1]:
                stages.append((ring_members, np.where(ring_rate > 0, ring_rate, 1.0)))
        return stages

    def _latency(self, group: Group, path: Array) -> Array:
        """Seconds before the first byte: the fixed cost of a call and those of the `path`; 0 for a
        group of one."""
        return np.where(group.degree > 1, self.c.collective_s + path, 0.0)

    def _ring(self, group: Group) -> Array:
        """Once round a ring of the group: a message passes every member, over slow hops between
        domains and fast ones within; each a step of the ring, which takes what its network needs at
        least where it leaves a domain.

        NCCL src/graph/tuning.cc: (ranks - nodes) and (nodes - 1) hops, and a network's overhead in
        every step between nodes; it has no tree for gathers and scatters. The rings of a torus run
        at the same time, both ways round.
        """
        up, out = self._spread(group)
        if self._is_torus:
            return self._around(group) * self.c.scaleup_hop_s + (out - 1) * self.c.scaleout_hop_s
        step = np.where(out > 1, self.c.ring_step_s, 0.0)
        fast, slow = np.maximum(self.c.scaleup_hop_s, step), np.maximum(self.c.scaleout_hop_s, step)
        return (up - 1) * out * fast + (out - 1) * slow

    def _tree(self, group: Group) -> Array:
        """Down a tree: logarithmic between domains and within large ones, a chain within small
        ones."""
        up, out = self._spread(group)
        fast = (
            self._around(group)
            if self._is_torus
            else np.minimum(up - 1, TREE_HOPS_INSIDE * _doublings(up))
        )
        return fast * self.c.scaleup_hop_s + TREE_HOPS * _doublings(out) * self.c.scaleout_hop_s

    @property
    def _is_torus(self) -> bool:
        return any(dim.kind == "ring" for dim in self.dims)

    def _around(self, group: Group) -> Array:
        """Hops round the longest ring of a torus, half of them where it closes: messages go both
        ways."""
        hops = np.zeros_like(group.members[0])
        for d, dim in enumerate(self.dims):
            if dim.kind == "ring":
                hops = np.maximum(
                    hops, (group.members[d] - 1) * group.stride[d] / (2 if dim.wraps else 1)
                )
        return hops

    def _spread(self, group: Group) -> tuple[Array, Array]:
        """Members within a scale-up domain, and domains."""
        up, out = np.ones_like(group.members[0]), np.ones_like(group.members[0])
        for d, dim in enumerate(self.dims):
            if dim.scale == "up":
                up = up * group.members[d]
            else:
                out = out * group.members[d]
        return up, out

    def least_gather(self, group: Group) -> Cost:
        """What no group of so many devices beats, however its axes bend; `group` is as close as can
        be.

        On a torus what lies outside a package comes over the links of all its devices, or of the
        level above the torus. On switched levels that slow down outwards nothing is faster than
        close; on others everything comes over the links of some level, first of all.
        """
        degree, none = group.degree, np.zeros_like(group.degree)
        if self._is_torus:
            package = self.dims[0].domain if self.dims[0].kind == "switch" else 1
            rings = [d for d, dim in enumerate(self.dims) if dim.kind == "ring"]
            links = sum(self._rate(self.dims[d]) * (2 if self.dims[d].wraps else 1) for d in rings)
            fastest = max(
                float(np.max(rate))
                for rate in (links, *(self._rate(d) for d in self.dims[rings[-1] + 1 :]))
            )
            return Cost((1 - np.minimum(package, degree) / degree) / (package * fastest), none)
        if self._slows_outwards:
            return self.gather(group)
        return Cost(
            (1 - 1 / degree)
            / max((float(np.max(self._rate(dim))) for dim in self.dims), default=1.0),
            none,
        )

    def least_reduce(self, group: Group) -> Cost:
        """The same of an all-reduce: twice the bytes, and a call."""
        call = np.where(group.degree > 1, self.c.collective_s, 0.0)
        return Cost(2 * self.least_gather(group).byte_s, call)

    @property
    def _slows_outwards(self) -> bool:
        rates = [float(np.max(self._rate(dim))) for dim in self.dims]
        slower = all(inner >= outer for inner, outer in zip(rates, rates[1:], strict=False))
        hops = float(np.max(self.c.scaleout_hop_s)) >= float(np.max(self.c.scaleup_hop_s))
        return slower and hops and not any(dim.peer_gb_s for dim in self.dims)


def _doublings(members: Array) -> Array:
    return np.log2(np.maximum(members, 1.0))
