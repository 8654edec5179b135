"""The types of datasets: requests, and datasets, versions and examples as the API returns them."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from portside.kernel.clock import Moment
from portside.kernel.http.json_validation import JSON_TEXT, NO_ITEMS

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
Description = Annotated[str, msgspec.Meta(max_length=20_000)]
DataType = Literal["kv", "llm", "chat"]
DatasetSort = Literal["name", "created_at", "modified_at", "last_session_start_time", "example_count", "session_count"]
Limit = Annotated[int, msgspec.Meta(ge=1, le=100)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Ids = Annotated[list[UUID], msgspec.Meta(max_length=1000)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]
Split = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Splits = Annotated[list[Split], msgspec.Meta(max_length=100)]
Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
# The name of a tag, or an ISO 8601 time.
AsOf = Annotated[str, msgspec.Meta(max_length=200)]


class Dataset(msgspec.Struct, kw_only=True):
    """A dataset as the API returns it."""

    id: UUID
    tenant_id: UUID
    name: str
    description: str | None
    data_type: str
    created_at: Moment
    modified_at: Moment
    example_count: int
    session_count: int
    last_session_start_time: datetime | None
    inputs_schema_definition: dict[str, Any] | None
    outputs_schema_definition: dict[str, Any] | None
    metadata: dict[str, Any] | None
    transformations: None = None


class DatasetRequest(msgspec.Struct):
    """A dataset to create. Transformations and workspace tags are not supported and refused."""

    name: Name
    id: UUID | None = None
    description: Description | None = None
    data_type: DataType = "kv"
    extra: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    inputs_schema_definition: dict[str, Any] | None = None
    outputs_schema_definition: dict[str, Any] | None = None
    transformations: Annotated[list[Any], NO_ITEMS] | None = None
    tag_value_ids: Annotated[list[Any], NO_ITEMS] | None = None


class DatasetPatch(msgspec.Struct):
    """Changes of a dataset. Null removes a description or a schema, and leaves a name unchanged."""

    name: Name | None = None
    description: Description | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType | None = UNSET
    inputs_schema_definition: dict[str, Any] | UnsetType | None = UNSET
    outputs_schema_definition: dict[str, Any] | UnsetType | None = UNSET
    transformations: Annotated[list[Any], NO_ITEMS] | None = None


class DatasetQuery(msgspec.Struct):
    """Filters and order of a list of datasets; `metadata` is a JSON object that their metadata contains."""

    id: Ids | None = None
    name: Text | None = None
    name_contains: Text | None = None
    data_type: list[DataType] | None = None
    metadata: Annotated[str, JSON_TEXT] | None = None
    sort_by: DatasetSort = "created_at"
    sort_by_desc: bool = True
    limit: Limit = 100
    offset: Offset = 0


class Version(msgspec.Struct):
    """A moment at which examples changed, and its tags. `number` counts the versions of the dataset from 1."""

    as_of: datetime
    tags: list[str]
    number: int


class DatasetVersionsQuery(msgspec.Struct):
    """Filters of versions; `search` is part of a tag."""

    search: Text | None = None
    limit: Limit = 100
    offset: Offset = 0


class VersionAt(msgspec.Struct):
    """One version: by its tag, or the last one until a moment."""

    as_of: AsOf | None = None
    tag: Tag | None = None


class AtVersion(msgspec.Struct):
    """The version to read: a tag or a moment; the latest by default."""

    as_of: AsOf | None = None


class VersionTagRequest(msgspec.Struct):
    """A tag for the version of exactly this moment."""

    as_of: AsOf
    tag: Tag


class DiffQuery(msgspec.Struct):
    """The two versions to compare: tags or moments."""

    from_version: AsOf
    to_version: AsOf


class Difference(msgspec.Struct):
    """The changes of examples between two versions."""

    examples_modified: list[UUID] = []
    examples_added: list[UUID] = []
    examples_removed: list[UUID] = []


class SplitsRequest(msgspec.Struct):
    """Examples to add to a split, or to remove from it."""

    split_name: Split
    examples: Annotated[list[UUID], msgspec.Meta(max_length=10_000)]
    remove: bool = False


class ExampleAttachment(msgspec.Struct):
    """The download link of an attachment, which lasts an hour, and its media type."""

    presigned_url: str
    mime_type: str


class Example(msgspec.Struct, kw_only=True):
    """An example as the API returns it; fields that were not selected are missing.

    Previews, the first characters of inputs and outputs as JSON, are returned only if they are selected.
    """

    id: UUID
    dataset_id: UUID | UnsetType = UNSET
    name: str | UnsetType = UNSET
    inputs: msgspec.Raw | UnsetType = UNSET
    outputs: msgspec.Raw | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    created_at: Moment | UnsetType = UNSET
    modified_at: Moment | UnsetType = UNSET
    source_run_id: UUID | UnsetType | None = UNSET
    attachment_urls: dict[str, ExampleAttachment] | UnsetType = UNSET
    inputs_preview: str | UnsetType = UNSET
    outputs_preview: str | UnsetType | None = UNSET


class ExampleQuery(msgspec.Struct):
    """Filters, version and order of a list of examples, and the fields to return."""

    dataset: UUID | None = None
    id: Ids | None = None
    as_of: AsOf | None = None
    metadata: Annotated[str, JSON_TEXT] | None = None
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
    """Filters and version of a list of shared examples."""

    id: Ids | None = None
    as_of: AsOf | None = None
    metadata: Annotated[str, JSON_TEXT] | None = None
    splits: Splits | None = None
    filter: str | None = None
    limit: Limit = 100
    offset: Offset = 0


class ExampleFields(msgspec.Struct):
    """The fields of a new example apart from inputs and outputs."""

    created_at: Moment | None = None
    metadata: dict[str, Any] | None = None
    split: Split | Splits | None = None
    source_run_id: UUID | None = None
    use_source_run_io: bool = False
    use_source_run_attachments: Annotated[list[str], msgspec.Meta(max_length=100)] | None = None


class ExampleRequest(ExampleFields, kw_only=True):
    """An example to create in a dataset."""

    dataset_id: UUID
    id: UUID | None = None
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None


class AttachmentsOperations(msgspec.Struct):
    """Existing attachments to rename and to retain; all others are removed."""

    rename: dict[str, str] = {}
    retain: list[str] = []


class ExamplePatch(msgspec.Struct):
    """Changes of an example; null leaves a field unchanged. `dataset_id` must be its dataset."""

    dataset_id: UUID | None = None
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    split: Split | Splits | None = None
    attachments_operations: AttachmentsOperations | None = None


class NamedPatch(ExamplePatch, kw_only=True):
    """Changes of one of several examples."""

    id: UUID


class NewAttachment(msgspec.Struct):
    """A file to store with an example."""

    name: str
    mime_type: str
    data: bytes


class ExampleWrite(msgspec.Struct):
    """The write of one example; None leaves a field unchanged."""

    id: UUID
    fields: ExampleFields
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None
    attachments: list[NewAttachment] = []
    operations: AttachmentsOperations | None = None


class ExampleDeletion(msgspec.Struct, forbid_unknown_fields=True):
    """The examples to delete; `hard_delete` removes them from every version."""

    example_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=10_000)]
    hard_delete: bool = False


class ExamplesToDelete(msgspec.Struct):
    """The examples to delete, as many as an address can name, and the moment of a version of another server."""

    example_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1_300)]
    as_of: Moment | None = None


class WrittenAt(msgspec.Struct):
    """The moment of a version that is carried over from another server."""

    as_of: Moment | None = None


class Changed(msgspec.Struct):
    """The examples that were written, and the new version."""

    count: int
    example_ids: list[UUID]
    as_of: datetime


class ExamplesChanged(msgspec.Struct):
    """The examples that were changed."""

    message: str
    count: int
    example_ids: list[UUID]


class DatasetShare(msgspec.Struct):
    """A dataset and its share token."""

    dataset_id: UUID
    share_token: UUID
