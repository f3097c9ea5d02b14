"""Programs of numpyro and jax-md, of kinds that the tables of this folder had not seen.

    python experiments/fidelity/zoo_science.py FOLDER [NAME...]

Lowered with jax 0.10.2, numpyro 0.22.0, jax-md 0.2.29 (Python 3.11, JAX_PLATFORMS=cpu).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import F32, I32, Program, lower

KEY = Shape((2,), jnp.uint32)


def ratings_scaled_svi() -> Program:
    """As `ratings_svi`, with the ratings scaled by hand: without the drawing of indices, which nothing reads."""
    return ratings_svi(drawn=False)


def ratings_svi(drawn: bool = True) -> Program:
    """Inference of numpyro: 4 million users and a million things of 32 factors with a normal each, 524288 ratings; float32, Adam."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(user: Any, thing: Any, rating: Any) -> None:
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        bias = numpyro.sample("bias", dist.Normal(0, 1).expand([1_048_576]).to_event(1))
        users = numpyro.sample("users", dist.Normal(0, 1).expand([4_194_304, 32]).to_event(2))
        things = numpyro.sample("things", dist.Normal(0, spread).expand([1_048_576, 32]).to_event(2))
        share = numpyro.handlers.scale(scale=100_000_000 / len(rating))
        plate = numpyro.plate("ratings", 100_000_000 if drawn else len(rating), subsample_size=len(rating))
        with plate if drawn else share:
            mean = (users[user] * things[thing]).sum(-1) + bias[thing]
            numpyro.sample("rating", dist.StudentT(4.0, mean, 1.0), obs=rating)

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(1e-3), Trace_ELBO())
    ids, ratings = Shape((524_288,), I32), Shape((524_288,), F32)
    key = jax.eval_shape(jax.random.PRNGKey, 0)
    state = jax.eval_shape(svi.init, key, ids, ids, ratings)

    def step(state: Any, user: Any, thing: Any, rating: Any) -> Any:
        state, loss = svi.update(state, user, thing, rating)
        return state, loss

    return step, (state, ids, ids, ratings), (0,)


def molecules_nve() -> Program:
    """Ten steps of jax-md's molecular dynamics: 4 million atoms with up to 96 neighbours each; float32."""
    from jax_md import energy, partition, simulate, space

    count, side = 4_194_304, 160.0
    displacement, shift = space.periodic(side)
    _, pairs = energy.lennard_jones_neighbor_list(displacement, side, r_cutoff=2.5, dr_threshold=0.3)
    starts, move = simulate.nve(pairs, shift, dt=1e-3)
    places = Shape((count, 3), F32)
    neighbors = Shape((count, 96), I32)

    def of(idx: Any) -> Any:
        return partition.NeighborList(
            idx=idx, reference_position=None, error=None, cell_list_capacity=None, max_occupancy=96,
            format=partition.Dense, cell_size=None, cell_list_fn=None, update_fn=None,
        )  # fmt: skip

    def start(key: Any, places: Any, idx: Any) -> Any:
        return starts(key, places, kT=1.0, neighbor=of(idx))

    state = jax.eval_shape(start, KEY, places, neighbors)

    def steps(state: Any, idx: Any) -> Any:
        return lax.fori_loop(0, 10, lambda _, state: move(state, neighbor=of(idx)), state)

    return steps, (state, neighbors), (0,)


PROGRAMS = (ratings_svi, ratings_scaled_svi, molecules_nve)

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
