"""The table of what is sealed names every parameter of every statement that can hold a document or a blob."""

from portside.agent.encryption import places
from portside.agent.sql import sql
from portside.kernel.db import Database
from portside.kernel.migrations import migrate

DOCUMENTS = {"jsonb", "json", "bytea", "jsonb[]", "bytea[]"}
# Statements of tables that are made where pgvector is: their parameters are those of `write_items` and `search_items`.
NEED_VECTORS = {"write_indexed_items", "search_items_by_meaning", "index_items"}
NAMED = (
    places.DOCUMENTS, places.TEXTS, places.LISTS_OF_TEXTS, places.LISTS_OF_RECORDS,
    places.SEARCHES, places.IN_CLEAR,
)  # fmt: skip


def known(query: str) -> set[str]:
    """Parameters that the tables name for a statement."""
    return {parameter for table in NAMED for parameter in table.get(query, {})} | places.ACCESS


async def test_what_may_hold_a_document_is_sealed_or_in_clear_for_a_reason(fresh_database):
    db = await Database.connect(await fresh_database(), max_size=2, schema="portside")
    try:
        await migrate(db, ["portside.agent"], schema="portside")
        forgotten = []
        async with db.pool.acquire() as connection:
            for query in sql:
                if query.name in NEED_VECTORS:
                    continue
                prepared = await connection.prepare(query.sql)
                kinds = [kind.name for kind in prepared.get_parameters()]
                forgotten += [
                    f"{query.name}: {parameter}"
                    for parameter, kind in zip(query.parameters, kinds, strict=True)
                    if kind in DOCUMENTS and parameter not in known(query.name)
                ]
    finally:
        await db.close()
    assert forgotten == [], "say in agent/encryption/places.py what these are of, or why they are stored in clear"


def test_the_tables_name_nothing_that_is_not_there():
    parameters = {query.name: set(query.parameters) for query in sql}
    wrong = [
        (name, field) for table in NAMED for name, fields in table.items() for field in set(fields) - parameters[name]
    ]
    assert wrong == []
