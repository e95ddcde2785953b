# SPDX-License-Identifier: Apache-2.0
"""The options of reads and writes that Spark's file formats know, in any of its releases, in lower case.

Spark ignores other options, such as `overwriteSchema` for Parquet or those of another format. But it also puts all of
them into Hadoop's configuration, where file systems, codecs and the libraries of formats may find them. Their names
have a dot.
"""

from __future__ import annotations

_TEXT_VALUES = """
    columnNameOfCorruptRecord dateFormat enableDateTimeParsingFallback encoding charset lineSep locale mode multiLine
    samplingRatio singleVariantColumn timeFormat timestampFormat timestampNTZFormat
"""
_OF_ALL_FORMATS = """
    path paths basePath pathGlobFilter recursiveFileLookup modifiedBefore modifiedAfter ignoreCorruptFiles
    ignoreMissingFiles ignoredPathSegmentRegex archivePathFilter timeZone versionAsOf timestampAsOf
    inferSchema compression codec maxRecordsPerFile partitionOverwriteMode returning_batch
"""
_KNOWN = {
    "parquet": "mergeSchema datetimeRebaseMode int96RebaseMode",
    "orc": "mergeSchema",
    "text": "encoding lineSep wholeText",
    "binary": "",
    "avro": """
        avroSchema avroSchemaUrl datetimeRebaseMode enableStableIdentifiersForUnionType ignoreExtension mode
        positionalFieldMatching recordName recordNamespace recursiveFieldMaxDepth stableIdentifierPrefixForUnionType
    """,
    "csv": f"""{_TEXT_VALUES}
        charToEscapeQuoteEscaping columnPruning comment delimiter emptyValue enforceSchema escape escapeQuotes extension
        header ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace inputBufferSize maxCharsPerColumn maxColumns nanValue
        negativeInf nullValue positiveInf preferDate quote quoteAll sep unescapedQuoteHandling
    """,
    "json": f"""{_TEXT_VALUES}
        allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers allowNumericLeadingZeros
        allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames dropFieldIfAllNull explodeEmbeddedArray
        ignoreNullFields inferTimestamp maxNestingDepth maxNumLen maxStringLen prefersDecimal pretty primitivesAsString
        sortKeys useUnsafeRow writeNonAsciiCharacterAsCodePoint
    """,
}
KNOWN_OPTIONS = {
    name: frozenset(f"{_OF_ALL_FORMATS} {options}".lower().split()) for name, options in _KNOWN.items()
}
"""By the names of `read_rules.READ_RULES`."""


def may_matter(format_name: str, option: str) -> bool:
    """Whether an option might change what Spark reads or writes in a format."""
    key = option.lower()
    # Spark's own, such as the columns of partitions, begin in this way.
    return "." in key or key.startswith("__") or key in KNOWN_OPTIONS[format_name]
