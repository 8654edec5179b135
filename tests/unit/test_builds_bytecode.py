"""Builds share compiled modules of packages, which the listener compiles itself."""

import importlib.util
import marshal
import os
import py_compile
import subprocess
import sys
from pathlib import Path

from portside.dataplane.builds import module_store
from portside.dataplane.builds.bytecode import CompiledModules

SOURCE = "VALUE = 'honest'\n"


def make_build(folder: Path, source: str = SOURCE) -> Path:
    """Make a build whose environment has one package with one module; return the module."""
    module = folder / "venv" / "lib" / "python3" / "site-packages" / "package" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text(source)

    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)

    return module


def compiled(module: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(module)))


def read_code(file: Path) -> str:
    """Return the value that the code of a compiled module sets."""
    names: dict[str, str] = {}
    exec(marshal.loads(file.read_bytes()[16:]), names)
    return names["VALUE"]


async def test_modules_that_an_agent_imported_are_compiled_once_for_later_builds(tmp_path: Path):
    first, second = (make_build(tmp_path / name) for name in ("first", "second"))
    py_compile.compile(str(first), doraise=True)
    modules = CompiledModules(tmp_path / "store")

    await modules.link(tmp_path / "second")
    assert not compiled(second).exists(), "nothing is known yet"

    modules.keep(tmp_path / "first")
    await modules.wait()
    await modules.link(tmp_path / "second")

    [stored] = (tmp_path / "store").rglob("*.pyc")
    assert compiled(second).samefile(stored)
    assert read_code(stored) == "honest"
    # Python takes it by the hash of its source, which is a copy: with a check of times it would be compiled again.
    assert stored.read_bytes()[4:8] == (0b11).to_bytes(4, "little")


def test_modules_that_are_one_file_in_all_environments_are_taken_by_its_time(tmp_path: Path):
    first, second, third = (make_build(tmp_path / name) for name in ("first", "second", "third"))
    second.unlink()
    second.hardlink_to(first)
    os.utime(third, ns=(0, 0))
    third.with_name("link").hardlink_to(third)
    py_compile.compile(str(first), doraise=True)
    store = tmp_path / "store"

    assert module_store.fill(first.parents[1], store, niceness=0) == 1
    assert module_store.fill(first.parents[1], store, niceness=0) == 0
    assert module_store.link(second.parents[1], store) == 1
    assert module_store.link(third.parents[1], store) == 0, "its source has another time"

    [stored] = store.rglob("*.pyc")
    assert compiled(second).samefile(stored)
    assert stored.read_bytes()[4:8] == bytes(4)

    # Python uses it as it is: it neither compiles the module nor writes another one.
    program = "from package import module; print(module.__cached__, module.VALUE)"
    python = [sys.executable, "-v", "-c", program]
    ran = subprocess.run(python, cwd=second.parents[1], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [str(compiled(second)), "honest"]
    assert f"{compiled(second)} matches {second}" in ran.stderr
    assert compiled(second).samefile(stored)


async def test_nothing_that_an_agent_wrote_is_shared(tmp_path: Path):
    module = make_build(tmp_path / "build")
    forged = tmp_path / "forged.py"
    forged.write_text("VALUE = 'forged'\n")
    py_compile.compile(str(forged), str(compiled(module)), doraise=True)

    modules = CompiledModules(tmp_path / "store")
    modules.keep(tmp_path / "build")
    await modules.wait()

    [stored] = (tmp_path / "store").rglob("*.pyc")
    assert read_code(stored) == "honest"


def test_another_source_gets_no_compiled_module(tmp_path: Path):
    known = make_build(tmp_path / "known")
    other = make_build(tmp_path / "other", "VALUE = 'other'\n")
    py_compile.compile(str(known), doraise=True)
    store = tmp_path / "store"

    assert module_store.fill(known.parents[1], store, niceness=0) == 1
    assert module_store.fill(known.parents[1], store, niceness=0) == 0
    assert module_store.link(other.parents[1], store) == 0
    assert not compiled(other).exists()


async def test_a_removed_store_or_build_does_no_harm(tmp_path: Path):
    module = make_build(tmp_path / "build")
    module.write_text("this is no Python")
    compiled(module).parent.mkdir()
    compiled(module).write_bytes(b"nor is this")

    modules = CompiledModules(tmp_path / "store")
    modules.keep(tmp_path / "build")
    modules.keep(tmp_path / "removed")
    await modules.link(tmp_path / "build")
    await modules.wait()

    assert compiled(module).read_bytes() == b"nor is this"
    await modules.close()
