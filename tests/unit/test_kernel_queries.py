"""SQL files are split into named queries with numbered parameters."""

import sys

import pytest

from portside.kernel.db import Queries, Query


def test_parameters_are_numbered_and_casts_unchanged() -> None:
    query = Query("q", "select :a::text, :b, :a, x::int, data[1:2] from t where s = 'at 10:b' -- not :c\n")
    assert query.sql == "select $1::text, $2, $1, x::int, data[1:2] from t where s = 'at 10:b'"
    assert query.parameters == ("a", "b")
    assert query.arguments({"b": 2, "a": 1}) == [1, 2]


@pytest.mark.parametrize("values", [{}, {"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}])
def test_missing_and_unknown_arguments_are_named(values) -> None:
    with pytest.raises(TypeError, match="query q "):
        Query("q", "select :a, :b").arguments(values)


def test_only_quoted_identifiers_are_replaced() -> None:
    query = Query("q", """-- of "x"\nselect "a", a, 'b' from "t" where t."a" = :a""")
    adapted = query.with_identifiers({"a": 'odd"name', "t": "other table"})
    assert adapted.sql == """select "odd""name", a, 'b' from "other table" where t."odd""name" = $1"""
    assert (adapted.name, adapted.parameters) == ("q", ("a",))

    with pytest.raises(KeyError):
        query.with_identifiers({"a": "b"})


@pytest.fixture
def make_package(tmp_path, monkeypatch):
    """Create a package with query files."""

    def make(**files: str) -> str:
        name = f"package_{tmp_path.name}"
        folder = tmp_path / name / "sql"
        folder.mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()

        for stem, text in files.items():
            (folder / f"{stem}.sql").write_text(text)

        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return make


def test_each_block_of_a_file_is_a_query(make_package) -> None:
    queries = Queries(
        make_package(a="-- name: one\n-- Why.\nselect 1\n\n-- name: two\nselect :x\n", b="-- name: three\nselect 3")
    )
    assert [query.name for query in queries] == ["one", "two", "three"]
    assert queries.one.sql == "select 1"
    assert queries.two.sql == "select $1"

    with pytest.raises(AttributeError, match="no query named four"):
        _ = queries.four


def test_duplicate_query_name_is_refused(make_package) -> None:
    name = make_package(a="-- name: one\nselect 1\n", b="-- name: one\nselect 2\n")
    with pytest.raises(ValueError, match="one is defined twice"):
        Queries(name)
