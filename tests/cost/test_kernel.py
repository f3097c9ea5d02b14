"""What kernels cost: rooflines on local shapes, and the collectives of their own."""

import numpy as np
import pytest

from autoshard import pipeline
from autoshard.check import Subject, check
from autoshard.cost import PricedGraph, read_back
from autoshard.pricing import price
from autoshard.problem import evaluate
from autoshard.space import Strategy
from costmodels import Communication
from tests.cost.priced import HARDWARE, loaded
from tests.space.test_strategies import WINDOW

M, K, N = 512, 1024, 2048
MATMUL = f"""
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%a: tensor<{M}x{K}xbf16>, %b: tensor<{K}x{N}xbf16>) -> tensor<{M}x{N}xbf16> {{
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<{M}x{K}xbf16>, tensor<{K}x{N}xbf16>) -> tensor<{M}x{N}xbf16>
    return %0 : tensor<{M}x{N}xbf16>
  }}"""


def kernel_prices(priced: PricedGraph) -> dict[tuple[str, ...], tuple[int, int]]:
    """(compute, own collectives) of the only kernel by what its strategy reads and leaves."""
    (space,) = priced.kernel_prices
    prices = priced.kernel_prices[space]
    return {
        _named(strategy): (int(compute), int(collectives))
        for strategy, compute, collectives in zip(
            space.strategies, prices.compute_ns, prices.collective_ns, strict=True
        )
    }


def _named(strategy: Strategy) -> tuple[str, ...]:
    return tuple(map(str, (*strategy.operands, *strategy.settled)))


def local_matmul(m: int, k: int, n: int) -> int:
    return HARDWARE.matmul_ns(m=m, k=k, n=n, dtype="bf16", bytes=2 * (m * k + k * n + m * n))


WHOLE, ROWS, COLUMNS = "[{}, {}]", '[{"x"}, {}]', '[{}, {"x"}]'


@pytest.mark.parametrize(
    ("shardings", "compute"),
    [
        ((WHOLE, WHOLE, WHOLE), local_matmul(M, K, N)),
        ((ROWS, WHOLE, ROWS), local_matmul(M // 4, K, N)),
        ((WHOLE, COLUMNS, COLUMNS), local_matmul(M, K, N // 4)),
        ((COLUMNS, ROWS, WHOLE), local_matmul(M, K // 4, N)),
        ((COLUMNS, ROWS, ROWS), local_matmul(M, K // 4, N)),
    ],
)
def test_matmul(shardings: tuple[str, ...], compute: int) -> None:
    """The local product, in every way to split it over one axis."""
    assert kernel_prices(loaded(MATMUL)[1])[shardings][0] == compute


def test_partial_sums() -> None:
    """Splitting what is summed costs an all-reduce of the result, or a reduce-scatter that is no dearer."""
    found, priced = loaded(MATMUL)
    communication: Communication = found.communication
    prices = kernel_prices(priced)
    assert prices[COLUMNS, ROWS, WHOLE][1] == communication.all_reduce_ns(2 * M * N, ["x"])
    for scattered in (ROWS, COLUMNS):
        assert 0 < prices[COLUMNS, ROWS, scattered][1] <= prices[COLUMNS, ROWS, WHOLE][1]
    assert prices[ROWS, WHOLE, ROWS][1] == 0


def test_padding_is_paid() -> None:
    """Five rows on four devices take as long as eight: two on each."""
    five, eight = (
        kernel_prices(loaded(MATMUL.replace(f"{M}x", f"{rows}x"))[1])[ROWS, WHOLE, ROWS][0] for rows in (5, 8)
    )
    assert five == eight


def test_halo() -> None:
    """A window split over space sends a row each way, a whole image none."""
    types = "tensor<4x8x8x4xf32>", "tensor<3x3x4x16xf32>", "tensor<4x8x8x16xf32>"
    text = f"""
      sdy.mesh @mesh = <["x"=2]>
      func.func @main(%a: {types[0]}, %k: {types[1]}) -> {types[2]} {{ {WINDOW} }}"""
    found, priced = loaded(text)
    (space,) = priced.kernel_prices
    row = 4 * (4 * 8 * 4)  # bytes of one row of all images and channels
    for strategy, own in zip(space.strategies, priced.kernel_prices[space].collectives, strict=True):
        exchanged = [c for c in own if c.kind == "halo_exchange"]
        is_split = any(strategy.operands[0].axes[dim] for dim in (1, 2))
        assert len(exchanged) == (2 if is_split else 0)
        for c in exchanged:
            assert c.bytes == row
            assert c.ns == found.communication.collective_permute_ns(row, ["x"])


def test_replicated_work_is_paid_in_full() -> None:
    """On more devices the whole product costs the same; only splitting it helps."""
    four = kernel_prices(loaded(MATMUL)[1])[WHOLE, WHOLE, WHOLE]
    two = kernel_prices(loaded(MATMUL.replace('"x"=4', '"x"=2'))[1])[WHOLE, WHOLE, WHOLE]
    assert four == two


def test_first_choice_is_the_kernel_alone() -> None:
    """Flows and hubs cost nothing: everything replicated costs the product."""
    _, priced = loaded(MATMUL)
    choice = [0] * priced.problem.node_count
    assert evaluate(priced.problem, choice).cost == local_matmul(M, K, N)
    assert read_back(priced, np.asarray(choice)).compute_ns == local_matmul(M, K, N)


@pytest.mark.parametrize(
    ("hardware", "are_all"), [("tpu-v5e", False), ("tpu-v5e:scheduler", True), ("h100", True)]
)
@pytest.mark.parametrize("is_of_weights", [False, True])
def test_ragged_products(*, is_of_weights: bool, hardware: str, are_all: bool) -> None:
    """Each row is multiplied by the matrix of its group alone; of all groups by the scheduler's estimate (Gemma 4's experts on v5e: 189.7
    TFLOP of products a device, 128 times what their rows ask for), and where a library multiplies."""
    groups, x = 8, f"tensor<{M}x{K}xbf16>"
    other = f"tensor<{M}x{N}xbf16>" if is_of_weights else f"tensor<{groups}x{K}x{N}xbf16>"
    made = f"tensor<{groups}x{K}x{N}xbf16>" if is_of_weights else f"tensor<{M}x{N}xbf16>"
    summed, of_groups = (0, "") if is_of_weights else (1, 0)
    text = f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: {x}, %b: {other}, %s: tensor<{groups}xi32>) -> {made} {{
        %0 = "chlo.ragged_dot"(%a, %b, %s) {{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [],
          rhs_batching_dimensions = [], lhs_contracting_dimensions = [{summed}], rhs_contracting_dimensions = [{summed}],
          lhs_ragged_dimensions = [0], rhs_group_dimensions = [{of_groups}]>}} : ({x}, {other}, tensor<{groups}xi32>) -> {made}
        return %0 : {made}
      }}"""
    found = pipeline.load_module(text.encode(), pipeline.Request(hardware=hardware, memory_bytes=None))
    (prices,) = price(found).kernel_prices.values()
    times = groups if are_all else 1
    m, k = (K, M) if is_of_weights else (M, K)
    bytes_ = 2 * (M * K + M * N + groups * K * N) + 4 * groups
    assert max(prices.compute_ns) == found.hardware.matmul_ns(
        m=m, k=times * k, n=N, dtype="bf16", bytes=bytes_
    )
    plan = pipeline.plan_loaded(found)
    assert check(Subject(found.program, found.hardware, found.communication), plan).passed
