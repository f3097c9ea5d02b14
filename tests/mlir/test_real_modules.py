"""Programs of third-party packages, read whole; skipped where their folder is not beside the repository."""

import json
from pathlib import Path
from typing import Any

import pytest

from autoshard.mlir.listing import Listing
from autoshard.mlir.read import read
from autoshard.mlir.source import load, resolve_mesh
from autoshard.mlir.write import write
from tests.mlir.random_plan import random_decisions
from tests.mlir.test_write import count_after_insertion

NAMES = [
    "gpt2_medium_flax_decode",
    "llama3_8b_levanter_scan_flash_train",
    "gptoss_20b_keras_fwd",
    "meshgraphnet_jraph_scan_train",
    "resnet50_haiku_train",
    "vit_l16_flax_train",
]
AXES = [("data", 4), ("model", 4)]


def record(models: Path, name: str) -> dict[str, Any]:
    return next(one for one in json.loads((models / "index.json").read_text()) if one["name"] == name)


def listing_of(models: Path, name: str) -> Listing:
    source = load(models / f"{name}.mlir.gz")
    return read(source, resolve_mesh(source, AXES))[0]


@pytest.mark.parametrize("name", NAMES)
def test_names_types_and_sizes_are_those_on_record(name: str, shared: Path) -> None:
    models = shared / "models"
    listing = listing_of(models, name)
    meta = json.loads((models / "meta" / f"{name}.json").read_text())
    assert [argument.name for argument in listing.arguments] == meta["arg_names"]
    assert len(listing.results) == len(meta["out_names"])
    types = [listing.values[argument.value].type for argument in listing.arguments]
    assert sum(type_.num_bytes for type_ in types if type_ is not None) == record(models, name)["arg_bytes"]


@pytest.mark.parametrize("name", NAMES)
def test_every_ranked_value_of_every_op_has_a_rule(name: str, shared: Path) -> None:
    listing = listing_of(shared / "models", name)
    assert {op.name for op in listing.ops if op.rule is None} == set()


@pytest.mark.parametrize("name", NAMES[:4])
def test_a_random_plan_gains_no_reshard(name: str, shared: Path) -> None:
    source = load(shared / "models" / f"{name}.mlir.gz")
    listing, handles = read(source, resolve_mesh(source, AXES))
    written = write(source, handles, listing, random_decisions(listing, 0), "shardy")
    assert written.count("sdy.reshard ") == count_after_insertion(written) > 0
