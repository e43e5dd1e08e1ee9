"""Bad input is refused: tests look at the fields of the error, not at the wording of its sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autoseg.errors import InputError


@contextmanager
def refused(**fields: str) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Expect an InputError whose fields (where, what, expected, cure) contain these names, numbers or options."""
    with pytest.raises(InputError) as error:
        yield error
    for name, part in fields.items():
        assert part in getattr(error.value, name), error.value.problem
