"""Plans that every textbook on parallel training has, found with the textbook's figures.

Compute is always that of the same module in the size of one device's part, planned for one device; communication is written down as a
formula of costmodels. Every collective is priced as itself (`form="shardy"`).
"""

from collections import Counter

import costmodels
from autoshard import api
from autoshard.plans import Plan

DEVICES = 8
MESH = f'sdy.mesh @mesh = <["x"={DEVICES}]>'
ONE = 'sdy.mesh @mesh = <["x"=1]>'
X = costmodels.load("tpu-v5e").place([("x", DEVICES)])

WHOLE = "{sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}"
ROWS = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'


def planned(module: str, memory_bytes: int | None = None) -> Plan:
    plan = api.plan(
        module.encode(), hardware="tpu-v5e", memory_bytes=memory_bytes, time_limit_s=300, form="shardy"
    )
    assert plan.status == "optimal"
    return plan


def compute_of(module: str) -> int:
    """Step time on one device, which needs no communication."""
    plan = planned(module)
    assert plan.price.communication_ns == 0
    return plan.price.step_ns


def collectives(plan: Plan) -> Counter[tuple[str, int]]:
    """How often each kind runs with how many bytes; slices move nothing between devices."""
    found: Counter[tuple[str, int]] = Counter()
    for collective in plan.price.collectives:
        if collective.kind != "all_slice":
            found[collective.kind, collective.bytes] += collective.repeat
    return found


def shardings(plan: Plan) -> list[str]:
    return [argument.sharding for argument in plan.arguments]


def tensor(*shape: int, dtype: str = "f32") -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{dtype}>"


def dot(a: str, b: str, dims: str, types: tuple[str, str, str]) -> str:
    return f"stablehlo.dot_general {a}, {b}, {dims} : ({types[0]}, {types[1]}) -> {types[2]}"


def gradients(mesh: str, batch: int, width: int) -> str:
    """Gradients, wanted on every device, of two linear layers under a squared error."""
    x, w = tensor(batch, width), tensor(width, width)
    return f"""{mesh}
    func.func @main(%x: {x}, %w1: {w}, %w2: {w}, %t: {x}) -> ({w} {WHOLE}, {w} {WHOLE}) {{
      %h = {dot("%x", "%w1", "contracting_dims = [1] x [0]", (x, w, x))}
      %y = {dot("%h", "%w2", "contracting_dims = [1] x [0]", (x, w, x))}
      %e = stablehlo.subtract %y, %t : {x}
      %g2 = {dot("%h", "%e", "contracting_dims = [0] x [0]", (x, x, w))}
      %b = {dot("%e", "%w2", "contracting_dims = [1] x [1]", (x, w, x))}
      %g1 = {dot("%x", "%b", "contracting_dims = [0] x [0]", (x, x, w))}
      return %g1, %g2 : {w}, {w}
    }}"""


def test_data_parallel() -> None:
    """A small model with a large batch: the batch is split, and the gradients are summed.

    step = step of an eighth of the batch + 2 all-reduce(weight)
    """
    batch, width = 65536, 256
    weight = 4 * width * width
    plan = planned(gradients(MESH, batch, width))
    assert shardings(plan) == ['[{"x"}, {}]', "[{}, {}]", "[{}, {}]", '[{"x"}, {}]']
    assert collectives(plan) == {("all_reduce", weight): 2}
    local = compute_of(gradients(ONE, batch // DEVICES, width))
    assert plan.price.step_ns == local + 2 * X.all_reduce_ns(weight, ["x"])


def two_matmuls(mesh: str, batch: int, width: int, hidden: int) -> str:
    """`tanh(x @ w1) @ w2` on activations that every device has, before and after."""
    x, h = tensor(batch, width, dtype="bf16"), tensor(batch, hidden, dtype="bf16")
    w1, w2 = tensor(width, hidden, dtype="bf16"), tensor(hidden, width, dtype="bf16")
    return f"""{mesh}
    func.func @main(%x: {x} {WHOLE}, %w1: {w1}, %w2: {w2}) -> ({x} {WHOLE}) {{
      %h = {dot("%x", "%w1", "contracting_dims = [1] x [0]", (x, w1, h))}
      %a = stablehlo.tanh %h : {h}
      %y = {dot("%a", "%w2", "contracting_dims = [1] x [0]", (h, w2, x))}
      return %y : {x}
    }}"""


def test_megatron() -> None:
    """Two large matmuls on a small batch: the first by columns, the second by rows, one all-reduce of the activations.

    step = step of an eighth of the hidden units + all-reduce(activations)
    """
    batch, width, hidden = 128, 2048, 8192
    plan = planned(two_matmuls(MESH, batch, width, hidden))
    assert shardings(plan) == ["[{}, {}]", '[{}, {"x"}]', '[{"x"}, {}]']
    activations = 2 * batch * width
    assert collectives(plan) == {("all_reduce", activations): 1}
    local = compute_of(two_matmuls(ONE, batch, width, hidden // DEVICES))
    assert plan.price.step_ns == local + X.all_reduce_ns(activations, ["x"])


def training_step(layers: int, batch: int, width: int) -> str:
    """Gradient descent on so many linear layers, weights donated, the batch split over x."""
    x, w = tensor(batch, width), tensor(width, width)
    weights = ", ".join(f"%w{i}: {w} {{tf.aliasing_output = {i} : i32}}" for i in range(layers))
    inputs = ["%x", *(f"%h{i}" for i in range(layers))]
    body = [
        f"%h{i} = {dot(inputs[i], f'%w{i}', 'contracting_dims = [1] x [0]', (x, w, x))}"
        for i in range(layers)
    ]
    body.append(f"%e{layers - 1} = stablehlo.subtract {inputs[-1]}, %t : {x}")
    for i in reversed(range(layers)):
        body.append(f"%g{i} = {dot(inputs[i], f'%e{i}', 'contracting_dims = [0] x [0]', (x, x, w))}")
        if i:
            body.append(f"%e{i - 1} = {dot(f'%e{i}', f'%w{i}', 'contracting_dims = [1] x [1]', (x, w, x))}")
        body.append(f"%u{i} = stablehlo.subtract %w{i}, %g{i} : {w}")
    updated, types = ", ".join(f"%u{i}" for i in range(layers)), ", ".join([w] * layers)
    lines = "\n".join(body)
    return f"""{MESH}
    func.func @main({weights}, %x: {x} {ROWS}, %t: {x} {ROWS}) -> ({types}) {{
      {lines}
      return {updated} : {types}
    }}"""


def test_fully_sharded_data_parallel() -> None:
    """A budget that whole weights do not fit in: every weight is split, gathered where it is used, its gradient scattered.

    Without a budget it is gathered once for both uses.

    communication = L reduce-scatter(weight) + L all-gather(weight) forwards + (L - 1) all-gather(weight) backwards
    """
    layers, batch, width = 3, 16384, 1024
    module, weight = training_step(layers, batch, width), 4 * width * width
    unlimited = planned(module)
    smallest = planned_smallest(module)
    assert collectives(unlimited) == {("reduce_scatter", weight): layers, ("all_gather", weight): layers}
    plan = planned(module, memory_bytes=smallest)
    assert plan.fits
    for argument in plan.arguments[:layers]:
        assert argument.is_carried
        assert argument.bytes == weight // DEVICES
    assert collectives(plan) == {("reduce_scatter", weight): layers, ("all_gather", weight): 2 * layers - 1}
    scatters = layers * X.reduce_scatter_ns(weight, ["x"])
    gathers = (2 * layers - 1) * X.all_gather_ns(weight, ["x"])
    assert plan.price.communication_ns == scatters + gathers
    assert plan.price.step_ns > unlimited.price.step_ns


def planned_smallest(module: str) -> int:
    """The smallest peak of any plan: what is found where nothing fits."""
    plan = api.plan(module.encode(), memory_bytes=1, time_limit_s=300, form="shardy")
    assert plan.status == "infeasible"
    return plan.smallest_peak_bytes


def vocabulary(mesh: str, words: int, width: int, tokens: int) -> str:
    """Rows of a table looked up, and the sum of exp of their products with all rows: tied embedding and unembedding."""
    table, logits, x = tensor(words, width), tensor(tokens, words), tensor(tokens, width)
    ids, sums = tensor(tokens, 1, dtype="i32"), tensor(tokens)
    whole = "{sdy.sharding = #sdy.sharding<@mesh, [{}]>}"
    lookup = "#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>"
    return f"""{mesh}
    func.func @main(%table: {table}, %ids: {ids} {WHOLE}) -> ({sums} {whole}) {{
      %x = "stablehlo.gather"(%table, %ids) <{{dimension_numbers = {lookup}, slice_sizes = array<i64: 1, {width}>}}>
        : ({table}, {ids}) -> {x}
      %a = stablehlo.tanh %x : {x}
      %logits = {dot("%a", "%table", "contracting_dims = [1] x [1]", (x, table, logits))}
      %e = stablehlo.exponential %logits : {logits}
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %z = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
        : ({logits}, tensor<f32>) -> {sums}
      return %z : {sums}
    }}"""


def test_vocabulary_sharded() -> None:
    """A large tied embedding: the table is split by words; rows looked up and sums over the vocabulary are all-reduced.

    step = step of an eighth of the words + all-reduce(rows) + all-reduce(sums)
    """
    words, width, tokens = 65536, 1024, 256
    plan = planned(vocabulary(MESH, words, width, tokens))
    assert shardings(plan) == ['[{"x"}, {}]', "[{}, {}]"]
    rows, sums = 4 * tokens * width, 4 * tokens
    assert collectives(plan) == {("all_reduce", rows): 1, ("all_reduce", sums): 1}
    local = compute_of(vocabulary(ONE, words // DEVICES, width, tokens))
    assert plan.price.step_ns == local + X.all_reduce_ns(rows, ["x"]) + X.all_reduce_ns(sums, ["x"])


def experts(mesh: str, count: int, slots: int, width: int) -> str:
    """Each expert's matmul on its slots, which come and go split by slot."""
    x, w = tensor(count, slots, width), tensor(count, width, width)
    by_slot = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}'
    product = dot("%x", "%w", "batching_dims = [0] x [0], contracting_dims = [2] x [1]", (x, w, x))
    return f"""{mesh}
    func.func @main(%x: {x} {by_slot}, %w: {w}) -> ({x} {by_slot}) {{
      %y = {product}
      return %y : {x}
    }}"""


def test_expert_parallel() -> None:
    """Experts on devices of their own: tokens travel to them and back by all-to-all.

    step = step of an eighth of the experts + 2 all-to-all(slots of one device)
    """
    count, slots, width = 8, 1024, 4096
    here = 4 * count * slots * width // DEVICES
    weights = 4 * count * width * width
    plan = planned(experts(MESH, count, slots, width), memory_bytes=weights // 2)
    assert shardings(plan)[1] == '[{"x"}, {}, {}]'
    assert collectives(plan) == {("all_to_all", here): 2}
    local = compute_of(experts(ONE, count // DEVICES, slots, width))
    assert plan.price.step_ns == local + 2 * X.all_to_all_ns(here, ["x"])
