"""State that a step hands to the next one: which results become which arguments."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from autoshard.errors import AutoshardError
from autoshard.mlir.listing import Listing
from autoshard.program.groups import both
from autoshard.sharding import TensorSharding, TensorType


def donated_pairs(listing: Listing) -> tuple[tuple[int, int], ...]:
    """(result, argument) of every argument that is donated to a result, by argument.

    An argument that is donated to no result in particular (`jax.buffer_donor`, what JAX writes on a mesh where results have no sharding
    yet) is paired as JAX pairs those that it names: each result in order takes the first such argument of its type. Not where
    the user asks for two shardings that cannot be one. A buffer that is donated to a result of another type is no state.

    Raises:
        AutoshardError: an argument is donated to a result that does not exist.
    """
    pairs = {i: a.aliased_result for i, a in enumerate(listing.arguments) if a.aliased_result is not None}
    for number, result in pairs.items():
        if not 0 <= result < len(listing.results):
            raise AutoshardError(
                f"{listing.arguments[number].name} is donated to result {result}, the module has {len(listing.results)}, numbered from 0",
                where="tf.aliasing_output",
                fix="name a result of the function",
            )
    donors: defaultdict[TensorType | None, deque[int]] = defaultdict(deque)
    for number, argument in enumerate(listing.arguments):
        if argument.is_donated and number not in pairs:
            donors[listing.values[argument.value].type].append(number)
    taken = set(pairs.values())
    for number, result in enumerate(listing.results):
        waiting = donors[listing.values[result.value].type]
        if number not in taken and waiting:
            argument = waiting.popleft()
            if _may_be_one(listing.arguments[argument].demand, result.demand):
                pairs[argument] = number
    return tuple((r, a) for a, r in sorted(pairs.items()) if len(set(_types(listing, r, a))) == 1)


def _types(listing: Listing, result: int, argument: int) -> tuple[TensorType | None, TensorType | None]:
    return (
        listing.values[listing.results[result].value].type,
        listing.values[listing.arguments[argument].value].type,
    )


def _may_be_one(one: TensorSharding | None, other: TensorSharding | None) -> bool:
    return one is None or other is None or both(one, other) is not None


def carried_pairs(listing: Listing, carry: Sequence[tuple[int, int]] | None) -> tuple[tuple[int, int], ...]:
    """(result, argument) of all state, None being what is donated.

    Raises:
        AutoshardError: a pair that does not exist or whose types differ.
    """
    if carry is None:
        return donated_pairs(listing)
    seen: set[int] = set()
    for result, argument in carry:
        where = f"carry [{result}, {argument}]"
        if not 0 <= result < len(listing.results) or not 0 <= argument < len(listing.arguments):
            raise AutoshardError(
                f"the module has {len(listing.results)} results and {len(listing.arguments)} arguments, numbered from 0",
                where=where,
                fix="write pairs of [result index, argument index]",
            )
        if argument in seen:
            raise AutoshardError("this argument is fed by two results", where=where, fix="keep one of them")
        seen.add(argument)
        types = _types(listing, result, argument)
        if types[0] != types[1]:
            raise AutoshardError(
                f"result {listing.results[result].name} is {types[0]}, argument {listing.arguments[argument].name} is {types[1]}",
                where=where,
                fix="carried state has one type on both ends",
            )
    return tuple(carry)


def warnings_of_state(listing: Listing) -> tuple[str, ...]:
    """Of a module that donates nothing, though most of what it returns has the types of what it is given: a step written without
    donation, whose state would be planned as if it were thrown away."""
    if any(argument.is_donated for argument in listing.arguments):
        return ()
    given = Counter(listing.values[argument.value].type for argument in listing.arguments)
    results = [listing.values[result.value].type for result in listing.results]
    matched = sum(
        min(count, given[type_]) for type_, count in Counter(results).items() if type_ and type_.rank
    )
    if matched < 2 or 2 * matched < len(results):
        return ()
    return (
        f"no argument is donated, but {matched} of {len(results)} results have types of arguments: state that the next step gets back is "
        "planned as such only where it is donated (jax.jit(..., donate_argnums=...)) or named by --carry FILE.json; it may come out "
        "sharded in another way than it went in (--carry none says that nothing is carried)",
    )
