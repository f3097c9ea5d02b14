"""Concatenations of few parts, which their readers make, and of many, whose parts are written into them."""

import pytest

from autoshard.program import Compiler, Program, build_program
from tests.mlir.modules import listed, main_of

TPU = Compiler(is_xla_tpu=True)
ROWS, NARROW = 32, 8


def type_of(*shape: int) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xbf16>"


def made(count: int, width: int = NARROW) -> list[str]:
    """As many products %p0, %p1, ... of `width` columns."""
    part, given = type_of(ROWS, width), f"({type_of(ROWS, 16)}, {type_of(16, width)})"
    return [
        f"%p{n} = stablehlo.dot_general %a, %w{n}, contracting_dims = [1] x [0] : {given} -> {part}"
        for n in range(count)
    ]


def joined(parts: list[str], name: str = "%c", widths: int = NARROW) -> str:
    types = ", ".join([type_of(ROWS, widths)] * len(parts))
    whole = type_of(ROWS, widths * len(parts))
    return f"{name} = stablehlo.concatenate {', '.join(parts)}, dim = 1 : ({types}) -> {whole}"


def product(name: str, operand: str, width: int) -> str:
    """Of all columns of that, with a weight of the arguments."""
    types = f"({type_of(ROWS, width)}, {type_of(width, 16)})"
    return f"{name} = stablehlo.dot_general {operand}, %v{width}, contracting_dims = [1] x [0] : {types} -> {type_of(ROWS, 16)}"


def built(lines: list[str], count: int, returned: str, type_: str, width: int = NARROW) -> Program:
    given = [f"%a: {type_of(ROWS, 16)}"]
    given += [f"%w{n}: {type_of(16, width)}" for n in range(count)]
    given += [f"%v{n * width}: {type_of(n * width, 16)}" for n in range(1, count + 1)]
    body = "\n".join([*lines, f"return {returned} : {type_}"])
    return build_program(listed(main_of(body, ", ".join(given), type_)), compiler=TPU)


def life_of(program: Program, number: int, name: str = "concatenate") -> tuple[int, int, bool]:
    """Of what the op of that name makes: from when until when, and whether it has a buffer."""
    ops = [op for op in program.listing.ops if op.name == f"stablehlo.{name}"]
    life = program.ample_lifetimes[ops[number].results[0]]
    return life.begin, life.end, life.is_own_buffer


ONE = type_of(ROWS, 16)
SMALL = [*made(2), joined(["%p0", "%p1"])]


def test_a_product_makes_what_it_reads_of_two_parts() -> None:
    program = built([*SMALL, product("%o", "%c", 2 * NARROW)], 2, "%o", ONE)
    assert not life_of(program, 0)[2]
    assert all(life_of(program, part, "dot_general")[1:] == (4, True) for part in range(2))


def test_elementwise_work_between_is_none_of_it_either() -> None:
    whole = type_of(ROWS, 2 * NARROW)
    work = [f"%t = stablehlo.maximum %c, %c : {whole}", product("%o", "%t", 2 * NARROW)]
    program = built([*SMALL, *work], 2, "%o", ONE)
    assert not life_of(program, 0)[2]
    assert not life_of(program, 0, "maximum")[2]


@pytest.mark.parametrize("kept", ["returned", "reshaped"])
def test_what_is_returned_or_reshaped_is_stored(kept: str) -> None:
    whole, flat = type_of(ROWS, 2 * NARROW), type_of(ROWS // 2, 2, 2 * NARROW)
    if kept == "returned":
        program = built([*SMALL, product("%o", "%c", 2 * NARROW)], 2, "%o, %c", f"{ONE}, {whole}")
    else:
        types = f"({flat}, {type_of(2 * NARROW, 16)})"
        reads = [
            f"%f = stablehlo.reshape %c : ({whole}) -> {flat}",
            f"%o = stablehlo.dot_general %f, %v{2 * NARROW}, contracting_dims = [2] x [0] : {types} -> {type_of(ROWS // 2, 2, 16)}",
        ]
        program = built([*SMALL, *reads], 2, "%o", type_of(ROWS // 2, 2, 16))
    assert life_of(program, 0)[2]


def test_rows_that_are_gathered_are_laid_out_anew() -> None:
    part, whole = type_of(ROWS, 16), type_of(ROWS, 32)
    gather = """dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
        index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>"""
    lines = f"""
      %p = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({part}, {type_of(16, 16)}) -> {part}
      %g = "stablehlo.gather"(%p, %i) <{{{gather}}}> : ({part}, tensor<{ROWS}x1xi32>) -> {part}
      %c = stablehlo.concatenate %p, %g, dim = 1 : ({part}, {part}) -> {whole}
      %o = stablehlo.dot_general %c, %v, contracting_dims = [1] x [0] : ({whole}, {type_of(32, 16)}) -> {part}
      return %o : {part}"""
    given = f"%a: {part}, %w: {type_of(16, 16)}, %v: {type_of(32, 16)}, %i: tensor<{ROWS}x1xi32>"
    program = build_program(listed(main_of(lines, given, part)), compiler=TPU)
    assert life_of(program, 0)[2]


def test_what_is_reshaped_behind_elementwise_work_is_stored() -> None:
    """Two products of 1024 columns, rectified and folded into rows of 4096: 0.86 GB where it has no buffer, 1.36 GB compiled."""
    whole, flat, half = type_of(ROWS, 16), type_of(ROWS // 2, 32), type_of(ROWS // 2, 16)
    reads = [
        f"%t = stablehlo.maximum %c, %c : {whole}",
        f"%f = stablehlo.reshape %t : ({whole}) -> {flat}",
        f"%o = stablehlo.dot_general %f, %u, contracting_dims = [1] x [0] : ({flat}, {type_of(32, 16)}) -> {half}",
    ]
    given = f"%a: {ONE}, %w0: {type_of(16, NARROW)}, %w1: {type_of(16, NARROW)}, %u: {type_of(32, 16)}"
    body = "\n".join([*SMALL, *reads, f"return %o : {half}"])
    program = build_program(listed(main_of(body, given, half)), compiler=TPU)
    assert life_of(program, 0)[2]


def test_a_returned_whole_is_there_from_the_start() -> None:
    wide = type_of(ROWS, 128)
    lines = [
        *made(1, 128),
        f"%q = stablehlo.dot_general %p0, %s, contracting_dims = [1] x [0] : ({wide}, {type_of(128, 128)}) -> {wide}",
        joined(["%p0", "%q"] * 3, widths=128),
    ]
    whole = type_of(ROWS, 768)
    given = f"%a: {ONE}, %w0: {type_of(16, 128)}, %s: {type_of(128, 128)}"
    program = build_program(
        listed(main_of("\n".join([*lines, f"return %c : {whole}"]), given, whole)), compiler=TPU
    )
    assert life_of(program, 0)[::2] == (0, True)


def test_what_is_joined_with_a_constant_alone_is_stored() -> None:
    """As padding is: it would be no more than another name of its one part."""
    lines = [
        *made(1),
        f"%ones = stablehlo.constant dense<1.0> : {type_of(ROWS, NARROW)}",
        joined(["%p0", "%ones"]),
        product("%o", "%c", 2 * NARROW),
    ]
    given = f"%a: {ONE}, %w0: {type_of(16, NARROW)}, %v16: {type_of(16, 16)}"
    program = build_program(
        listed(main_of("\n".join([*lines, f"return %o : {ONE}"]), given, ONE)), compiler=TPU
    )
    assert life_of(program, 0)[2]


@pytest.mark.parametrize("count", [4, 5])
def test_of_more_than_four_parts_the_whole_is_stored(count: int) -> None:
    names = [f"%p{n}" for n in range(count)]
    program = built([*made(count), joined(names), product("%o", "%c", count * NARROW)], count, "%o", ONE)
    assert life_of(program, 0)[2] is (count == 5)


def test_parts_of_parts_count() -> None:
    """One more part at a time, as in densely connected blocks: of three joined, of five stored."""
    lines, names = made(5), ["%p0"]
    for n in range(1, 5):
        before = ("%p0", NARROW) if n == 1 else (f"%c{n - 1}", n * NARROW)
        whole = type_of(ROWS, (n + 1) * NARROW)
        types = f"({type_of(ROWS, before[1])}, {type_of(ROWS, NARROW)})"
        lines.append(f"%c{n} = stablehlo.concatenate {before[0]}, %p{n}, dim = 1 : {types} -> {whole}")
        lines.append(product(f"%o{n}", f"%c{n}", (n + 1) * NARROW))
        names.append(f"%o{n}")
    returned = ", ".join(names[1:])
    program = built(lines, 5, returned, ", ".join([ONE] * 4))
    assert [life_of(program, n)[2] for n in range(4)] == [False, False, False, True]


@pytest.mark.parametrize("width", [NARROW, 128])
def test_parts_that_begin_with_a_tile_are_written_into_the_whole(width: int) -> None:
    """It is there from when the first of them is made; others are concatenated when all are there."""
    names = [f"%p{n}" for n in range(5)]
    lines = [*made(5, width), joined(names, widths=width), product("%o", "%c", 5 * width)]
    program = built(lines, 5, "%o", ONE, width)
    begin, _, is_stored = life_of(program, 0)
    assert is_stored
    assert begin == (0 if width == 128 else 5)
    assert [life_of(program, part, "dot_general")[2] for part in range(5)] == [width != 128] * 5


def test_a_part_that_something_else_reads_keeps_a_buffer_for_that() -> None:
    names = [f"%p{n}" for n in range(5)]
    lines = [
        *made(5, 128),
        product("%r", "%p1", 128),
        joined(names, widths=128),
        product("%o", "%c", 5 * 128),
    ]
    program = built(lines, 5, "%o, %r", f"{ONE}, {ONE}", 128)
    assert life_of(program, 1, "dot_general") == (1, 6, True)


def test_two_products_read_parts_as_stored() -> None:
    """What the parts are made of is not read in their place."""
    part = type_of(ROWS, NARROW)
    active = [f"%q{n} = stablehlo.maximum %p{n}, %p{n} : {part}" for n in range(2)]
    lines = [*made(2), *active, joined(["%q0", "%q1"]), product("%o", "%c", 2 * NARROW)]
    again = f"""%r = stablehlo.dot_general %c, %a, contracting_dims = [0] x [0] :
        ({type_of(ROWS, 2 * NARROW)}, {ONE}) -> {type_of(2 * NARROW, 16)}"""
    assert not life_of(built(lines, 2, "%o", ONE), 0, "maximum")[2]
    program = built([*lines, again], 2, "%o, %r", f"{ONE}, {type_of(2 * NARROW, 16)}")
    assert life_of(program, 0, "maximum")[2]
    assert not life_of(program, 0)[2]
    whole = type_of(ROWS, 2 * NARROW)
    squared = [*lines[:-1], f"%d = stablehlo.multiply %c, %c : {whole}", product("%o", "%d", 2 * NARROW)]
    assert not life_of(built(squared, 2, "%o", ONE), 0, "maximum")[2]


def test_other_compilers_store_it() -> None:
    lines = [*SMALL, product("%o", "%c", 2 * NARROW)]
    text = built(lines, 2, "%o", ONE).listing
    program = build_program(text, compiler=Compiler(is_xla_tpu=False))
    assert life_of(program, 0)[2]


IMAGE, WINDOW = (
    "tensor<{n}x4x4x32xbf16>",
    "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}",
)


def dense(images: int) -> Program:
    """Six convolutions in a row, the first five of which are put together, and all."""
    image, weights = IMAGE.format(n=images), "tensor<1x1x32x32xbf16>"
    lines = [
        f"%p{n} = stablehlo.convolution({f'%p{n - 1}' if n else '%x'}, %w) {WINDOW} : ({image}, {weights}) -> {image}"
        for n in range(6)
    ]
    wholes = [image.replace("x32x", f"x{32 * count}x") for count in (5, 6)]
    for name, whole, count in zip("ab", wholes, (5, 6), strict=True):
        parts, types = ", ".join(f"%p{n}" for n in range(count)), ", ".join([image] * count)
        lines.append(f"%{name} = stablehlo.concatenate {parts}, dim = 3 : ({types}) -> {whole}")
    lines.append(f"return %a, %b : {', '.join(wholes)}")
    return build_program(
        listed(main_of("\n".join(lines), f"%x: {image}, %w: {weights}", ", ".join(wholes))), compiler=TPU
    )


def test_few_images_lie_with_channels_minor_as_what_they_are_part_of() -> None:
    """Of 64 on a device; 128 fill the lanes themselves."""
    few, many = dense(64), dense(128)
    (part, *_) = (kernel.results[0] for kernel in few.kernels if kernel.shape.is_matmul)
    channels, images, is_ordered = few.minor_dims[part]
    assert (channels, images, is_ordered) == ((3,), (0,), True)
    assert not many.minor_dims[part][2]


@pytest.mark.parametrize(("width", "is_written"), [(32, True), (8, False), (128, False)])
def test_channels_that_are_joined_one_by_one_are_written_into_each_whole(
    width: int, is_written: bool
) -> None:
    """As keras builds DenseNet: the whole of five parts exists from the first part on. Parts of 8 channels begin with no tile, and
    where one has 128, channels are the lanes."""
    image, parts = "tensor<2048x4x4x{}xbf16>", 6
    lines, widths = list[str](), [width, *[32] * (parts - 1)]
    for number in range(parts):
        whole, before = sum(widths[:number]), sum(widths[: max(number - 1, 1)])
        if number > 1:
            types = f"({image.format(before)}, {image.format(32)}) -> {image.format(whole)}"
            lines.append(
                f"%c{number} = stablehlo.concatenate %c{number - 1}, %p{number - 1}, dim = 3 : {types}"
            )
        lines.append(
            f"%{'p' if number else 'c'}{number or 1} = stablehlo.convolution({f'%c{number}' if number else '%x'}, %w{number}) {WINDOW} : "
            f"({image.format(whole or 32)}, tensor<1x1x{whole or 32}x{widths[number]}xbf16>) -> {image.format(widths[number])}"
        )
    lines.append(f"return %p{parts - 1} : {image.format(32)}")
    weights = [f"%w{n}: tensor<1x1x{sum(widths[:n]) or 32}x{widths[n]}xbf16>" for n in range(parts)]
    module = main_of("\n".join(lines), ", ".join([f"%x: {image.format(32)}", *weights]), image.format(32))
    program = build_program(listed(module), compiler=TPU)
    begins = [
        program.lifetimes[kernel.results[0]].begin
        for kernel in program.kernels
        if kernel.shape.name == "stablehlo.concatenate" and not kernel.is_alias
    ]
    assert len(begins) == 1
    assert (begins[0] == 0) == is_written


def test_what_is_joined_with_itself_again_and_again_takes_no_longer_than_it_is_to_read() -> None:
    """Each level has twice the parts of the one before: 2^31 in all, of two tensors."""
    levels, lines = (
        30,
        ["%c0 = stablehlo.concatenate %a, %b, dim = 0 : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>"],
    )
    for level in range(1, levels + 1):
        before, after = f"tensor<{2**level}xf32>", f"tensor<{2 ** (level + 1)}xf32>"
        one = f"%c{level - 1}"
        lines.append(
            f"%c{level} = stablehlo.concatenate {one}, {one}, dim = 0 : ({before}, {before}) -> {after}"
        )
    whole = f"tensor<{2 ** (levels + 1)}xf32>"
    lines.append(f"return %c{levels} : {whole}")
    module = main_of("\n".join(lines), "%a: tensor<1xf32>, %b: tensor<1xf32>", whole)
    program = build_program(listed(module), compiler=TPU)
    assert len(program.kernels) == levels + 1


def test_few_images_stay_for_the_last_whole_that_they_are_in() -> None:
    """A concatenation of another is one of its parts: these are there until then, the inner one only for what else reads it."""
    image = IMAGE.format(n=64)
    wholes = {count: image.replace("x32x", f"x{32 * count}x") for count in range(2, 8)}
    lines = [f"%p0 = stablehlo.convolution(%x, %w1) {WINDOW} : ({image}, tensor<1x1x32x32xbf16>) -> {image}"]
    before, type_ = "%p0", image
    for count in range(1, 7):
        lines.append(
            f"%p{count} = stablehlo.convolution({before}, %w{count}) {WINDOW} : "
            f"({type_}, tensor<1x1x{32 * count}x32xbf16>) -> {image}"
        )
        whole = wholes[count + 1]
        lines.append(
            f"%c{count + 1} = stablehlo.concatenate {before}, %p{count}, dim = 3 : ({type_}, {image}) -> {whole}"
        )
        before, type_ = f"%c{count + 1}", whole
    lines.append(f"return {before} : {type_}")
    weights = [f"%w{n}: tensor<1x1x{32 * n}x32xbf16>" for n in range(1, 7)]
    module = main_of("\n".join(lines), ", ".join([f"%x: {image}", *weights]), type_)
    program = build_program(listed(module), compiler=TPU)
    stored = [k for k in program.kernels if k.shape.name == "stablehlo.concatenate" and not k.is_alias]
    parts = [k for k in program.kernels if k.shape.is_matmul]
    assert len(stored) >= 2 and len(parts) == 7
    last = stored[-1].time
    assert {program.lifetimes[part.results[0]].end for part in parts} == {last + 1}
    inner = program.lifetimes[stored[-2].results[0]]
    assert inner.end <= last
    orders = {program.minor_dims[part.results[0]] for part in parts}
    assert orders == {((3,), (0,), True)}  # as the wholes, whose channels are the lanes
