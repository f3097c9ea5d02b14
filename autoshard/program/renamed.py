"""Values that pad the buffer whose name they change: products that are cut into heads.

What a matmul reads under another shape is stored as that matmul reads it (`minor.minor_dims`), from the beginning on. Of queries, keys and
values with 64 elements a head it pads these to 128 lanes, or the positions: none where there are 512 of them, 50 or 77 to 128. Seen in
what libtpu 0.0.51 compiles for v5e of CLIP and vision transformers: the buffers that a training step keeps are those of the padded shape.
"""

from collections.abc import Iterator, Mapping, Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import is_elementwise
from autoshard.program.lifetime import has_buffer, stored_bytes
from autoshard.program.records import Kernel, Lifetime, MinorDims, Program

_WITHIN = frozenset({"stablehlo.pad", "stablehlo.slice"})


def padding_names(
    kernels: Sequence[Kernel],
    listing: Listing,
    dims: Mapping[int, MinorDims],
    lives: Mapping[int, Lifetime],
) -> frozenset[int]:
    """Names of another rank than their buffer has that matmuls read: of each buffer the one that is there longest."""
    longest: dict[int, int] = {}
    for value, buffer in _reshaped_names(kernels, listing):
        if value in dims and value in lives:
            best = longest.get(buffer)
            if best is None or lives[value].end > lives[best].end:
                longest[buffer] = value
    return frozenset(longest.values())


def padded_alike(
    kernels: Sequence[Kernel],
    listing: Listing,
    dims: Mapping[int, MinorDims],
    lives: Mapping[int, Lifetime],
) -> dict[int, int]:
    """Names of another rank whose buffer has two last dimensions as long, in either order: it lies so itself. With these buffers.

    So torch's batched products read queries, keys and quotients, the batch and the heads of which are one dimension.
    """
    found: dict[int, int] = {}
    for value, buffer in _reshaped_names(kernels, listing, lives):
        rank = _rank(listing, buffer)
        if value not in dims or rank < 2:
            continue
        *_, is_ordered = dims[value]
        sizes = _minor_sizes(listing, value, dims[value])
        if not is_ordered and sizes & _minor_sizes(listing, buffer, dims.get(buffer, last_two(rank))):
            found[value] = buffer
    return found


def last_two(rank: int) -> MinorDims:
    return (rank - 2,), (rank - 1,), False


def _reshaped_names(
    kernels: Sequence[Kernel], listing: Listing, lives: Mapping[int, Lifetime] | None = None
) -> Iterator[tuple[int, int]]:
    """Names of another rank than their buffer has, and that buffer: what `lives` has a buffer for, if given."""
    behind: dict[int, int] = {}
    made = {value for kernel in kernels if not kernel.is_alias for value in kernel.results}
    made |= {value for value, life in (lives or {}).items() if life.is_own_buffer}
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
        buffer = alike[0] if alike[0] in made else behind.get(alike[0], alike[0])
        behind[value] = buffer
        if buffer in made and _rank(listing, value) != _rank(listing, buffer):
            yield value, buffer


def _minor_sizes(listing: Listing, value: int, dims: MinorDims) -> frozenset[frozenset[int]]:
    """How long its two minor dimensions may be."""
    type_ = listing.values[value].type
    shape = type_.shape if type_ is not None else ()
    first, second, _ = dims
    return frozenset(frozenset((shape[i], shape[j])) for i in first for j in second if i != j)


def worked_on(kernels: Sequence[Kernel], listing: Listing, dims: Mapping[int, MinorDims]) -> dict[int, int]:
    """Names -> what they are made of element by element, as far as that leads to what a matrix unit laid out.

    Products pad and cut what they read, as they repeat elementwise work (a convnet of keras, whose images are padded by ops of their own).
    """
    found: dict[int, int] = {}
    made = {value for kernel in kernels if kernel.shape.is_matmul for value in kernel.results} & dims.keys()
    for kernel in kernels:
        op = listing.ops[kernel.time]
        if not kernel.is_alias or not (is_elementwise(op) or op.name in _WITHIN):
            continue
        result = kernel.shape.rule.results[0]
        operands = zip(kernel.uses, kernel.shape.rule.operands, strict=True)
        alike = (use.value for use, mapping in operands if mapping == result)
        known = next((value for value in alike if value in made or value in found), None)
        if known is not None:
            found[kernel.results[0]] = known
    return found


def lies_as_read(value: int, program: Program, lives: Mapping[int, Lifetime]) -> bool:
    """Whether a matrix unit wrote the buffer that a name is worked out from with the two minor dimensions that the name's readers ask for.

    Where the exponentials of a softmax are stored they are laid out for the products that read quotients of them, and the scores are
    not; where only the scores are stored, they lie so already.
    """
    buffer = value
    while buffer in program.worked_on and not has_buffer(buffer, lives):
        buffer = program.worked_on[buffer]
    wanted, made = program.minor_dims.get(value), program.minor_dims.get(buffer)
    if buffer == value or buffer in program.worked_on or wanted is None or made is None:
        return False
    return {wanted[:2], wanted[1::-1]} >= {made[:2]}


def _rank(listing: Listing, value: int) -> int:
    type_ = listing.values[value].type
    return type_.rank if type_ is not None else 0
