"""Values that pad the buffer whose name they change: products that are cut into heads.

What a matmul reads under another shape is stored as that matmul reads it (`minor.minor_dims`), from the beginning on. Of queries, keys and
values with 64 elements a head it pads these to 128 lanes, or the positions: none where there are 512 of them, 50 or 77 to 128. Seen in
what libtpu 0.0.51 compiles for v5e of CLIP and vision transformers: the buffers that a training step keeps are those of the padded shape.
"""

from collections.abc import Mapping, Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.lifetime import stored_bytes
from autoshard.program.records import Kernel, Lifetime, MinorDims


def padding_names(
    kernels: Sequence[Kernel],
    listing: Listing,
    dims: Mapping[int, MinorDims],
    lives: Mapping[int, Lifetime],
) -> frozenset[int]:
    """Names of another rank than their buffer has that matmuls read: of each buffer the one that is there longest."""
    behind: dict[int, int] = {}
    made = {value for kernel in kernels if not kernel.is_alias for value in kernel.results}
    longest: dict[int, int] = {}
    for kernel in kernels:
        if not kernel.is_alias or not kernel.results:
            continue
        (value,) = kernel.results
        alike = [
            use.value
            for use in kernel.uses
            if stored_bytes(listing, use.value) == stored_bytes(listing, value)
        ]
        if len(alike) != 1:
            continue
        buffer = behind[value] = behind.get(alike[0], alike[0])
        if (
            value in dims
            and buffer in made
            and value in lives
            and _rank(listing, value) != _rank(listing, buffer)
        ):
            best = longest.get(buffer)
            if best is None or lives[value].end > lives[best].end:
                longest[buffer] = value
    return frozenset(longest.values())


def _rank(listing: Listing, value: int) -> int:
    type_ = listing.values[value].type
    return type_.rank if type_ is not None else 0
