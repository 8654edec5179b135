"""What the doctor says a machine holds: the arithmetic of docs/guides/sizes.md, whose table it must not contradict."""

import re
from pathlib import Path

import pytest

from portside.kernel.embedded import BYTES_PER_CONNECTION, MAX_CONNECTIONS, MIN_CONNECTIONS
from portside.operate.capacity import Capacity, Machine, compute_capacity, read_memory_bytes
from portside.operate.machine_checks import describe_capacity

GB = 1_000_000_000
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "sizes.md"


def make_machine(cores: int, memory_gb: int, disk_gb: int) -> Machine:
    connections = max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, memory_gb * GB // BYTES_PER_CONNECTION))
    return Machine(cores=cores, memory_bytes=memory_gb * GB, disk_bytes=disk_gb * GB, connections=connections)


@pytest.mark.parametrize(
    ("machine", "capacity"),
    [
        (make_machine(2, 8, 80), Capacity(idle=155, executing=70, streams=111)),
        (make_machine(8, 32, 320), Capacity(idle=588, executing=310, streams=444)),
        (make_machine(32, 128, 1000), Capacity(idle=588, executing=588, streams=1777)),
        (make_machine(8, 32, 2), Capacity(idle=20, executing=20, streams=444)),
        (make_machine(1, 1, 80), Capacity(idle=0, executing=0, streams=55)),
        (Machine(cores=1, memory_bytes=2 * GB, disk_bytes=-GB, connections=500), Capacity(0, 0, 55)),
    ],
)
def test_capacity_is_bounded_by_memory_disk_and_connections(machine: Machine, capacity: Capacity):
    assert compute_capacity(machine) == capacity


def test_page_has_what_the_doctor_computes():
    rows = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \|(.+)$", PAGE.read_text("utf-8"), re.MULTILINE))
    sizes = [(2, 8, 80), (8, 32, 320), (32, 128, 1000)]
    computed = [compute_capacity(make_machine(*size)) for size in sizes]

    for row, values in (
        ("small deployments that all execute", [each.executing for each in computed]),
        ("small deployments that are awake and idle", [each.idle for each in computed]),
        ("runs at once that stream 20 tokens a second", [each.streams for each in computed]),
    ):
        assert [int(number) for number in re.findall(r"\d+", rows[row])] == values


def test_doctor_says_what_a_machine_holds():
    finding = describe_capacity("capacity", make_machine(2, 8, 80))
    assert finding.level == "ok"
    assert finding.message == (
        "2 cores, 8.0 GB of memory and 80.0 GB of free disk hold about 70 small deployments that all execute, or 155 "
        "that are awake and idle, and 111 runs that stream at once"
    )


def test_doctor_warns_of_a_machine_that_holds_nothing():
    finding = describe_capacity("capacity", make_machine(2, 1, 80))
    assert finding.level == "warning"
    assert "too little for a deployment" in finding.message


def test_memory_is_that_of_the_control_group_if_it_has_a_limit(tmp_path: Path):
    group = tmp_path / "system.slice" / "portside.service"
    group.mkdir(parents=True)
    (tmp_path / "own").write_text("0::/system.slice/portside.service\n")
    everything = read_memory_bytes(tmp_path, tmp_path / "own")

    (group / "memory.max").write_text("max\n")
    assert read_memory_bytes(tmp_path, tmp_path / "own") == everything
    (group.parent / "memory.max").write_text("400000000\n")
    assert read_memory_bytes(tmp_path, tmp_path / "own") == 400_000_000
    assert read_memory_bytes(tmp_path, tmp_path / "none") == everything
