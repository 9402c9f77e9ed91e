"""JSON Schemas: what they say of a value, and that they reach for nothing."""

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
    assert ORDER.fault({"id": "a", "lines": [1, 2]}, "input") is None
    assert JsonSchema({}).fault(None, "input") is None


def test_a_fault_is_told_with_its_path():
    assert ORDER.fault({"lines": [1, "two"]}, "input") == (
        'input: "id" is a required property; input.lines[1]: "two" is not of type "integer"'
    )
    assert ORDER.fault([], "output") == 'output: [] is not of type "object"'


def test_many_faults_are_counted():
    fault = ORDER.fault({"id": "a", "lines": ["x"] * 100}, "state")
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
