"""Random hardware, meshes and groups of axes: the one home of the Hypothesis strategies for cost models."""

from dataclasses import dataclass

from hypothesis import strategies as st

from costmodels import Communication, Hardware, load, names

from .synthetic import calibrated

HARDWARE = {name: load(name) for name in names()} | {
    f"calibrated-{name}": calibrated(name, noise=0.1) for name in ("h100", "tpu-v5e")
}
"""Those that are shipped, and two that were fitted to noisy measurements."""

amounts = st.integers(0, 10**11)
axis_sizes = st.sampled_from([1, 2, 3, 4, 6, 8, 16])
several_within_a_node = st.sampled_from([(2, 4), (4, 2), (2, 2, 2), (1, 8), (5, 1), (3, 2), (2, 3)])
within_a_node = st.just((8,)) | several_within_a_node


@dataclass(frozen=True)
class Placed:
    """A communication model with the mesh that it is for."""

    hardware: Hardware
    model: Communication
    mesh: list[tuple[str, int]]

    def size(self, axes: list[str]) -> int:
        """Devices of a group along `axes`."""
        size = 1
        for axis in axes:
            size *= dict(self.mesh)[axis]
        return size


@st.composite
def meshes(draw: st.DrawFn, hardware: Hardware, least: int) -> list[tuple[str, int]]:
    """Up to three axes and no fewer than `least` (1 or 2), within what one node holds where the profile has no network."""
    alone = within_a_node if least == 1 else several_within_a_node
    sizes = draw(st.lists(axis_sizes, min_size=least, max_size=3) if hardware.network else alone)
    cores = hardware.chip.devices_per_chip
    mesh = [(f"axis{index}", size) for index, size in enumerate(sizes)]
    if cores > 1:
        mesh.append(("core", cores))
    return mesh


@st.composite
def placed(draw: st.DrawFn, name: str, least: int = 1) -> Placed:
    """A random mesh of at least so many axes on the default topology of the hardware called `name`."""
    hardware = HARDWARE[name]
    mesh = draw(meshes(hardware, least))
    return Placed(hardware, hardware.place(mesh), mesh)


def groups(placed: Placed, least: int = 1) -> st.SearchStrategy[list[str]]:
    """`least` or more axes of the mesh."""
    return st.permutations([axis for axis, _ in placed.mesh]).flatmap(
        lambda axes: st.integers(least, len(axes)).map(lambda count: axes[:count])
    )
