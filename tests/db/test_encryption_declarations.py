"""The declarations in the headers of queries, compared with the parameters and columns that Postgres knows.

A query with a parameter that may hold a document declares how it is encrypted, or why it is stored in plain text.
"""

from typing import Any

import pytest

from portside.agent.config import StoreIndex
from portside.agent.encryption.locations import BLOB_COLUMNS, DOCUMENT_COLUMNS
from portside.agent.sql import sql
from portside.agent.sql.declarations import Declarations
from portside.agent.store.search_index import open_generation
from portside.kernel.db import Database

DOCUMENT_TYPES = {"jsonb", "json", "bytea", "jsonb[]", "json[]", "bytea[]"}
ID_COLUMNS = {"cron_id", "thread_id", "assistant_id", "namespace"}


@pytest.fixture
async def prepared_statements(agent_databases) -> dict[str, Any]:
    """The statements as Postgres understands them: by name, the types of parameters and the names of columns."""
    db = await Database.connect(await agent_databases(), max_size=2, schema="portside")
    found = {}
    try:
        await open_generation(db, StoreIndex(embed="./embed.py:embed", dims=3))
        async with db.pool.acquire() as connection:
            for query in sql:
                statement = await connection.prepare(query.sql)
                kinds = [kind.name for kind in statement.get_parameters()]
                columns = {column.name for column in statement.get_attributes()}
                found[query.name] = (dict(zip(query.parameters, kinds, strict=True)), columns)
    finally:
        await db.close()

    return found


def list_declared_parameters(declared: Declarations) -> set[str]:
    return {
        *declared.documents,
        *declared.lists,
        *declared.records,
        *declared.searched,
        *declared.access,
        *declared.access_lists,
        *declared.paths,
        *declared.plain,
    }


def test_every_document_parameter_is_declared(prepared_statements):
    declared = {query.name: list_declared_parameters(query.declared) for query in sql}
    undeclared = [
        f"{name}: {parameter}"
        for name, (parameters, _) in prepared_statements.items()
        for parameter, kind in parameters.items()
        if kind in DOCUMENT_TYPES and parameter not in declared[name]
    ]

    assert undeclared == [], "agent/sql/declarations.py takes the name of a document for that of an identifier"


def test_queries_that_return_documents_return_the_ids_of_their_row(prepared_statements):
    without_ids = [
        name
        for name, (parameters, columns) in prepared_statements.items()
        if columns & (DOCUMENT_COLUMNS | BLOB_COLUMNS)
        and not (columns | (parameters.keys() & {"thread_id"})) & ID_COLUMNS
    ]

    assert without_ids == [], "select the ids that `identify_row` needs, or what is encrypted cannot be decrypted"
