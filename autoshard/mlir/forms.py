"""The forms that a plan is written in, and whose prices count for each; loads no MLIR."""

from typing import Literal, get_args

Form = Literal["xla", "shardy", "shardy-collectives"]
FORMS: tuple[Form, ...] = get_args(Form)


def form_named(name: str) -> Form:
    return next(form for form in FORMS if form == name)
