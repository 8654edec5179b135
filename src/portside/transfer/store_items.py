"""Items of the store. An item that is at the target already stays as it is there.

The APIs tell neither the lifetime of an item nor which of its fields are searched by meaning: the target's settings
apply.
"""

from typing import Any

from portside.transfer.report import Report
from portside.transfer.server import RemoteServer, UnexpectedAnswer, to_objects

KIND = "store"
PAGE = 100


def carry_store_items(source: RemoteServer, target: RemoteServer, report: Report) -> None:
    """Carry all items that the caller may see."""
    offset = 0
    while True:
        body = {"namespace_prefix": [], "limit": PAGE, "offset": offset}
        answer = source.call("POST", "/store/items/search", body=body)
        items = to_objects(answer["items"] if isinstance(answer, dict) else answer)
        for item in items:
            with report.item(KIND, f"{item.get('namespace')} {item.get('key')}"):
                _carry(target, report, item)

        offset += len(items)
        if len(items) < PAGE:
            return


def _carry(target: RemoteServer, report: Report, item: dict[str, Any]) -> None:
    namespace = item["namespace"]
    key = item["key"]
    if not isinstance(namespace, list) or not all(isinstance(label, str) for label in namespace):
        raise UnexpectedAnswer("its namespace is no list of texts")

    existing = target.find("/store/items", query={"namespace": ".".join(namespace), "key": key})
    if existing is not None:
        report.find(KIND)
        return

    target.call("PUT", "/store/items", body={"namespace": namespace, "key": key, "value": item["value"]})
    report.carry(KIND)
