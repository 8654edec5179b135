"""Puts the documents of this folder into the store of a running agent.

Usage: python load.py [URL]

Run it again after you changed a document. The file's name is the key, so the new text replaces the old one.
"""

import sys
from pathlib import Path

from langgraph_sdk import get_sync_client

DOCUMENTS = Path(__file__).parent / "documents"

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:2024"
client = get_sync_client(url=url)
files = sorted(DOCUMENTS.glob("*.md"))

for file in files:
    client.store.put_item(["documents"], file.stem, {"text": file.read_text("utf-8").strip()})

print(f"{len(files)} documents")
