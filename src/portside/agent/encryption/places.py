"""What of which statement is sealed, by the names of its parameters and of its columns.

A parameter that is not here is stored as it came. Every parameter of a statement that can hold a document or a blob is
either here or in `IN_CLEAR`, with the reason (`tests/db/test_encryption_places.py`). Columns are opened by what is in
them, wherever they come from.
"""

from portside.agent.encryption.handlers import Place

_ASSISTANT = {field: Place("assistant", field) for field in ("config", "context", "metadata")}
_CRON = {"payload": Place("cron", "payload"), "metadata": Place("cron", "metadata")}
_THREAD_METADATA = Place("thread", "metadata")
_THREAD_VALUES = Place("thread", "values")
_THREAD_INTERRUPTS = Place("thread", "interrupts")
_STORE = Place("store", "value")
_ADMISSION = {
    "inherited": Place("assistant", "metadata"),
    "metadata": Place("run", "metadata"),
    "kwargs": Place("run", "kwargs"),
    "thread_metadata": _THREAD_METADATA,
    "thread_config": Place("thread", "config"),
}

# Documents as Python values.
DOCUMENTS: dict[str, dict[str, Place]] = {
    "admit_run": _ADMISSION,
    "admit_run_for": {**_ADMISSION, "new_thread": _THREAD_METADATA},
    "copy_thread": {"metadata": _THREAD_METADATA},
    "insert_thread": {"metadata": _THREAD_METADATA},
    "patch_thread": {"metadata": _THREAD_METADATA},
    "write_thread_state": {"interrupts": _THREAD_INTERRUPTS},
    "insert_assistant": _ASSISTANT,
    "patch_assistant": _ASSISTANT,
    "insert_cron": {**_CRON, "owner": Place("cron", "owner")},
    "change_cron": _CRON,
}

# Documents as JSON text.
TEXTS: dict[str, dict[str, Place]] = {
    "write_thread_state": {"values": _THREAD_VALUES},
    "patch_checkpoint": {"metadata": Place("checkpoint", "metadata")},
}

# Lists of JSON texts, of which some may be missing.
LISTS_OF_TEXTS: dict[str, dict[str, Place]] = {
    "end_runs": {"values": _THREAD_VALUES, "interrupts": _THREAD_INTERRUPTS, "errors": Place("run", "error")},
    "write_items": {"contents": _STORE},
    "write_indexed_items": {"contents": _STORE},
}

# Lists of objects, some fields of which are documents.
LISTS_OF_RECORDS: dict[str, dict[str, dict[str, Place]]] = {"admit_runs": {"admissions": _ADMISSION}}

# What is looked for: documents, of which no key may be sealed where they are stored.
SEARCHES: dict[str, dict[str, Place]] = {
    "search_threads": {"metadata": _THREAD_METADATA, "values": _THREAD_VALUES},
    "count_threads": {"metadata": _THREAD_METADATA, "values": _THREAD_VALUES},
    "list_assistant_versions": {"metadata": _ASSISTANT["metadata"]},
    "list_tools": {"metadata": _ASSISTANT["metadata"]},
    "search_assistants": {"metadata": _ASSISTANT["metadata"]},
    "count_assistants": {"metadata": _ASSISTANT["metadata"]},
    "search_crons": {"metadata": _CRON["metadata"]},
    "count_crons": {"metadata": _CRON["metadata"]},
    "list_checkpoints": {"filter": Place("checkpoint", "metadata")},
}

# What metadata has to be like for who asks, wherever a statement takes it; a list of them, as JSON texts, in one place.
ACCESS = frozenset({"access", "thread_access"})
LISTS_OF_ACCESS = {"threads_that_fit": "filters"}

_STORE_SEARCH = "parts of a filter, which the store has had judged as a whole"
_CHECKPOINTER = "sealed by the checkpointer, in the context of the run that wrote it"
_SEALED = "what a handler sealed"
IN_CLEAR: dict[str, dict[str, str]] = {
    **{
        f"replace_in_{table}": dict.fromkeys(("old", "new"), _SEALED)
        for table in ("threads", "runs", "assistants", "assistant_versions", "crons", "items", "checkpoints")
    },
    **{f"replace_checkpoint_{part}": dict.fromkeys(("old", "new"), _SEALED) for part in ("body", "value", "write")},
    "search_threads": {"extract": "the paths to extract, which the codec follows itself"},
    "search_items": dict.fromkeys(("contains", "paths", "operands", "filters"), _STORE_SEARCH),
    "search_items_by_meaning": dict.fromkeys(("contains", "paths", "operands", "filters"), _STORE_SEARCH),
    "write_checkpoints": dict.fromkeys(("c_metadata", "c_body", "v_data", "w_data"), _CHECKPOINTER),
    "write_items": {"fields": "names of fields"},
    "append_stream_chunks": {"bodies": "sealed by the log of events, in the context of each run"},
    "settle_webhook": {"entry": "what came of an attempt, nothing of the run"},
    "write_indexed_items": {"fields": "names of fields"},
}

# Columns that may hold documents, as values or as text.
DOCUMENT_COLUMNS = frozenset(
    {
        "config", "context", "error", "interrupts", "kwargs", "metadata", "owner", "payload", "value",
        "values",
    }
)  # fmt: skip
BLOB_COLUMNS = frozenset({"body", "value_datas", "write_datas"})
