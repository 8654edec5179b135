"""Which files of the repository the site is made of, and which pages they become."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOCK = DOCS / "requirements.lock"
FAVICON = ROOT / "console" / "public" / "favicon.svg"
CONTENTS = "docs/README.md"
START = "docs/start-here.md"
EXAMPLES = "examples/README.md"
# The other pages of the repository are for those who change it; the site has no room for them, nor for pictures.
SECURITY = "SECURITY.md"


def list_sources() -> dict[str, str]:
    """Return the pages of the site by their files in the repository, as the names that they have in the site."""
    pages = {START: "index.md", CONTENTS: "contents.md", SECURITY: "security.md", EXAMPLES: "examples/index.md"}
    for file in sorted(DOCS.rglob("*.md")):
        name = file.relative_to(ROOT).as_posix()
        pages.setdefault(name, name.removeprefix("docs/"))

    for file in sorted((ROOT / "examples").glob("*/README.md")):
        pages[file.relative_to(ROOT).as_posix()] = f"examples/{file.parent.name}.md"

    return pages


def read_sources(pages: dict[str, str]) -> dict[str, str]:
    """Return the texts of the pages by their files in the repository."""
    return {source: (ROOT / source).read_text("utf-8") for source in pages}


def hash_sources() -> str:
    """Return the hash of everything that the site is made of."""
    scripts = sorted(Path(__file__).parent.glob("*.py"))
    pages = [ROOT / name for name in list_sources()]

    digest = hashlib.sha256()
    for file in (*scripts, LOCK, FAVICON, *pages):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(ROOT).as_posix()}\0{len(content)}\0".encode() + content)

    return digest.hexdigest()[:32]
