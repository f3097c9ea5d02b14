"""The network between nodes (GPUs) or slices (TPUs): the outer level of both communication models.

Every chip has its own share of the network, W bytes/ns, and all chips of a node use theirs at once. An all-to-all
over D nodes with S bytes a device takes S·(D-1)/(D·W) [1]. Latency grows with log2 D, as for trees.

[1] "How to Scale Your Model", chapter on GPUs: V·(D-1)/(D²·W_node), with V = S·g·D, W_node = g·W.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Network:
    """One device's share of the outer network."""

    bytes_per_ns: float
    latency_ns: float
    overhead_ns: float

    def fixed_ns(self, nodes: int) -> float:
        """Time before the first byte has reached all `nodes`."""
        return self.overhead_ns + self.latency_ns * math.log2(nodes)

    def exchange_ns_per_byte(self, nodes: int) -> float:
        """Of an all-to-all, per byte of one device's operand."""
        return (nodes - 1) / (nodes * self.bytes_per_ns)
