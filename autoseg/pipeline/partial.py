"""Parts of a config that give some settings; the others come from a protocol, a preset or a data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import Field, GetJsonSchemaHandler, create_model, model_serializer
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from autoseg.files import Part


class Partial(Part):
    """A part of a config with the keys of another model, none of them required and none with a default."""

    @model_serializer(mode="plain")
    def given(self) -> dict[str, Any]:
        """Return the keys that were given, and nothing for the others."""
        return {key: getattr(self, key) for key in type(self).model_fields if key in self.model_fields_set}


class Fillable:
    """Marks a key whose value may be {name} in the file; a `for` replaces it before the value is checked."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": r"^\{\w+\}$"}]}


Some = TypeVar("Some", bound=Partial)


def keys_of(model: type[Part], *marks: Any) -> Callable[[type[Some]], type[Some]]:
    """Give a `Partial` the keys of a model, beside those that it has itself.

    A value is checked by its key's type; `model`, made of all keys, checks the whole. `marks`, such as `Fillable()`,
    are added to the type of every key but plain text.

    >>> class Size(Part):
    ...     width: int
    ...     height: int = 1
    >>> @keys_of(Size)
    ... class SomeSize(Partial):
    ...     pass
    >>> SomeSize(height=3).model_dump(), SomeSize.model_json_schema()["properties"]["width"]
    ({'height': 3}, {'title': 'Width', 'type': 'integer'})
    """

    def add(some: type[Some]) -> type[Some]:
        fields: dict[str, Any] = {}
        for key, field in model.model_fields.items():
            if key in some.model_fields:
                continue
            # A default of None would be in the schema; that of a default factory is not.
            about = Field(default_factory=lambda: None, description=field.description)
            extra = () if field.annotation is str else marks
            fields[key] = Annotated[field.annotation, *field.metadata, *extra, about]
        return create_model(some.__name__, __base__=some, __module__=some.__module__, __doc__=some.__doc__, **fields)

    return add
