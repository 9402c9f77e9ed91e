"""JSON Schemas: what they say of a value, and that they reach for nothing."""

from typing import Any

import pytest

from headwater.processors.json_schemas import JsonSchema, SchemaInvalid

ORDER = JsonSchema(
    {
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "string"}, "lines": {"items": {"type": "integer"}}},
    }
)


def test_a_value_that_fits_has_no_fault():
    assert ORDER.problem({"id": "a", "lines": [1, 2]}, "input") is None
    assert JsonSchema({}).problem(None, "input") is None


def test_a_fault_is_told_with_its_path():
    assert ORDER.problem({"lines": [1, "two"]}, "input") == (
        'input: "id" is a required property; input.lines[1]: "two" is not of type "integer"'
    )
    assert ORDER.problem([], "output") == 'output: [] is not of type "object"'


def test_many_faults_are_counted():
    fault = ORDER.problem({"id": "a", "lines": ["x"] * 100}, "state")
    assert fault is not None
    assert fault.endswith('state.lines[4]: "x" is not of type "integer"; and 95 more')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objct"},
        {"pattern": "("},
        {"$ref": "#/nowhere"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "https://example.com/order.json"},
    ],
)
def test_what_is_no_schema_by_itself_is_refused(schema: dict[str, object]):
    with pytest.raises(SchemaInvalid, match="expected a JSON Schema: "):
        JsonSchema(schema)


def doubling(keyword: str, levels: int) -> dict[str, Any]:
    """A schema in which each level refers twice to the next."""
    definitions = {f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": definitions | {f"a{levels}": {"type": "object"}}}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf", "prefixItems"])
@pytest.mark.parametrize("levels", [14, 40, 1_000])
def test_references_that_multiply_are_refused(keyword: str, levels: int):
    with pytest.raises(SchemaInvalid, match=r"expected (at most 10000 subschemas|references)"):
        JsonSchema(doubling(keyword, levels))
    assert JsonSchema(doubling(keyword, 4)).problem({}, "it") is None or keyword == "oneOf"


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": r"\p{L}{1000}"},
        {"pattern": r"((\w{1,100}){1,100}){1,100}"},
        {"properties": {f"p{n}": {"pattern": rf"^\p{{L}}{{60}}{n}$"} for n in range(500)}},
        {"patternProperties": {rf"^(\p{{L}}\d){{99}}{n}$": {} for n in range(500)}},
        {"enum": ["x" * 1_000] * 300},
    ],
)
def test_what_would_take_long_to_compile_is_refused(schema: dict[str, Any]):
    with pytest.raises(SchemaInvalid):
        JsonSchema(schema)


def test_a_schema_may_be_within_itself():
    node = {"type": "object", "properties": {"inner": {"$ref": "#"}, "n": {"type": "integer"}}}
    schema = JsonSchema(node)
    assert schema.problem({"inner": {"inner": {"n": 1}}}, "it") is None
    assert schema.problem({"inner": {"inner": {"n": "x"}}}, "it") == (
        'it.inner.inner.n: "x" is not of type "integer"'
    )
