"""The forms that a plan is written in, and whose prices count for each; loads no MLIR."""

from typing import Literal, get_args

from autoshard.errors import AutoshardError

Form = Literal["xla", "shardy", "shardy-collectives", "mesh", "mesh-20", "shard"]
UPSTREAM: tuple[Form, ...] = ("mesh", "mesh-20", "shard")
"""Those that have a text form only: the bindings do not know upstream's dialect."""
FORMS: tuple[Form, ...] = get_args(Form)


def form_named(name: str) -> Form:
    """Raises AutoshardError: there is none of that name."""
    for form in FORMS:
        if form == name:
            return form
    raise AutoshardError(f"no form is called {name!r}", fix=f"name one of {', '.join(FORMS)}")
