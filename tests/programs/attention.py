"""Self-attention with any number of heads, with its projections or without, on a mesh of its own."""

REPLICATED = "{sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}"


def attention(
    mesh: str, batch: int, length: int, heads: int, width: int, *, dtype: str = "f32", ends: str = ""
) -> str:
    """`heads` heads of `width` elements; `mesh` as in `"x"=8`, `ends` what stands at the activations that go in and out."""
    model = heads * width
    x, w = f"tensor<{batch}x{length}x{model}x{dtype}>", f"tensor<{model}x{model}x{dtype}>"
    split = f"tensor<{batch}x{length}x{heads}x{width}x{dtype}>"
    scores = f"tensor<{batch}x{heads}x{length}x{length}x{dtype}>"
    mixed = f"tensor<{batch}x{heads}x{length}x{width}x{dtype}>"
    project = f"contracting_dims = [2] x [0] : ({x}, {w}) -> {x}"
    return f"""sdy.mesh @mesh = <[{mesh}]>
    func.func @main(%x: {x} {ends}, %wq: {w}, %wk: {w}, %wv: {w}, %wo: {w}) -> ({x} {ends}) {{
      %q0 = stablehlo.dot_general %x, %wq, {project}
      %k0 = stablehlo.dot_general %x, %wk, {project}
      %v0 = stablehlo.dot_general %x, %wv, {project}
      %q = stablehlo.reshape %q0 : ({x}) -> {split}
      %k = stablehlo.reshape %k0 : ({x}) -> {split}
      %v = stablehlo.reshape %v0 : ({x}) -> {split}
      %s = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : ({split}, {split}) -> {scores}
      %p = stablehlo.tanh %s : {scores}
      %o = stablehlo.dot_general %p, %v, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1] : ({scores}, {split}) -> {mixed}
      %t = stablehlo.transpose %o, dims = [0, 2, 1, 3] : ({mixed}) -> {split}
      %f = stablehlo.reshape %t : ({split}) -> {x}
      %y = stablehlo.dot_general %f, %wo, {project}
      return %y : {x}
    }}"""


def heads_only(
    mesh: str, batch: int, length: int, heads: int, width: int, *, dtype: str = "f32", ends: str = ""
) -> str:
    """What lies between the projections: queries, keys and values come, and the result leaves, as [batch, length, heads * width]."""
    x = f"tensor<{batch}x{length}x{heads * width}x{dtype}>"
    lines = attention(mesh, batch, length, heads, width, dtype=dtype).splitlines()
    kept = [
        line
        for line in lines
        if "@main" not in line and not line.strip().startswith(("%q0", "%k0", "%v0", "%y"))
    ]
    kept.insert(
        1, f"    func.func @main(%q0: {x} {ends}, %k0: {x} {ends}, %v0: {x} {ends}) -> ({x} {ends}) {{"
    )
    return "\n".join(kept).replace("return %y", "return %f")
