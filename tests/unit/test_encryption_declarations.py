"""Declarations of encryption: a query that leaves a document undeclared is refused when it is loaded."""

import sys

import pytest

from portside.agent.encryption.codec import EncryptionCodec
from portside.agent.encryption.encryptor import Encryptor
from portside.agent.encryption.key_renewal import ENCRYPTED_TABLES
from portside.agent.sql import sql
from portside.agent.sql.declarations import BadDeclaration, ModelField, parse_header
from portside.kernel.db import Queries, Query

INSERT = "insert into notes (thread_id, body) values (:thread_id, :body)"


def parse(*header: str, statement: str = INSERT):
    return parse_header(Query("insert_note", "\n".join(["", *(f"-- {line}" for line in header), statement])))


@pytest.mark.parametrize(
    "statement",
    [
        INSERT,
        "select :body",
        "update t set a = :body::jsonb",
        "select :body::text",
        "select :body::bytea[]",
        "select :body -- :body::int",
    ],
)
def test_undeclared_document_is_refused_with_the_remedy(statement: str) -> None:
    with pytest.raises(BadDeclaration) as refusal:
        parse("Why it is written so.", statement=statement)

    text = str(refusal.value)
    assert text.startswith("query insert_note: :body may hold a document")
    assert "`-- encrypted: body as MODEL.FIELD`" in text
    assert "`-- plain: body (why)`" in text


def test_undeclared_document_is_refused_at_load(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "undeclared" / "sql"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "notes.sql").write_text(f"-- name: insert_note\n{INSERT}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "undeclared", raising=False)

    with pytest.raises(BadDeclaration, match="query insert_note: :body"):
        Queries("undeclared", parse_header)


def test_declarations_are_parsed() -> None:
    declared = parse(
        "Prose may stand between them.",
        "encrypted: body as run.kwargs, rows[].metadata as run.metadata, rows[].kwargs as run.kwargs",
        "encrypted: texts[] as store.value",
        "row: namespace = namespaces, key = keys",
        "searched: metadata as thread.metadata",
        "access: filters[]",
        "paths: extract",
        "plain: old, new (already encrypted)",
        "replaceable: threads",
        "undecryptable: mark and keep",
        statement="select :body, :rows, :texts, :namespaces, :keys, :metadata, :filters, :extract, :old, :new, :access",
    )

    assert declared.documents == {"body": ModelField("run", "kwargs")}
    assert declared.lists == {"texts": ModelField("store", "value")}
    assert declared.records == {
        "rows": {"metadata": ModelField("run", "metadata"), "kwargs": ModelField("run", "kwargs")}
    }
    assert declared.row == {"namespace": "namespaces", "key": "keys"}
    assert declared.searched == {"metadata": ModelField("thread", "metadata")}

    assert (declared.access, declared.access_lists, declared.paths) == (("access",), ("filters",), ("extract",))
    assert declared.plain == {"old": "already encrypted", "new": "already encrypted"}
    assert declared.replaceable == "threads"
    assert declared.marks_undecryptable
    assert declared.keeps_clear_parts


def test_scalars_and_identifiers_need_no_declaration() -> None:
    statement = "select :thread_id, :run_ids, :created_at, :a::uuid, :b::boolean, make_interval(secs => :wait) limit :n"
    assert not parse(statement=statement).changes_parameters


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("encrypted: body", "write PARAMETER as MODEL.FIELD instead of 'body'"),
        ("encrypted: body as thread.metdata", "thread.metdata in `-- encrypted:` is not a field"),
        ("encrypted: bodies as thread.metadata", "names :bodies, which is not a parameter"),
        ("encrypted: body as thread.metadata\n-- row: thread_id = target", ":target is not a parameter"),
        ("encrypted: body as thread.metadata\n-- row: target", "write COLUMN = PARAMETER instead of 'target'"),
        ("encrypted: body as thread.metadata\n-- plain: body (both)", "declares :body twice"),
        ("plain: body", "lacks the reason"),
        ("plain: body (why)\n-- undecryptable: hide", "takes `mark` or `mark and keep`"),
        ("encryped: body as thread.metadata", ":body may hold a document"),
    ],
)
def test_mistakes_in_a_header_are_refused(header: str, said: str) -> None:
    with pytest.raises(BadDeclaration) as refusal:
        parse(header)

    assert said in str(refusal.value)
    assert "query insert_note" in str(refusal.value)


async def test_codec_refuses_a_query_without_declarations() -> None:
    with pytest.raises(AttributeError):
        await EncryptionCodec(Encryptor()).encode(Query("q", "select :body"), {"body": {"secret": 1}})


def test_every_query_of_the_agent_is_declared() -> None:
    assert [query.name for query in sql if query.declared is None] == []
    assert sql.copy_thread.declared.documents["values"] == ModelField("thread", "values")
    assert sql.copy_thread.declared.row == {"thread_id": "target"}


def test_every_document_that_is_encrypted_moves_to_a_new_key() -> None:
    tables = {
        "assistant": ["assistants", "assistant_versions"],
        "checkpoint": ["checkpoints"],
        "cron": ["crons"],
        "run": ["runs"],
        "store": ["items"],
        "thread": ["threads"],
    }

    fields: set[ModelField] = set()
    for query in sql:
        declared = parse_header(query)
        fields |= {*declared.documents.values(), *declared.lists.values()}
        fields |= {field for record in declared.records.values() for field in record.values()}

    moved = {(table.name, document) for table in ENCRYPTED_TABLES for document in table.documents}
    declared_columns = {(table, field.field) for field in fields for table in tables[field.model]}
    assert declared_columns - moved == set()
    assert ("crons", "owner") in declared_columns


@pytest.mark.parametrize(
    ("query", "documents"),
    [
        (sql.insert_cron, {"payload", "metadata", "owner"}),
        (sql.change_cron, {"payload", "metadata"}),
    ],
)
def test_what_is_encrypted_in_a_new_cron_is_encrypted_in_a_changed_one(query: Query, documents: set[str]) -> None:
    assert set(parse_header(query).documents) == documents
