"""Statements of upstream's sharding dialect as text in MLIR's generic form, which parses without the dialect; line for line.

Only the three statements that carry demands are known: of a mesh, of a sharding and of a value that is sharded.
"""

import re

_SYMBOL = r'@(?:[\w$.-]+|"[^"\n]*")'
_VALUE = r"%[\w$.#-]+"
_ATTRIBUTES = r"(?P<attributes>\{[^\n]*?\})?"
_START = r"(?:^|\{)\s*"  # of a line or of a block
_MESH = re.compile(
    rf"(?P<indent>{_START})(?P<op>mesh\.mesh|shard\.grid)\s+(?P<symbol>{_SYMBOL})\s*\(\s*shape\s*=\s*(?P<shape>[\dx?]+)\s*\)\s*{_ATTRIBUTES}",
    re.MULTILINE,
)
_SHARDING = re.compile(
    rf"(?P<indent>{_START}{_VALUE}\s*=\s*)(?P<dialect>mesh|shard)\.sharding\s+(?P<symbol>{_SYMBOL})\s+split_axes\s*=\s*(?P<axes>\[\s*\[[^:]*?\]\s*\])"
    rf"(?P<options>[^:{{\n]*){_ATTRIBUTES}\s*:\s*!(?:mesh|shard)\.sharding",
    re.MULTILINE,
)
_SHARD = re.compile(
    rf"(?P<indent>{_START}{_VALUE}\s*=\s*)(?P<dialect>mesh|shard)\.shard\s+(?P<source>{_VALUE})\s+to\s+(?P<to>{_VALUE}|<[^>\n]*>)"
    rf"(?P<users>\s+annotate_for_users)?\s*{_ATTRIBUTES}\s*:\s*(?P<type>tensor<.*?>)(?=\s*$|\s+loc\(|\s*//)",
    re.MULTILINE,
)
_IS_UPSTREAM = re.compile(rf'{_START}"?(?:mesh\.mesh|shard\.grid)\b'.encode(), re.MULTILINE)


def is_upstream(data: bytes) -> bool:
    """Whether the text of a module has a mesh of upstream's."""
    return _IS_UPSTREAM.search(data) is not None


def as_generic(text: str) -> str:
    """The module with its meshes, shardings and sharded values in generic form; lines keep their numbers."""
    for statement, rewritten in ((_MESH, _mesh), (_SHARDING, _sharding), (_SHARD, _shard)):
        text = statement.sub(lambda found, rewritten=rewritten: _as_many_lines(found, rewritten(found)), text)
    return text


def _as_many_lines(found: re.Match[str], rewritten: str) -> str:
    indent = found["indent"]
    return indent + rewritten + "\n" * (found[0].count("\n") - indent.count("\n"))


def _mesh(found: re.Match[str]) -> str:
    sizes = ", ".join("-1" if size == "?" else size for size in found["shape"].split("x"))
    symbol = found["symbol"].removeprefix("@").strip('"')
    return _generic(found["op"], "", f'sym_name = "{symbol}", shape = array<i64: {sizes}>', found, "() -> ()")


def _sharding(found: re.Match[str]) -> str:
    options = re.sub(r"\s+", " ", found["options"]).strip().replace('"', "")
    dialect = found["dialect"]
    attributes = f'mesh = {found["symbol"]}, split_axes = "{_flat(found["axes"])}", options = "{options}"'
    return _generic(f"{dialect}.sharding", "", attributes, found, f"() -> !{dialect}.sharding")


def _shard(found: re.Match[str]) -> str:
    dialect, to, type_ = found["dialect"], found["to"], found["type"]
    flags = ["annotate_for_users"] if found["users"] else []
    if to.startswith("<"):
        operands, types = found["source"], type_
        flags.append(f"shard = #{dialect}.shard{to}")
    else:
        operands, types = f"{found['source']}, {to}", f"{type_}, !{dialect}.sharding"
    return _generic(f"{dialect}.shard", operands, ", ".join(flags), found, f"({types}) -> {type_}")


def _generic(op: str, operands: str, attributes: str, found: re.Match[str], types: str) -> str:
    written = (found["attributes"] or "").strip()[1:-1]
    both = ", ".join(filter(None, (attributes, written)))
    return f'"{op}"({operands}) {{{both}}} : {types}'


def _flat(text: str) -> str:
    return re.sub(r"\s+", "", text)
