"""The multipart parser: bodies of the SDKs, and malformed ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portside.kernel.errors import Invalid
from portside.tracing.bodies import MAX_PARTS, FormPart, parse_multipart

TYPE = 'multipart/form-data; boundary="b1"'


def body(*parts: tuple[str, bytes], boundary: str = "b1") -> bytes:
    chunks = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n'.encode()
        + f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, data in parts
    ]

    return b"".join(chunks) + f"--{boundary}--\r\n".encode()


def test_parts_come_in_order():
    assert list(parse_multipart(body(("a", b"1"), ("b", b""), ("a", b"2")), TYPE)) == [
        FormPart("a", "application/json", b"1"),
        FormPart("b", "application/json", b""),
        FormPart("a", "application/json", b"2"),
    ]


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_survive(datas: list[bytes]):
    boundary = "----boundary-that-does-not-occur-0123456789"
    parts = [(f"p{i}", data) for i, data in enumerate(datas)]
    if not parts:
        return

    parsed = parse_multipart(body(*parts, boundary=boundary), f"multipart/form-data; boundary={boundary}")
    assert [(part.name, part.data) for part in parsed] == parts


@given(st.binary(max_size=300))
def test_random_bodies_are_refused_or_parsed_into_pieces_of_them(garbage: bytes):
    try:
        parts = list(parse_multipart(b"--b1\r\n" + garbage, TYPE))
    except Invalid:
        return

    assert [part for part in parts if part.data not in garbage] == []


def test_data_that_begins_like_the_boundary_is_data():
    data = b"x\r\n--b1more\r\n--b1-\r\n"
    assert [part.data for part in parse_multipart(body(("a", data)), TYPE)] == [data]


def test_preamble_padding_and_epilogue_are_skipped():
    raw = b'hello\r\n--b1 \t\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--b1  \r\n\r\n2\r\n--b1--\r\nbye'
    with pytest.raises(Invalid, match="no name"):
        list(parse_multipart(raw, TYPE))

    assert next(parse_multipart(raw, TYPE)) == FormPart("a", "", b"1")


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ('form-data; name="attachment.1.a b"', "attachment.1.a b"),
        ("form-data; name=plain", "plain"),
        ('form-data; name="with \\"quotes\\""', 'with "quotes"'),
        ('form-data; filename="f"; name="é"', "é"),
        ("form-data; name*=utf-8''%C3%A9", "é"),
    ],
)
def test_name_of_a_part_is_read_from_its_header(header: str, name: str):
    raw = f"--b1\r\ncontent-disposition: {header}\r\n\r\nx\r\n--b1--".encode()
    assert [part.name for part in parse_multipart(raw, TYPE)] == [name]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nothing",
        b"--b1",
        b"--b1\r\n",
        b'--b1\r\nContent-Disposition: form-data; name="a"\r\n\r\nno end',
        b'--b1\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--b1\r\n',
        b"--b1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n1\r\n--b1--",
    ],
)
def test_malformed_bodies_are_refused(raw: bytes):
    with pytest.raises(Invalid, match="malformed multipart"):
        list(parse_multipart(raw, TYPE))


@pytest.mark.parametrize(
    "content_type", ["", "application/json", "multipart/form-data", "multipart/mixed; boundary=b1"]
)
def test_other_content_types_are_refused(content_type: str):
    with pytest.raises(Invalid, match="boundary"):
        list(parse_multipart(body(("a", b"1")), content_type))


def test_parts_are_bounded():
    raw = b'--b1\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * (MAX_PARTS + 1) + b"--b1--"
    with pytest.raises(Invalid, match="more than"):
        for _ in parse_multipart(raw, TYPE):
            pass
