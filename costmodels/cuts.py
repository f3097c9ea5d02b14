"""The time that an all-gather takes when links of several kinds are busy at once.

A group of N = Π nᵢ devices lies on parts i (the dimensions of a torus, a node, the network), along which a
device takes in bᵢ bytes/ns. Into a corner of any set of parts with n devices together have to come V·(n-1)/N bytes,
over the links of those parts. The greatest V·(n-1)/(N·Σb) over all sets is a lower bound; splitting the
data over the orders of the parts attains it nearly. One part: V·(n-1)/(n·b) [1]. All: V·(1-1/N)/Σb, which is
V/(k·W) on k equal dimensions [2]. The network alone: V·(D-1)/(D·g·b), g devices in each of D nodes [2].

[1] Chan et al., Collective communication: theory, practice, and experience, 2007.
[2] "How to Scale Your Model", chapters on sharded matrices and on GPUs. It takes the slower of node and network, as
    if the network never brought in what the node could; the bound is less by up to b_network/(Σb).
"""

import itertools
import math
from collections.abc import Sequence

Part = tuple[int, float]
"""Devices of the group along a part, and the bytes/ns that one of them takes in."""


def gather_ns_per_byte(parts: Sequence[Part]) -> float:
    """Time over bytes of the result; 0 for a group of one device."""
    size = math.prod(length for length, _ in parts)
    corners = (
        corner for count in range(1, len(parts) + 1) for corner in itertools.combinations(parts, count)
    )
    return max(
        (
            (math.prod(length for length, _ in corner) - 1) / (size * sum(rate for _, rate in corner))
            for corner in corners
        ),
        default=0.0,
    )
