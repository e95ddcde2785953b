# SPDX-License-Identifier: Apache-2.0
"""Random CSV and JSON files of a few lines: mostly plain, with something odd now and then."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from volley.plan.types import (
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
    StructField,
    StructType,
)

TYPES: dict[str, DataType] = {
    "string": STRING,
    "int": INTEGER,
    "bigint": LONG,
    "tinyint": BYTE,
    "double": DOUBLE,
    "float": FLOAT,
    "boolean": BOOLEAN,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
    "decimal(5,2)": DecimalType(5, 2),
    "decimal(38,18)": DecimalType(38, 18),
    "decimal(10,0)": DecimalType(10, 0),
}
NESTED: dict[str, DataType] = {
    "struct<x:int,y:string>": StructType((StructField("x", INTEGER, True), StructField("y", STRING, True))),
    "array<bigint>": ArrayType(LONG, True),
    "array<struct<x:double>>": ArrayType(StructType((StructField("x", DOUBLE, True),)), True),
}
# The first four of each are plain.
_VALUES = {
    "string": (
        "a¦b c¦é¦😀¦ a¦a ¦'¦1¦null¦NULL¦-¦#¦\t¦\\¦a\\¦xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx¦\u2028¦"
        "\x0b¦\x1f¦\xa0¦\ufeff¦\x85¦\x7f¦a'b"
    ),
    "int": "0¦1¦-1¦2147483647¦-2147483648¦+1¦01¦2147483648¦1.0¦ 1¦1e2¦x¦٣¦-0",
    "bigint": "0¦-7¦9223372036854775807¦12¦9223372036854775808¦1L¦-0¦00",
    "tinyint": "1¦-128¦127¦0¦128¦-0",
    "double": (
        "0.1¦-0.0¦1e300¦7¦-0¦1e-320¦1e400¦-1e-400¦NaN¦Inf¦-Infinity¦1d¦.5¦5.¦0x1p3¦1e¦1e+5¦"
        "0.1000000000000000055511151231257827021181583404541015625¦9007199254740993¦"
        "2.2250738585072011e-308¦123456789012345678901234567890¦1.7976931348623159e308¦00.5¦1.e5"
    ),
    "float": "0.1¦1.5¦-2¦3¦16777217¦1e-46¦3.4028236e38¦-Inf¦1f¦1.00000017881393432617187499",
    "boolean": "true¦false¦TRUE¦False¦t¦yes¦1¦ true",
    "date": (
        "2024-02-29¦0001-01-01¦9999-12-31¦1999-01-01¦2023-02-29¦2024-2-9¦20240229¦0000-01-01¦"
        "10000-01-01¦1582-10-10¦2024-02-29 00:00:00"
    ),
    "timestamp": (
        "2024-02-29 12:00:00¦2024-02-29T12:00:00¦2024-02-29 12:00:00.123456¦1999-01-01 00:00:00¦"
        "2024-02-29T12:00:00Z¦2024-02-29 12:00:00-17:59¦2024-02-29 12:00:00+18:00¦2024-02-29¦"
        "2024-02-29 12:00¦2024-02-29 24:00:00¦2024-02-29 12:00:60¦2024-02-29 12:00:00.1234567¦"
        "0001-01-01 00:00:00+10:00¦9999-12-31 23:59:59-10:00¦2024-02-29 12:00:00.¦2024-02-30 12:00:00¦"
        "2024-02-29 12:00:00.123Z"
    ),
    "decimal(5,2)": "1.25¦-999.99¦0¦7¦1000¦0.005¦-0.005¦1e2¦+1¦.5¦5.¦999.995¦-0",
    "decimal(38,18)": (
        "1¦0.5¦-2.25¦99¦99999999999999999999¦100000000000000000000¦1e19¦0.0000000000000000005¦"
        "12345678901234567890.12345678901"
    ),
    "decimal(10,0)": "1¦-2¦9999999999¦0¦0.5¦1.5¦10000000000¦9999999999.5¦-0.4",
    "struct<x:int,y:string>": (
        '{"x":1,"y":"a"}¦{"y":"b"}¦{"y":null,"x":2}¦{}¦{"x":"1"}¦{"X":1}¦[]¦{"x":1,"x":2}¦{"x":1.0}¦'
        '{"y":1}¦{"z":[{"x":2}],"x":3}¦[{"x":1}]¦{"x":-0}¦{"x":2147483648}'
    ),
    "array<bigint>": '[1,2]¦[]¦[null]¦[-3]¦[1, -0]¦[1.0]¦["1"]¦1¦{}¦[1,]¦[1e2]',
    "array<struct<x:double>>": (
        '[{"x":1}]¦[{}]¦[null]¦[{"x":0.5}]¦[{"x":1e400}]¦[[]]¦[{"x":-0}]¦{"x":1}¦[{"x":"NaN"}]¦'
        '[{"x":123456789012345678901234567890}]'
    ),
}
VALUES = {kind: values.split("¦") for kind, values in _VALUES.items()}
VALUES["timestamp_ntz"] = VALUES["timestamp"]
ENDINGS = ["\n"] * 6 + [
    "\r\n",
    "\r\n",
    "\r",
    "\n\n",
    " \n",
    "\n\r\n",
    "\t\n",
    "\n \n",
    "\x0b\n",
    "\u2028",
    "\n\0",
]
_PLAIN_ENDINGS = 8
QUOTED = ['"{}"'] * 4 + ['"{}" ', ' "{}"', '"{}', '{}"', '"{}""', '""{}""', '"\\"{}"', '"{}\\"', '"{}\\\\"']
QUOTED += ["'{}'", "#{}#", '""', '"', '"{}"x', "\\{}", '"{},"']
ODD_VALUES = [
    "null",
    "1",
    "1.5",
    "-0",
    "-0.0",
    "1e2",
    '""',
    '"x"',
    "true",
    "[1]",
    '{"a":1}',
    "NaN",
    "01",
    "'x'",
]
ODD_VALUES += [
    "1//c",
    "tru",
    r'"\u00e9"',
    r'"\q"',
    r'"\ud800"',
    '"\t"',
    r'"\u0000"',
    "+1",
    ".5",
    "1e400",
    "-1e-400",
]
ODD_LINES = [
    "{}",
    "[]",
    "null",
    "1",
    "{",
    "",
    " ",
    '{"c0":1}}',
    '{"c0":1} {"c0":2}',
    '{"c0":1},{"c0":2}',
    "{c0:1}",
]
ODD_LINES += [
    '[{"c0":1},{"c0":2}]',
    '{"c0":1,}',
    '{"C0":1}',
    '{"c0":1}x',
    "/**/{}",
    '{"c0":1,"c0":null}',
    '\t{"c0":1}',
]
ODD_LINES += [
    '{"c0":1}\t',
    r'{"\u00630":1}',
    '{"c0":1}{"c0":2}',
    '{"":1}',
    '\ufeff{"c0":1}',
    '{"other":NaN}',
    "{}null",
]
ODD_LINES += [
    r'{"other":"\ud800"}',
    '{"other":01}',
    '{"other":1,"other":2}',
    '{"c0":1/*x*/}',
    '{"c0":"}{"}',
    '{"c0":1]',
]
TEXTS = ("string", "date", "timestamp", "timestamp_ntz")

Schema = Sequence[tuple[str, str]]
"""The names and types of columns."""


@dataclass(frozen=True)
class RandomText:
    """Makes the content of files. `chance` decides about everything."""

    chance: random.Random
    schema: Schema
    options: Mapping[str, str]

    def csv(self) -> bytes:
        chance, separator = self.chance, self.options.get("sep", ",")
        quote = self.options.get("quote") or '"'
        odd = chance.random() < 0.5
        lines = []
        if self.options.get("header") == "true":
            names = separator.join(name for name, _ in self.schema)
            lines.append(names if chance.random() < 0.8 else chance.choice(["", "x", "#", '"a']))
        for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
            fields = [self._value(kind) for _, kind in self.schema]
            if odd and chance.random() < 0.3:
                fields = chance.choice(
                    [fields[:-1], [*fields, "x"], [], [*fields, ""], ["#", *fields[1:]], [" "]]
                )
            if chance.random() < 0.5:
                forms = QUOTED if odd else QUOTED[:1]
                fields = [
                    chance.choice(forms).replace('"', quote).format(field) if chance.random() < 0.5 else field
                    for field in fields
                ]
            lines.append(separator.join(fields))
        return self._file(lines, odd)

    def json(self) -> bytes:
        chance = self.chance
        odd = chance.random() < 0.5
        lines = []
        for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
            members = []
            for name, kind in self.schema:
                value = self._value(kind) or "null"
                if kind in TEXTS:
                    value = json.dumps(value, ensure_ascii=chance.random() < 0.5)
                if odd and chance.random() < 0.15:
                    value = chance.choice(ODD_VALUES)
                if chance.random() < 0.8:
                    members.append(f'"{name}"{chance.choice([":", ": ", " : "])}{value}')
            if chance.random() < 0.2:
                members.append('"other": [1, {"c0": "}"}]')
            chance.shuffle(members)
            line = "{" + chance.choice([",", ", "]).join(members) + "}"
            lines.append(chance.choice([line, line, chance.choice(ODD_LINES)]) if odd else line)
        return self._file(lines, odd)

    def _value(self, kind: str) -> str:
        which, pool = self.chance.random(), VALUES[kind]
        if which < 0.55:
            return self.chance.choice(pool[:4])
        return "" if which < 0.62 else self.chance.choice(pool)

    def _file(self, lines: list[str], odd: bool) -> bytes:
        chance = self.chance
        ending = chance.choice(ENDINGS if odd else ENDINGS[:_PLAIN_ENDINGS])
        data = (ending.join(lines) + chance.choice([ending, ending, "", ending * 2])).encode()
        if chance.random() < 0.06:
            mark = b"\xef\xbb\xbf"
            data = chance.choice(
                [b"", mark + data, mark * 2 + data, data + b"\0", data + b"\xff\n", b"\n" + data, mark]
            )
        return data
