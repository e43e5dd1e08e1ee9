"""Searches: which curves to try next, what the trials scored, and which surrogate that selects.

Called as a function it runs one: `autoseg.search(train, metric="mIoU", steps=8, trials_per_step=16)`; see
`autoseg.search.notebook.search`.

Knows losses by their parameters only, and the small JSON files of a search. Does not know torch, data sets, or how a
trial is trained.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature

    from autoseg.search.notebook import SearchResult


class _Room(ModuleType):
    """A package that can be called.

    `autoseg.search` is both the name of this package and the best name of the function. A function of that name in
    `autoseg` would be overwritten by the first import of one of the modules here, so the package itself is called.
    """

    def __call__(self, *args: Any, **options: Any) -> SearchResult:
        """Search a loss for a metric; see `autoseg.search.notebook.search`, which this calls."""
        from autoseg.search.notebook import search

        return search(*args, **options)

    @property
    def __signature__(self) -> Signature:
        """The arguments, as notebooks show them."""
        import inspect

        from autoseg.search.notebook import search

        return inspect.signature(search)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """What the arguments are, before what the package is: `help(autoseg.search)`, and notebooks, show this."""
        import inspect

        from autoseg.search.notebook import search

        arguments = inspect.cleandoc(search.__doc__ or "").partition(">>>")[0]
        return f"{arguments}{vars(self)['__doc__']}"


sys.modules[__name__].__class__ = _Room
