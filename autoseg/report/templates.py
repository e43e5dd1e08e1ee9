"""The HTML of tables and of the report: the templates in `assets/`, and how they write numbers and sentences."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: Any) -> str:
    """Return the page that a template makes of these values; every text is escaped."""
    return _environment().get_template(template).render(**values) + "\n"


@cache
def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "assets"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"prose": prose, "count": count, "duration": duration}
    return environment


def prose(text: object) -> Any:
    """Return a sentence in HTML, with what stands in backticks as code.

    >>> prose("run `a < b`")
    Markup('run <code>a &lt; b</code>')
    """
    from markupsafe import Markup, escape

    return Markup(re.sub("`(.+?)`", r"<code>\1</code>", str(escape(str(text)))))


def count(number: int, what: str) -> str:
    """Return a number of things.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def duration(hours: float) -> str:
    """Return a time to read.

    >>> duration(0.001), duration(0.5), duration(20)
    ('4 s', '30.0 min', '20.0 h')
    """
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min" if hours >= 1 / 60 else f"{3600 * hours:.0f} s"
