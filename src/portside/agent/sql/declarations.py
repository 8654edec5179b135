"""The declarations in a query's header about the documents that pass through it.

Encryption must not depend on somebody remembering to extend a table elsewhere: a query says itself what it stores, and
one that says nothing about a parameter that may hold a document is refused when the queries are loaded. Lines of a
header, each of which may be repeated:

    -- encrypted: metadata as thread.metadata, contents[] as store.value, admissions[].kwargs as run.kwargs
    -- row: thread_id = target                the parameters that name the row of what is encrypted
    -- searched: metadata as thread.metadata  a document to look for; none of its keys may be one that is encrypted
    -- access: filters[]                      an access filter; so are parameters named access and thread_access
    -- paths: extract                         paths into documents, which the codec follows after decryption
    -- plain: old, new (already encrypted)    stored as given, with the reason
    -- undecryptable: mark                    rows that cannot be decrypted are marked instead of failing the query;
                                              `mark and keep` keeps their clear parts
    -- replaceable: threads                   the table whose rows are read, where a handler may replace its ciphertext

A parameter is a document or, as a `str`, a document's JSON text. `name[]` is a list of JSON texts, and `name[].field` a
field of the objects in a list. `agent/encryption/codec.py` acts on the declarations.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from portside.kernel.db import Query

# A field that is misspelt in a header would be bound to another name, and could not be decrypted by other queries.
_FIELDS = frozenset(
    {
        "assistant.config",
        "assistant.context",
        "assistant.metadata",
        "checkpoint.metadata",
        "cron.metadata",
        "cron.owner",
        "cron.payload",
        "run.error",
        "run.kwargs",
        "run.metadata",
        "store.value",
        "thread.config",
        "thread.interrupts",
        "thread.metadata",
        "thread.values",
    }
)
_COMMENT = re.compile(r"--[^\n]*")
_LINE = re.compile(
    r"^-- (encrypted|row|searched|access|paths|plain|undecryptable|replaceable): *(.+?) *$", re.MULTILINE
)
_ENTRY = re.compile(r"(\w+)(\[\])?(?:\.(\w+))? as (\w+\.\w+)")
_ROW_ENTRY = re.compile(r"(\w+) = (\w+)")
_PLAIN_ENTRY = re.compile(r"((?:\w+, *)*\w+) \((.+)\)")
# Parameters of these names are access filters.
ACCESS_NAMES = frozenset({"access", "thread_access"})
# A cast to one of these, or a place that only takes a number, rules out a document.
_SCALAR_USE = re.compile(
    r":(\w+)::(?:uuid|int|integer|bigint|smallint|boolean|bool|double precision|float8|real|numeric|timestamptz"
    r"|interval|date)\b|=> :(\w+)\)|\b(?:limit|offset) :(\w+)"
)
# Names that never mean a document in any query: ids, positions, numbers, times, and words of the server's own.
# A parameter of any other name has to be declared. `tests/db/test_encryption_declarations.py` asks Postgres whether one
# of these is a jsonb or bytea after all.
_IDENTIFIER = re.compile(
    r"(?:\w+_)?ids?|is_\w+|after(?:_\w+)?|\w+_(?:at|s|date|ns|bytes)"
    r"|action|always_claim|attempts?|busy_hosts|caller|channels?|claim_limit|cursor|dims"
    r"|embed|end_time|field|generation|keys?|known|limit|max_attempts|upper_bounds"
    r"|namespaces?|on_run_completed|order|path|places|prefixes|priority|runs|schedule|sort|sort_by|source|start|state"
    r"|status|statuses|strategy|target|thread_statuses|threads|timezone|tool|ttl_strategy"
    r"|versions?|wait|writer"
)


class ModelField(NamedTuple):
    """The model and the field that a document belongs to, such as `thread.metadata`."""

    model: str
    field: str

    def __str__(self) -> str:
        return f"{self.model}.{self.field}"

    @classmethod
    def parse(cls, text: str) -> "ModelField":
        """Parse what `str` returns."""
        return cls(*text.split(".", 1))


class BadDeclaration(ValueError):
    """The header of a query does not declare a parameter, or declares it wrongly."""


class Declarations(msgspec.Struct, frozen=True):
    """The parsed header of one query. Keys are parameters."""

    documents: Mapping[str, ModelField] = {}
    lists: Mapping[str, ModelField] = {}
    records: Mapping[str, Mapping[str, ModelField]] = {}
    row: Mapping[str, str] = {}
    """By the name of each column of the row, the parameter that holds it."""
    searched: Mapping[str, ModelField] = {}
    access: tuple[str, ...] = ()
    access_lists: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    plain: Mapping[str, str] = {}
    marks_undecryptable: bool = False
    keeps_clear_parts: bool = False
    replaceable: str | None = None

    @property
    def changes_parameters(self) -> bool:
        """Whether the codec has to look at any parameter of the query."""
        return bool(
            self.documents
            or self.lists
            or self.records
            or self.searched
            or self.access
            or self.access_lists
            or self.paths
        )


def parse_header(query: Query) -> Declarations:
    """Parse and check the header of a query. Raises BadDeclaration, which says what to write instead."""
    lines: dict[str, list[str]] = {}
    for kind, text in _LINE.findall(query.text):
        lines.setdefault(kind, []).append(text)

    documents: dict[str, ModelField] = {}
    lists: dict[str, ModelField] = {}
    records: dict[str, dict[str, ModelField]] = {}
    for parameter, is_list, field, target in _parse_targets(query, "encrypted", lines):
        if field:
            records.setdefault(parameter, {})[field] = target
        else:
            (lists if is_list else documents)[parameter] = target

    access = _split(lines.get("access", ()))
    undecryptable = lines.get("undecryptable", [""])[0]
    if undecryptable not in {"", "mark", "mark and keep"}:
        raise BadDeclaration(f"query {query.name}: `-- undecryptable:` takes `mark` or `mark and keep`")

    declarations = Declarations(
        documents=documents,
        lists=lists,
        records=records,
        row=_parse_row(query, lines) or {"thread_id": "thread_id"},
        searched={parameter: target for parameter, _, _, target in _parse_targets(query, "searched", lines)},
        access=tuple(name for name in (*query.parameters, *access) if name in ACCESS_NAMES),
        access_lists=tuple(name.removesuffix("[]") for name in access if name not in ACCESS_NAMES),
        paths=tuple(_split(lines.get("paths", ()))),
        plain=_parse_plain(query, lines),
        marks_undecryptable=bool(undecryptable),
        keeps_clear_parts=undecryptable == "mark and keep",
        replaceable=lines.get("replaceable", [None])[0],
    )

    _check(query, declarations)
    return declarations


def _split(texts: Iterable[str]) -> list[str]:
    """Split lines of a header at commas."""
    return [entry.strip() for text in texts for entry in text.split(",")]


def _parse_targets(
    query: Query, kind: str, lines: Mapping[str, list[str]]
) -> Iterator[tuple[str, str, str, ModelField]]:
    for entry in _split(lines.get(kind, ())):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise BadDeclaration(
                f"query {query.name}: write PARAMETER as MODEL.FIELD instead of {entry!r} in `-- {kind}:`"
            )

        if match[4] not in _FIELDS:
            models = ", ".join(sorted(_FIELDS))
            raise BadDeclaration(
                f"query {query.name}: {match[4]} in `-- {kind}:` is not a field; the fields are {models}"
            )

        yield match[1], match[2] or "", match[3] or "", ModelField.parse(match[4])


def _parse_row(query: Query, lines: Mapping[str, list[str]]) -> dict[str, str]:
    row: dict[str, str] = {}
    for entry in _split(lines.get("row", ())):
        match = _ROW_ENTRY.fullmatch(entry)
        if match is None:
            raise BadDeclaration(f"query {query.name}: write COLUMN = PARAMETER instead of {entry!r} in `-- row:`")

        row[match[1]] = match[2]

    return row


def _parse_plain(query: Query, lines: Mapping[str, list[str]]) -> dict[str, str]:
    plain: dict[str, str] = {}
    for text in lines.get("plain", ()):
        match = _PLAIN_ENTRY.fullmatch(text)
        if match is None:
            raise BadDeclaration(f"query {query.name}: `-- plain: {text}` lacks the reason; write PARAMETER (why)")

        plain |= dict.fromkeys(_split([match[1]]), match[2])

    return plain


def _check(query: Query, declarations: Declarations) -> None:
    parameters = [
        *declarations.documents,
        *declarations.lists,
        *declarations.records,
        *declarations.searched,
        *declarations.access,
        *declarations.access_lists,
        *declarations.paths,
        *declarations.plain,
    ]
    unknown = sorted(set(parameters) - set(query.parameters))
    if unknown:
        raise BadDeclaration(
            f"query {query.name}: its header names :{unknown[0]}, which is not a parameter of the query"
        )

    if len(parameters) != len(set(parameters)):
        twice = next(name for name in parameters if parameters.count(name) > 1)
        raise BadDeclaration(f"query {query.name}: its header declares :{twice} twice")

    unknown_in_row = sorted(set(declarations.row.values()) - set(query.parameters))
    if unknown_in_row and (declarations.documents or declarations.lists):
        raise BadDeclaration(
            f"query {query.name}: what it encrypts is bound to a row, and :{unknown_in_row[0]} is not a parameter; "
            "name the row by `-- row: COLUMN = PARAMETER`"
        )

    undeclared = [name for name in query.parameters if name not in parameters and not _IDENTIFIER.fullmatch(name)]
    if not undeclared:
        return

    scalars = {name for match in _SCALAR_USE.findall(_COMMENT.sub("", query.text)) for name in match}
    for name in undeclared:
        if name not in scalars:
            raise BadDeclaration(
                f"query {query.name}: :{name} may hold a document, and the header does not say whether it is "
                f"encrypted; write `-- encrypted: {name} as MODEL.FIELD` or `-- plain: {name} (why)` below "
                f"`-- name: {query.name}`"
            )
