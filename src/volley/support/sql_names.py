# SPDX-License-Identifier: Apache-2.0
"""The SQL names of Catalyst classes, where the class name does not suggest them.

Reasons and documentation name what the user wrote first, `date_format`, and the class second, `DateFormatClass`.
"""

from __future__ import annotations

from volley.support.function_names import FUNCTION_NAMES

SQL_NAMES: dict[str, str] = {
    # comparison and arithmetic
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "IntegralDivide": "div",
    "Remainder": "%",
    "BRound": "bround",
    "RoundCeil": "ceil",
    "RoundFloor": "floor",
    # strings
    "StringTrim": "trim",
    "StringTrimLeft": "ltrim",
    "StringTrimRight": "rtrim",
    "StringLPad": "lpad",
    "StringRPad": "rpad",
    "StringReplace": "replace",
    "StringInstr": "instr",
    "StringLocate": "locate",
    "StringRepeat": "repeat",
    "StringSpace": "space",
    "StringSplit": "split",
    "StringTranslate": "translate",
    "RegExpReplace": "regexp_replace",
    "RegExpExtract": "regexp_extract",
    "FormatString": "format_string",
    "GetJsonObject": "get_json_object",
    "JsonToStructs": "from_json",
    "StructsToJson": "to_json",
    # dates and times
    "DateFormatClass": "date_format",
    "DayOfMonth": "day",
    "TruncDate": "trunc",
    "TruncTimestamp": "date_trunc",
    "ParseToDate": "to_date",
    "ParseToTimestamp": "to_timestamp",
    "GetTimestamp": "to_timestamp",
    "ToUnixTimestamp": "to_unix_timestamp",
    "UnixTimestamp": "unix_timestamp",
    "FromUnixTime": "from_unixtime",
    "FromUTCTimestamp": "from_utc_timestamp",
    "ToUTCTimestamp": "to_utc_timestamp",
    "MakeDate": "make_date",
    # collections
    "CreateArray": "array",
    "CreateMap": "map",
    "CreateNamedStruct": "named_struct",
    "GetArrayItem": "array[index]",
    "GetMapValue": "map[key]",
    # others
    "Literal": "constant",
    "MonotonicallyIncreasingID": "monotonically_increasing_id",
    "SparkPartitionID": "spark_partition_id",
    "Murmur3Hash": "hash",
    "XxHash64": "xxhash64",
    # aggregates
    "Average": "avg",
    "StddevSamp": "stddev_samp",
    "StddevPop": "stddev_pop",
    "VarianceSamp": "var_samp",
    "VariancePop": "var_pop",
    "MinBy": "min_by",
    "MaxBy": "max_by",
    "CovPopulation": "covar_pop",
    "CovSample": "covar_samp",
    "RegrSlope": "regr_slope",
    "RegrIntercept": "regr_intercept",
    "RegrR2": "regr_r2",
    "RegrSXY": "regr_sxy",
    "RegrReplacement": "regr_sxx",
    "PercentileDisc": "percentile_disc",
    "BitAndAgg": "bit_and",
    "BitOrAgg": "bit_or",
    "BitXorAgg": "bit_xor",
    "CountMinSketchAgg": "count_min_sketch",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "HyperLogLogPlusPlus": "approx_count_distinct",
    "ApproximatePercentile": "percentile_approx",
}


def sql_name(name: str) -> str | None:
    """What SQL calls a Catalyst class; None for other names."""
    return SQL_NAMES.get(name) or FUNCTION_NAMES.get(name)


def display_name(name: str) -> str:
    """The SQL name with the Catalyst class, for people; other names unchanged."""
    return f"{found} ({name})" if (found := sql_name(name)) else name
