"""device_time.py on traces whose answer is known: what a kernel is counted as, and that the parts add up."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import device_time

RANGE = "amax"


def kernel(name, begin, end, correlation=0, cat="kernel"):
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin, "args": {"correlation": correlation}}


def launch(tid, at, correlation, cat="cuda_runtime"):
    return {
        "ph": "X",
        "cat": cat,
        "name": "launch",
        "tid": tid,
        "ts": at,
        "dur": 1,
        "args": {"correlation": correlation},
    }


def annotation(tid, begin, end, name=RANGE):
    return {"ph": "X", "cat": "user_annotation", "name": name, "tid": tid, "ts": begin, "dur": end - begin}


EVENTS = [
    annotation(1, 10, 20),
    annotation(2, 30, 40),
    annotation(1, 50, 60, "another range"),
    launch(1, 12, 101),  # an amax collective
    launch(2, 33, 102, "cuda_driver"),  # one from the thread of backward passes
    launch(2, 15, 103),  # while thread 1 is in the range, but not by it
    launch(1, 55, 104),  # in a range of another name
    launch(1, 18, 105),  # no collective, though launched in the range
    kernel("gemm", 100, 140),
    kernel("copy", 130, 150, cat="gpu_memcpy"),
    kernel("ncclDevKernel_AllReduce", 145, 160, 101),  # 10 of it while nothing else runs
    kernel("gemm", 170, 200),
    kernel("ncclDevKernel_AllReduce", 160, 165, 102),
    kernel("ncclDevKernel_AllReduce", 155, 205, 103),  # alone in 165..170 and 200..205
    kernel("ncclDevKernel_AllReduce", 210, 215, 104),
    kernel("amax", 220, 230, 105),
    {"ph": "i", "cat": "kernel", "name": "an instant", "ts": 0},
    {"ph": "M", "name": "process_name"},
]


def test_collectives_are_told_apart_and_time_adds_up():
    a = device_time.account(EVENTS, RANGE)
    assert a["window"] == 130
    assert a["work"] == 50 + 30 + 10
    assert a["amax"] == {"count": 2, "each": [15, 5], "exposed": 15}
    assert a["gradients"] == {"count": 2, "each": [50, 5], "exposed": 5 + 5 + 5}
    assert a["idle"] == 5 + 5
    assert a["work"] + a["amax"]["exposed"] + a["gradients"]["exposed"] + a["idle"] == a["window"]


def test_nothing_on_the_device():
    a = device_time.account([annotation(1, 0, 5), launch(1, 2, 7)], RANGE)
    assert (a["window"], a["work"], a["idle"], a["amax"]["count"]) == (0, 0, 0, 0)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_table_has_a_column_a_rank_and_the_shortest_time_of_each_exchange(steps):
    slow = device_time.account(EVENTS, RANGE)
    fast = {**slow, "amax": {"count": 2, "each": [8, 9], "exposed": 12}}
    lines = device_time.table([slow, fast], steps)
    values = {line[:40].strip(): [float(v) for v in line[40:].split()] for line in lines[1:]}
    assert lines[0].split()[-4:] == ["rank", "0", "rank", "1"]
    assert values[f"amax: {2 / steps:g} collectives"] == pytest.approx([0.020 / steps, 0.017 / steps], abs=6e-4)
    assert values["amax: exchange, without waiting"] == pytest.approx([0.013 / steps] * 2, abs=6e-4)
    assert values["amax: nothing else running"] == pytest.approx([0.015 / steps, 0.012 / steps], abs=6e-4)
    assert "amax: exchange, without waiting" not in "".join(device_time.table([slow], steps))
