"""Which mesh is planned for where a module names several or writes them inside shardings, and what becomes of the others."""

import pytest

from autoshard.errors import AutoshardError
from autoshard.mlir.meshes import module_meshes
from autoshard.mlir.source import resolve_mesh, warnings_of_meshes
from tests.mlir.modules import read_text, source_of

TWO_AXES = 'sdy.mesh @a = <["x"=8]>\nsdy.mesh @b = <["y"=8]>'
TWO_ORDERS = 'sdy.mesh @a = <["x"=4]>\nsdy.mesh @b = <["x"=4], device_ids=[3, 2, 1, 0]>'
SMALL_AND_LARGE = (
    'sdy.mesh @one = <["a"=2]>\nsdy.mesh @two = <["b"=4]>\nsdy.mesh @same = <["c"=4]>\n'
    "sdy.mesh @device = <[], device_ids=[9]>\nsdy.mesh @empty = <[]>"
)
INLINED = 'mesh<["x"=4]>'
REVERSED = 'mesh<["x"=4], device_ids=[3, 2, 1, 0]>'


def module(meshes: str, argument: str = "", op: str = "") -> str:
    """A module whose argument and op have these shardings; the argument is on line 10, the op on line 11."""
    demand = f"{{sdy.sharding = #sdy.sharding<{argument}>}}" if argument else ""
    annotation = f"{{sdy.sharding = #sdy.sharding_per_value<[<{op}>]>}}" if op else ""
    padding = "\n" * (9 - meshes.count("\n"))
    return (
        f"{meshes}{padding}func.func @main(%a: tensor<8x16xf32> {demand}) -> tensor<8x16xf32> {{\n"
        f"%0 = stablehlo.abs %a {annotation} : tensor<8x16xf32>\n"
        "return %0 : tensor<8x16xf32> }"
    )


@pytest.mark.parametrize(
    ("meshes", "argument", "op", "axes", "chosen"),
    [
        ("", f'{INLINED}, [{{"x"}}, {{?}}]', "", None, '<["x"=4]> ()'),
        ("", "", f'{REVERSED}, [{{"x"}}, {{}}]', None, '<["x"=4]> (3, 2, 1, 0)'),
        ("", f'{INLINED}, [{{"x"}}, {{}}]', f'{INLINED}, [{{}}, {{"x"}}]', None, '<["x"=4]> ()'),
        ('sdy.mesh @m = <["x"=4]>', f'{INLINED}, [{{"x"}}, {{}}]', "", None, '<["x"=4]> ()'),
        ('sdy.mesh @m = <["x"=4]>', f'{REVERSED}, [{{"x"}}, {{}}]', "", None, '<["x"=4]> (3, 2, 1, 0)'),
        ('sdy.mesh @m = <["x"=4]>', f'{REVERSED}, [{{"x"}}, {{}}]', "", [("x", 4)], '<["x"=4]> (3, 2, 1, 0)'),
        (TWO_AXES, '@b, [{"y"}, {}]', "", None, '<["y"=8]> ()'),
        (TWO_AXES, "", '@a, [{"x"}, {}]', None, '<["x"=8]> ()'),
        (TWO_AXES, "", "", [("y", 8)], '<["y"=8]> ()'),
        (TWO_AXES, "", "", None, '<["x"=8]> ()'),
        (SMALL_AND_LARGE, "", "", None, '<["b"=4]> ()'),
        (SMALL_AND_LARGE, "", "", [("a", 2)], '<["a"=2]> ()'),
        (SMALL_AND_LARGE, '@one, [{"a"}, {}]', "", None, '<["a"=2]> ()'),
        (TWO_AXES, '@a, [{"x"}, {}]', '@b, [{}, {"y"}]', None, '<["x"=8]> ()'),
        (TWO_AXES, '@a, [{"x"}, {}]', '@b, [{}, {"y"}]', [("y", 8)], '<["y"=8]> ()'),
        (TWO_ORDERS, '@b, [{"x"}, {}]', '@b, [{}, {"x"}]', None, '<["x"=4]> (3, 2, 1, 0)'),
        (SMALL_AND_LARGE, "@empty, [{}, {}]", "", None, '<["b"=4]> ()'),
        (TWO_ORDERS, "", "", None, '<["x"=4]> ()'),
        (TWO_ORDERS, '@b, [{"x"}, {}]', "", None, '<["x"=4]> (3, 2, 1, 0)'),
        (TWO_ORDERS, '@b, [{"x"}, {}]', "", [("x", 4)], '<["x"=4]> (3, 2, 1, 0)'),
        (
            'sdy.mesh @"my mesh" = <["x"=2]>\nsdy.mesh @b = <["y"=2]>',
            '@"my mesh", [{"x"}, {}]',
            "",
            None,
            '<["x"=2]> ()',
        ),
    ],
)
def test_the_mesh_that_the_shardings_are_on_is_planned_for(
    meshes: str, argument: str, op: str, axes: list[tuple[str, int]] | None, chosen: str
) -> None:
    """Device order included, and the listed module has the symbol."""
    text = module(meshes, argument, op)
    mesh = resolve_mesh(source_of(text), axes)
    assert f"{mesh} {mesh.device_ids}" == chosen
    _, listing, handles = read_text(text, axes)
    assert mesh in module_meshes(handles.walked.module)
    assert (listing.arguments[0].demand is not None) == bool(argument)


@pytest.mark.parametrize(
    ("meshes", "argument", "op", "axes", "reason"),
    [
        (
            SMALL_AND_LARGE, '@one, [{"a"}, {}]', '@two, [{}, {"b"}]', None,
            r'<bytes>:11: a sharding on mesh @two = <\["b"=4\]> in a plan for mesh @one = <\["a"=2\]>, which is over other devices',
        ),
        (SMALL_AND_LARGE, '@two, [{"b"}, {}]', "@device, []", None, r"<bytes>:11: a sharding on mesh @device = <\[\], device_ids=\[9\]>"),
        ("", f'{INLINED}, [{{"x"}}, {{}}]', "", [("x", 2)], r'--mesh <\["x"=2\]> is not the module\'s mesh mesh<\["x"=4\]>'),
        ("", 'mesh<["x"=4294967296]>, [{"x"}, {}]', "", None, "name at most 1048576 devices"),
        ("", "mesh<[]>, [{}, {}]", "", None, "neither the module nor the command names a mesh"),
    ],
)  # fmt: skip
def test_what_cannot_be_one_mesh_is_refused_as_the_user_wrote_it(
    meshes: str, argument: str, op: str, axes: list[tuple[str, int]] | None, reason: str
) -> None:
    with pytest.raises(AutoshardError, match=reason):
        resolve_mesh(source_of(module(meshes, argument, op)), axes)


def test_a_mesh_that_was_chosen_for_its_size_is_named_with_the_way_to_another() -> None:
    source = source_of(module(SMALL_AND_LARGE))
    (warning,) = warnings_of_meshes(source, resolve_mesh(source, None), is_asked=False)
    assert "@two, which has the most devices; another one is chosen with --mesh, as in --mesh a=2" in warning
    assert not warnings_of_meshes(source, resolve_mesh(source, [("a", 2)]), is_asked=True)


@pytest.mark.parametrize("empty", ["@empty", "mesh<[]>"])
def test_a_sharding_on_an_empty_mesh_is_replicated_where_it_is_closed(empty: str) -> None:
    meshes = 'sdy.mesh @empty = <[]>\nsdy.mesh @mesh = <["x"=4]>'
    _, listing, _ = read_text(module(meshes, f"{empty}, [{{}}, {{?}}]", f"{empty}, [{{}}, {{}}]"))
    assert str(listing.arguments[0].demand) == "[{}, {?}]"
    assert [str(op.demand) for op in listing.ops] == ["[{}, {}]"]


def test_the_users_mesh_takes_a_free_symbol() -> None:
    text = (
        module("", "", "")
        + "\nfunc.func private @mesh() { return }\nfunc.func private @autoshard_mesh() { return }"
    )
    assert resolve_mesh(source_of(text), [("x", 2)]).name == "autoshard_mesh1"


def test_size_one_axes_are_axes() -> None:
    mesh = resolve_mesh(source_of(module('sdy.mesh @m = <["o"=1, "x"=4]>', '@m, [{"o", "x"}, {?}]')), None)
    assert mesh.axis_names == ("o", "x")
