"""The canonical text of JSON: the examples of RFC 8785."""

import json

import pytest

from headwater.processors.canonical_json import canonical_text


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("-0.0", "0"),
        ("5e-324", "5e-324"),
        ("-1.7976931348623157e308", "-1.7976931348623157e+308"),
        ("9007199254740992.0", "9007199254740992"),
        ("-9007199254740993", "-9007199254740992"),
        ("295147905179352825856.0", "295147905179352830000"),
        ("9.999999999999997e22", "9.999999999999997e+22"),
        ("100000000000000000000000", "1e+23"),
        ("1e23", "1e+23"),
        ("1.0000000000000001e23", "1.0000000000000001e+23"),
        ("999999999999999868928", "999999999999999900000"),
        ("1e21", "1e+21"),
        ("12345678901234567890", "12345678901234567000"),
        ("9.999999999999997e-7", "9.999999999999997e-7"),
        ("1e-6", "0.000001"),
        ("333333333.3333332", "333333333.3333332"),
        ("-0.0000033333333333333333", "-0.0000033333333333333333"),
        ("100", "100"),
        ("1.50", "1.5"),
        (
            '{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
            r'"string": "\u20ac$\u000F\u000aA\u0027\u0042\u0022\u005c\\\"\/",'
            '"literals": [null, true, false]}',
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}',
        ),
        (
            r'{"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\ud83d\ude00": 5,'
            r'"\u0080": 6, "\u00f6": 7}',
            '{"\\r":2,"1":4,"\u0080":6,"ö":7,"€":1,"😀":5,"\ufb33":3}',
        ),
    ],
)
def test_values_are_written_as_in_the_examples_of_the_standard(written: str, canonical: str):
    assert canonical_text(json.loads(written)) == canonical


def test_what_is_no_json_has_no_canonical_text():
    with pytest.raises(ValueError, match="a finite number"):
        canonical_text([float("nan")])
