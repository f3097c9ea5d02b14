"""Programs of a zoo of `experiments/fidelity` with a sixteenth of the batch, to fit on one device.

    python experiments/calibration/small_batch.py zoo_hub FOLDER NAME...

Abstract arguments in its text whose first dimension is the batch, the largest first dimension there, are cut. The
packages are those that the zoo's file names.
"""

import argparse
import gzip
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).parents[1] / "fidelity"))
_SHARE = 16


def _caller() -> str:
    """The function, named or one inside it, that calls what calls this."""
    frame = inspect.currentframe()
    outer = inspect.getouterframes(frame, 0)[2].frame
    return outer.f_code.co_qualname.partition(".")[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("zoo", help="a module of experiments/fidelity")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    zoo = importlib.import_module(options.zoo)
    for name in options.names:
        make = getattr(zoo, name)
        batch = max(int(size) for size in re.findall(r"Shape\(\((\d+),", inspect.getsource(make)))

        class Shape(jax.ShapeDtypeStruct):
            """Cut where the program itself says it, not in what it calls."""

            def __init__(
                self, sizes: tuple[int, ...], dtype: Any, batch: int = batch, name: str = name
            ) -> None:
                is_batch = sizes and sizes[0] == batch and _caller() == name
                super().__init__((max(batch // _SHARE, 1), *sizes[1:]) if is_batch else sizes, dtype)

        zoo.Shape = Shape
        function, arguments, donated = make()
        text = jax.jit(function, donate_argnums=donated).lower(*arguments).as_text()
        (options.folder / f"{name}_small.mlir.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{name}: batch {batch // _SHARE} of {batch}")


if __name__ == "__main__":
    main()
