"""The values of datasets: what requests say, and datasets, versions and examples as the API shows them."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
Description = Annotated[str, msgspec.Meta(max_length=20_000)]
DataType = Literal["kv", "llm", "chat"]
Limit = Annotated[int, msgspec.Meta(ge=1, le=100)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Ids = Annotated[list[UUID], msgspec.Meta(max_length=1000)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]
Split = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Splits = Annotated[list[Split], msgspec.Meta(max_length=100)]
Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
# A tag or a moment.
AsOf = Annotated[str, msgspec.Meta(max_length=200)]


class Dataset(msgspec.Struct, kw_only=True):
    """A dataset as the API shows it."""

    id: UUID
    tenant_id: UUID
    name: str
    description: str | None
    data_type: str
    created_at: datetime
    modified_at: datetime
    example_count: int
    session_count: int
    last_session_start_time: datetime | None
    inputs_schema_definition: dict[str, Any] | None
    outputs_schema_definition: dict[str, Any] | None
    metadata: dict[str, Any] | None
    transformations: None = None


class DatasetRequest(msgspec.Struct):
    """What to make a dataset of. Transformations and tags of workspaces are not there: they are refused."""

    name: Name
    id: UUID | None = None
    description: Description | None = None
    data_type: DataType = "kv"
    extra: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    inputs_schema_definition: dict[str, Any] | None = None
    outputs_schema_definition: dict[str, Any] | None = None
    transformations: list[Any] | None = None
    tag_value_ids: list[Any] | None = None


class DatasetPatch(msgspec.Struct):
    """What to change of a dataset. Null takes a description or a schema away; a name stays."""

    name: Name | None = None
    description: Description | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType | None = UNSET
    inputs_schema_definition: dict[str, Any] | UnsetType | None = UNSET
    outputs_schema_definition: dict[str, Any] | UnsetType | None = UNSET
    transformations: list[Any] | None = None


DatasetSort = Literal[
    "name", "created_at", "modified_at", "last_session_start_time", "example_count", "session_count"
]  # fmt: skip


class DatasetQuery(msgspec.Struct):
    """Which datasets to list, in which order; `metadata` is a JSON object that theirs holds."""

    id: Ids | None = None
    name: Text | None = None
    name_contains: Text | None = None
    data_type: list[DataType] | None = None
    metadata: str | None = None
    sort_by: DatasetSort = "created_at"
    sort_by_desc: bool = True
    limit: Limit = 100
    offset: Offset = 0


class Version(msgspec.Struct):
    """A moment at which examples changed, and what it is called."""

    as_of: datetime
    tags: list[str]


class VersionQuery(msgspec.Struct):
    """Which versions to list; `search` is part of a tag."""

    search: Text | None = None
    limit: Limit = 100
    offset: Offset = 0


class VersionAt(msgspec.Struct):
    """One version: by its tag, or the last one until a moment."""

    as_of: AsOf | None = None
    tag: Tag | None = None


class AtVersion(msgspec.Struct):
    """The version to look at: a tag or a moment, the latest without either."""

    as_of: AsOf | None = None


class TagRequest(msgspec.Struct):
    """A tag for the version of exactly this moment."""

    as_of: AsOf
    tag: Tag


class DiffQuery(msgspec.Struct):
    """The two versions to compare: tags or moments."""

    from_version: AsOf
    to_version: AsOf


class Difference(msgspec.Struct):
    """What became of the examples between two versions."""

    examples_modified: list[UUID] = []
    examples_added: list[UUID] = []
    examples_removed: list[UUID] = []


class SplitsRequest(msgspec.Struct):
    """Examples to put into a split, or to take out of it."""

    split_name: Split
    examples: Annotated[list[UUID], msgspec.Meta(max_length=10_000)]
    remove: bool = False


class Attachment(msgspec.Struct):
    """Where an attachment is read for an hour, and what it is."""

    presigned_url: str
    mime_type: str


class Example(msgspec.Struct, kw_only=True):
    """An example as the API shows it; what was not selected is not there."""

    id: UUID
    dataset_id: UUID | UnsetType = UNSET
    name: str | UnsetType = UNSET
    inputs: msgspec.Raw | UnsetType = UNSET
    outputs: msgspec.Raw | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    created_at: datetime | UnsetType = UNSET
    modified_at: datetime | UnsetType = UNSET
    source_run_id: UUID | UnsetType | None = UNSET
    attachment_urls: dict[str, Attachment] | UnsetType = UNSET


class ExampleQuery(msgspec.Struct):
    """Which examples to list, at which version, in which order, and what of each."""

    dataset: UUID | None = None
    id: Ids | None = None
    as_of: AsOf | None = None
    metadata: str | None = None
    splits: Splits | None = None
    filter: str | None = None
    order: Literal["recent", "random", "recently_created", "id"] = "recent"
    random_seed: float | None = None
    select: Annotated[list[str], msgspec.Meta(max_length=50)] | None = None
    exclude_default_fields: bool = False
    inline_s3_urls: bool = True
    limit: Limit = 100
    offset: Offset = 0


class SharedExampleQuery(msgspec.Struct):
    """Which examples of a shared dataset to list."""

    id: Ids | None = None
    as_of: AsOf | None = None
    metadata: str | None = None
    splits: Splits | None = None
    filter: str | None = None
    limit: Limit = 100
    offset: Offset = 0


class ExampleFields(msgspec.Struct):
    """What every way of making an example says beside inputs and outputs."""

    created_at: datetime | None = None
    metadata: dict[str, Any] | None = None
    split: Split | Splits | None = None
    source_run_id: UUID | None = None
    use_source_run_io: bool = False
    use_source_run_attachments: Annotated[list[str], msgspec.Meta(max_length=100)] | None = None


class ExampleRequest(ExampleFields, kw_only=True):
    """An example to make in a dataset."""

    dataset_id: UUID
    id: UUID | None = None
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None


class AttachmentsOperations(msgspec.Struct):
    """What becomes of the attachments there are: those that are neither renamed nor retained go."""

    rename: dict[str, str] = {}
    retain: list[str] = []


class ExamplePatch(msgspec.Struct):
    """What to change of an example; null means unchanged. `dataset_id` is the one that it is in."""

    dataset_id: UUID | None = None
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    split: Split | Splits | None = None
    attachments_operations: AttachmentsOperations | None = None


class NamedPatch(ExamplePatch, kw_only=True):
    """What to change of one of several examples."""

    id: UUID


class NewAttachment(msgspec.Struct):
    """A file to keep with an example."""

    name: str
    mime_type: str
    data: bytes


class ExampleWrite(msgspec.Struct):
    """All that a request says about one example; None says nothing."""

    id: UUID
    fields: ExampleFields
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None
    attachments: list[NewAttachment] = []
    operations: AttachmentsOperations | None = None


class ExampleDeletion(msgspec.Struct):
    """The examples to delete; `hard_delete` removes them from every version."""

    example_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=10_000)]
    hard_delete: bool = False


class ExamplesToDelete(msgspec.Struct):
    """The examples to delete."""

    example_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=10_000)]


class Changed(msgspec.Struct):
    """Which examples were written, and the version that this made."""

    count: int
    example_ids: list[UUID]
    as_of: datetime


class ExamplesChanged(msgspec.Struct):
    """Which examples were changed."""

    message: str
    count: int
    example_ids: list[UUID]


class DatasetShare(msgspec.Struct):
    """A dataset and the token that shows it."""

    dataset_id: UUID
    share_token: UUID
