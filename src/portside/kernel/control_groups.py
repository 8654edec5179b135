"""The limits that control groups of Linux set for this process."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")


def read_limits(name: str, root: Path = ROOT, own_group: Path = OWN_GROUP) -> Iterator[str]:
    """Yield the text of a file such as `cpu.max` of this process's group and of each group around it that has one."""
    with contextlib.suppress(OSError):
        path = own_group.read_text("utf-8").rpartition("::")[2].strip()
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                return

            with contextlib.suppress(OSError):
                yield (folder / name).read_text("utf-8")
