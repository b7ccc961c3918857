"""pretrain.py as a user starts it: a run, an interrupted and resumed one, two processes."""

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent
SMALL = (
    "--layers 2 --width 64 --heads 2 --context 64 --batch 8 --warmup 5 --log-every 2 --eval-every 6 --eval-sequences 8"
)


def pretrain(out, *arguments, processes=1):
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [str(HERE / "pretrain.py"), "--text", str(HERE / "python/microscale_torch/linear.py"), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *SMALL.split(), *arguments, "--device", "cpu"], capture_output=True, text=True,
                          env=environment, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def curve(out):
    with open(out / "curves.csv", newline="") as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    pretrain(out, "--steps", "12", "--recipe", "ue5m3", "--period", "5", "--results", str(out.parent / "results.csv"))
    return out


def test_a_run_learns_and_leaves_its_files(whole):
    rows = curve(whole)
    assert [r["step"] for r in rows] == [2, 4, 6, 8, 10, 12]
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.3
    assert [math.isnan(r["held_out"]) for r in rows] == [True, True, False, True, True, False]
    assert rows[-1]["held_out"] < rows[2]["held_out"]
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["recipe"] == "ue5m3" and summary["tokens"] == 12 * 8 * 64
    with open(whole.parent / "results.csv", newline="") as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["whole"]
    assert "<polyline" in (whole / "loss.svg").read_text()


def test_an_interrupted_run_goes_on_where_it_was(whole, tmp_path):
    arguments = ("--steps", "12", "--recipe", "ue5m3", "--period", "5", "--save-every", "2")
    pretrain(tmp_path / "cut", *arguments, "--stop-at", "8")
    assert "resumed after step 8" in pretrain(tmp_path / "cut", *arguments, "--resume")
    for a, b in zip(curve(whole), curve(tmp_path / "cut"), strict=True):
        assert a["loss"] == b["loss"] and (a["held_out"] == b["held_out"] or math.isnan(a["held_out"]))


def test_two_processes_train_alike(whole, tmp_path):
    printed = pretrain(tmp_path / "two", "--steps", "12", "--recipe", "ue5m3", "--period", "5", processes=2)
    assert "equal on all 2 ranks" in printed
    for a, b in zip(curve(whole), curve(tmp_path / "two"), strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=0.03)
