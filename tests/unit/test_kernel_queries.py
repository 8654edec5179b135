import sys

import pytest

from portside.kernel.queries import Queries, Query


def test_parameters_are_numbered_by_name_and_casts_are_left_alone() -> None:
    query = Query("q", "select :a::text, :b, :a, x::int, data[1:2] from t where s = 'at 10:b' -- not :c\n")
    assert query.sql == "select $1::text, $2, $1, x::int, data[1:2] from t where s = 'at 10:b'"
    assert query.parameters == ("a", "b")
    assert query.arguments({"b": 2, "a": 1}) == [1, 2]


@pytest.mark.parametrize("values", [{}, {"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}])
def test_missing_and_unknown_arguments_are_named(values) -> None:
    with pytest.raises(TypeError, match="query q "):
        Query("q", "select :a, :b").arguments(values)


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Make the query files of a room."""

    def make(**files: str) -> str:
        name = f"room_{tmp_path.name}"
        folder = tmp_path / name / "sql"
        folder.mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
        for stem, text in files.items():
            (folder / f"{stem}.sql").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return make


def test_each_block_of_a_file_is_a_query(room) -> None:
    queries = Queries(
        room(a="-- name: one\n-- Why.\nselect 1\n\n-- name: two\nselect :x\n", b="-- name: three\nselect 3")
    )
    assert [query.name for query in queries] == ["one", "two", "three"]
    assert queries.one.sql == "select 1"
    assert queries.two.sql == "select $1"
    with pytest.raises(AttributeError, match="no query named four"):
        _ = queries.four


def test_a_name_used_twice_in_a_room_is_refused(room) -> None:
    name = room(a="-- name: one\nselect 1\n", b="-- name: one\nselect 2\n")
    with pytest.raises(ValueError, match="one is defined twice"):
        Queries(name)
