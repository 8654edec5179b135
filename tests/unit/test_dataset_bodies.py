"""Multipart bodies with examples: what they hold is bounded while they are parsed."""

from uuid import uuid4

import pytest

from portside.datasets.attachments import MAX_ATTACHMENTS
from portside.datasets.files import parse_examples
from portside.kernel.errors import Invalid

TYPE = "multipart/form-data; boundary=b"


def body(*names: str) -> bytes:
    parts = "".join(f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{{}}\r\n' for name in names)
    return f"{parts}--b--\r\n".encode()


def test_attachments_of_an_example_are_counted_while_they_are_read() -> None:
    example = str(uuid4())
    names = [f"{example}.attachment.{number}" for number in range(MAX_ATTACHMENTS)]
    (write,) = parse_examples(body(example, *names), TYPE)
    assert len(write.attachments) == MAX_ATTACHMENTS

    with pytest.raises(Invalid, match="at most 100 attachments"):
        parse_examples(body(example, *names, f"{example}.attachment.more"), TYPE)
