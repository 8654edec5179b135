"""The errors of datasets."""

from portside.kernel.errors import Conflict, NotFound


class DatasetNotFound(NotFound):
    """Dataset not found"""  # noqa: D415 - the exact text that clients know

    code = "dataset_not_found"


class DatasetExists(Conflict):
    """Dataset with this name or id already exists."""

    code = "dataset_exists"


class ExampleNotFound(NotFound):
    """Example not found"""  # noqa: D415 - the exact text that clients know

    code = "example_not_found"


class ExampleExists(Conflict):
    """An example with this id exists already; change it, or send another id."""

    code = "example_exists"


class ExampleElsewhere(Conflict):
    """The example is in another dataset, and examples do not move; name its own dataset."""

    code = "example_in_another_dataset"


class VersionNotFound(NotFound):
    """The dataset has no such version; list its versions."""

    code = "version_not_found"


class SharedDatasetNotFound(NotFound):
    """The link shares no dataset, or no longer does."""

    code = "shared_dataset_not_found"


class ComparisonExists(Conflict):
    """A comparison with this id exists already; send another id, or none."""

    code = "comparison_exists"


class ComparisonNotFound(NotFound):
    """The comparison of experiments does not exist."""

    code = "comparison_not_found"
