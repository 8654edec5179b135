"""The reference's normalised answers as files, one for each script and one line for each step."""

import json
from pathlib import Path

from bench.parity.perform import Record

FOLDER = Path(__file__).parent / "recorded"


def write(record: dict[str, Record], about: dict[str, str]) -> None:
    """Keep a record, and what it is a record of."""
    for old in FOLDER.glob("*.json"):
        old.unlink()

    for script, scenes in record.items():
        (FOLDER / f"{script}.json").write_text(_lines(scenes), "utf-8")

    (FOLDER / "about.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")


def read_record() -> tuple[dict[str, Record], dict[str, str]]:
    """The record that is checked in, and what it is a record of."""
    files = {file.stem: json.loads(file.read_text("utf-8")) for file in sorted(FOLDER.glob("*.json"))}
    about = files.pop("about")
    return files, about


def _lines(scenes: Record) -> str:
    parts = []
    for scene, steps in scenes.items():
        inner = ",\n".join(
            f"  {json.dumps(step)}: {json.dumps(answer, ensure_ascii=False)}" for step, answer in steps.items()
        )
        parts.append(f" {json.dumps(scene)}: {{\n{inner}\n }}")

    return "{\n" + ",\n".join(parts) + "\n}\n"
