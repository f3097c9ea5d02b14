"""The last part of a language model's training step: a norm, logits in bfloat16, labels picked in float32, and what goes back."""

from tests.mlir.modules import one_a_row

ROWS, WIDTH, WORDS = 32768, 1024, 32000
ALL = '{"x", "y"}'
_LOGITS, _WIDE = (f"tensor<{ROWS}x{WORDS}x{dtype}>" for dtype in ("bf16", "f32"))
_X, _XF = (f"tensor<{ROWS}x{WIDTH}x{dtype}>" for dtype in ("bf16", "f32"))
_W, _BIAS, _SCALE = f"tensor<{WIDTH}x{WORDS}xbf16>", f"tensor<{WORDS}xf32>", f"tensor<{WIDTH}xf32>"
_ROW, _PICKED, _PLACES = f"tensor<{ROWS}xf32>", f"tensor<{ROWS}x1xf32>", f"tensor<{ROWS}x1x1xi32>"


def unembedding(
    *,
    are_words_split: bool = True,
    has_bias: bool = False,
    from_copy: bool = False,
    has_scale: bool = True,
    weighs_by_loss: bool = False,
) -> str:
    """Words over all devices, or rows and what is summed over them.

    from_copy: labels are picked from the logits in float32, else from their logarithms. has_scale: the norm is trained. weighs_by_loss:
    what goes back is scaled by what is picked, as where answers are compared.
    """
    rows, words = ("{}", ALL) if are_words_split else (ALL, "{}")
    held = f"[{{}}, {words}]" if are_words_split else f"[{{}}, {ALL}]"
    bias = f"""%nearly = stablehlo.dot_general %g, %wg, contracting_dims = [1] x [0] : ({_X}, {_W}) -> {_LOGITS}
        %narrow = stablehlo.convert %bias : ({_BIAS}) -> tensor<{WORDS}xbf16>
        %biases = stablehlo.broadcast_in_dim %narrow, dims = [1] : (tensor<{WORDS}xbf16>) -> {_LOGITS}
        %logits = stablehlo.add %nearly, %biases : {_LOGITS}"""
    bare = (
        f"%logits = stablehlo.dot_general %g, %wg, contracting_dims = [1] x [0] : ({_X}, {_W}) -> {_LOGITS}"
    )
    summed = f"""%broad = stablehlo.convert %back : ({_LOGITS}) -> {_WIDE}
        %wide_db = stablehlo.reduce(%broad init: %zero) applies stablehlo.add across dimensions = [0] : ({_WIDE}, tensor<f32>) -> {_BIAS}
        %narrow_db = stablehlo.convert %wide_db : ({_BIAS}) -> tensor<{WORDS}xbf16>
        %db = stablehlo.convert %narrow_db : (tensor<{WORDS}xbf16>) -> {_BIAS}"""
    scaled = f"""%products = stablehlo.multiply %wide_dh, %xf : {_XF}
        %ds = stablehlo.reduce(%products init: %zero) applies stablehlo.add across dimensions = [0] : ({_XF}, tensor<f32>) -> {_SCALE}"""

    weighed = f"""%losses = stablehlo.broadcast_in_dim %loss, dims = [] : (tensor<f32>) -> {_WIDE}
        %unweighed = stablehlo.subtract %shares, %hits : {_WIDE}
        %wide_back = stablehlo.multiply %unweighed, %losses : {_WIDE}"""

    def pick(source: str) -> str:
        return f"""%picked = "stablehlo.gather"({source}, %labels) <{{dimension_numbers = #stablehlo.gather<
          collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1],
          index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}}> : ({_WIDE}, {_PLACES}) -> {_PICKED}"""

    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%x: {_X} {{sdy.sharding = #sdy.sharding<@mesh, [{ALL}, {{}}]>}}, %scale: {_SCALE},
          %w: {_W} {{sdy.sharding = #sdy.sharding<@mesh, {held}>}}, %bias: {_BIAS}, %labels: {_PLACES})
          -> ({_W} {{sdy.sharding = #sdy.sharding<@mesh, {held}>}}, {_SCALE}, {_BIAS}, {_X}, tensor<f32>) {{
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %zeros = stablehlo.constant dense<0.0> : {_WIDE}
        %ones = stablehlo.constant dense<1.0> : {_PICKED}
        %xf = stablehlo.convert %x : ({_X}) -> {_XF}
        %scales = stablehlo.broadcast_in_dim %scale, dims = [1] : ({_SCALE}) -> {_XF}
        %hf = stablehlo.multiply %xf, %scales : {_XF}
        %h = stablehlo.convert %hf : ({_XF}) -> {_X}
        %g = sdy.sharding_constraint %h <@mesh, [{rows}, {{}}]> : {_X}
        %wg = sdy.sharding_constraint %w <@mesh, [{{}}, {words}]> : {_W}
        {bias if has_bias else bare}
        %wide = stablehlo.convert %logits : ({_LOGITS}) -> {_WIDE}
        {pick("%wide") if from_copy else ""}
        %max = stablehlo.reduce(%wide init: %low) applies stablehlo.maximum across dimensions = [1] : ({_WIDE}, tensor<f32>) -> {_ROW}
        %maxima = stablehlo.broadcast_in_dim %max, dims = [0] : ({_ROW}) -> {_WIDE}
        %shifted = stablehlo.subtract %wide, %maxima : {_WIDE}
        %exp = stablehlo.exponential %shifted : {_WIDE}
        %sum = stablehlo.reduce(%exp init: %zero) applies stablehlo.add across dimensions = [1] : ({_WIDE}, tensor<f32>) -> {_ROW}
        %log = stablehlo.log %sum : {_ROW}
        %logs = stablehlo.broadcast_in_dim %log, dims = [0] : ({_ROW}) -> {_WIDE}
        %logarithms = stablehlo.subtract %shifted, %logs : {_WIDE}
        {"" if from_copy else pick("%logarithms")}
        %loss = stablehlo.reduce(%picked init: %zero) applies stablehlo.add across dimensions = [0, 1]
          : ({_PICKED}, tensor<f32>) -> tensor<f32>
        %hits = {one_a_row("%zeros", "%labels", "%ones", (_WIDE, _PLACES, _PICKED), 2)}
        %counts = stablehlo.reduce(%hits init: %zero) applies stablehlo.add across dimensions = [1] : ({_WIDE}, tensor<f32>) -> {_ROW}
        %weights = stablehlo.divide %counts, %sum : {_ROW}
        %weighed = stablehlo.broadcast_in_dim %weights, dims = [0] : ({_ROW}) -> {_WIDE}
        %shares = stablehlo.multiply %weighed, %exp : {_WIDE}
        {weighed if weighs_by_loss else f"%wide_back = stablehlo.subtract %shares, %hits : {_WIDE}"}
        %back = stablehlo.convert %wide_back : ({_WIDE}) -> {_LOGITS}
        {summed if has_bias else f"%db = stablehlo.constant dense<0.0> : {_BIAS}"}
        %dw = stablehlo.dot_general %g, %back, contracting_dims = [0] x [0] : ({_X}, {_LOGITS}) -> {_W}
        %dh = stablehlo.dot_general %back, %wg, contracting_dims = [1] x [1] : ({_LOGITS}, {_W}) -> {_X}
        %cut = sdy.sharding_constraint %dh <@mesh, [{ALL}, {{}}]> : {_X}
        %wide_dh = stablehlo.convert %cut : ({_X}) -> {_XF}
        {scaled if has_scale else f"%ds = stablehlo.constant dense<0.0> : {_SCALE}"}
        %dxf = stablehlo.multiply %wide_dh, %scales : {_XF}
        %dx = stablehlo.convert %dxf : ({_XF}) -> {_X}
        return %dw, %ds, %db, %dx, %loss : {_W}, {_SCALE}, {_BIAS}, {_X}, tensor<f32>
      }}"""
