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
                          check=False, env=environment, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_cannot_be_run_is_refused_in_one_line_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    sys.path.insert(0, str(HERE))
    import pretrain

    text, short, empty, packed = (tmp_path / name for name in ("text", "short", "empty", "text.xz"))
    text.write_bytes(bytes(range(256)) * 64)
    short.write_bytes(b"short")
    empty.touch()
    packed.write_bytes(b"not packed")
    out = tmp_path / "out"
    for arguments, expected in (
        (("--text", tmp_path / "none"), "--text: expected a file that can be read"),
        (("--text", tmp_path), "--text: expected a file that can be read"),
        (("--text", packed), "--text: expected a file that can be read"),
        (("--text", short), "--text: expected more than 65 bytes to train with"),
        (("--text", empty), "--text: expected more than 65 bytes to train with"),
        (("--recipe", "nvfp5"), "argument --recipe: invalid choice: 'nvfp5'"),
        (("--recipe", "nvfp4", "--period", 3), "period: expected none under nvfp4"),
        (("--recipe", "nvfp4", "--gradient-target", 448), "targets: expected none under nvfp4"),
        (("--gradient-target", 0), "argument --gradient-target: expected 1 or more, got 0"),
        (("--period", 0), "argument --period: expected 1 or more, got 0"),
        (("--batch", 0), "argument --batch: expected 1 or more, got 0"),
        (("--vocabulary", 255), "argument --vocabulary: expected 256 or more, got 255"),
        (("--steps", "many"), "argument --steps: invalid number value: 'many'"),
        (("--micro-batch", 3), "--batch: expected a multiple of --micro-batch x processes"),
        (("--heads", 3), "--width: expected a multiple of --heads"),
        (("--save-every", 3), "--save-every: expected a multiple of --log-every"),
        (("--stop-at", 3), "--stop-at: expected a multiple of --log-every"),
        (("--graph", "--compile"), "--graph: expected one process, and no --compile"),
        (("--resume",), "--resume: expected a checkpoint.pt in --out"),
        (
            ("--recipe", "ufp4", "--context", 9),
            "--context: expected a multiple of 16 tokens in a micro-batch under ufp4",
        ),
    ):
        given = ("--text", text, "--out", out, *SMALL.split(), "--device", "cpu", *arguments)
        with pytest.raises(SystemExit) as refused:
            pretrain.Run(pretrain.parse([str(a) for a in given]))
        said = capsys.readouterr().err if refused.value.code == 2 else refused.value.code
        last = said.strip().splitlines()[-1]
        assert last.removeprefix(f"{Path(sys.argv[0]).name}: error: ").startswith(expected), said
        assert not out.exists()
    monkeypatch.setattr(pretrain.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        pretrain.parse(["--text", str(text), "--out", str(out), "--device", "cuda"])
    assert "--device: expected cpu" in capsys.readouterr().err


def test_plot_refuses_in_one_line(tmp_path):
    sys.path.insert(0, str(HERE))
    import plot

    empty, other, svg = (str(tmp_path / name) for name in ("empty.csv", "other.csv", "out.svg"))
    Path(empty).write_text("step,tokens,loss\n")
    Path(other).write_text("run,steps\nbf16_s1_20,20\n")
    for arguments, expected in (
        ((), "What runs of pretrain.py came to"),
        ((empty,), "What runs of pretrain.py came to"),
        (("table", other, "x"), "What runs of pretrain.py came to"),
        ((str(tmp_path / "none"), svg), "plot.py: .*No such file"),
        ((empty, svg), "plot.py: no losses in"),
        (("table", other, "21"), "plot.py: no runs of 21 steps"),
        (("table", other, "20"), "plot.py: expected a column 'final_loss'"),
    ):
        with pytest.raises(SystemExit, match=expected):
            plot.main(list(arguments))
        assert not Path(svg).exists()


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


def test_a_run_of_the_recipe_that_draws_scales_learns(tmp_path):
    pretrain(tmp_path / "run", "--steps", "6", "--recipe", "quartet2")
    losses = [row["loss"] for row in curve(tmp_path / "run")]
    assert len(losses) == 3 and losses[2] < losses[1] < losses[0]


def test_an_interrupted_run_goes_on_where_it_was(whole, tmp_path):
    arguments = ("--steps", "12", "--recipe", "ue5m3", "--period", "5", "--save-every", "2")
    pretrain(tmp_path / "cut", *arguments, "--stop-at", "8")
    assert "resumed after step 8" in pretrain(tmp_path / "cut", *arguments, "--resume", "--graph")
    for a, b in zip(curve(whole), curve(tmp_path / "cut"), strict=True):
        assert a["loss"] == b["loss"] and (a["held_out"] == b["held_out"] or math.isnan(a["held_out"]))


def test_two_processes_train_alike(whole, tmp_path):
    printed = pretrain(tmp_path / "two", "--steps", "12", "--recipe", "ue5m3", "--period", "5", processes=2)
    assert "equal on all 2 ranks" in printed
    for a, b in zip(curve(whole), curve(tmp_path / "two"), strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=0.03)


def test_the_table_pairs_runs_by_seed(tmp_path):
    sys.path.insert(0, str(HERE))
    import plot

    columns = ["run", "steps", "final_loss", "held_out"]
    rows = [("bf16_s1_20", 1.0, 0.5), ("bf16_s2_20", 2.0, 0.5), ("mine_s2_20", 2.5, 0.6), ("mine_s1_20", 1.1, 0.5),
            ("lone_s3_20", 9.0, 9.0), ("bf16_s3_40", 9.0, 9.0), ("mine_s2_20", 2.5, 0.6), ("again_20", 9.0, 9.0)]  # fmt: skip
    for run, loss, held_out in rows:
        values = (run, run.rsplit("_", 1)[1], loss, held_out)
        plot.append_result(tmp_path / "results.csv", dict(zip(columns, values, strict=True)))
    assert plot.table(tmp_path / "results.csv", 20).splitlines()[2:] == [
        "| `bf16` | 2 | 1.5000 (1.0000 … 2.0000) |  |  | 0.5000 (0.5000 … 0.5000) |  |",
        (
            "| `mine` | 2 | 1.8000 (1.1000 … 2.5000) | +0.3000 (+0.1000 … +0.5000) | 20.0 % | 0.5500 (0.5000 … 0.6000) "
            "| +0.0500 (+0.0000 … +0.1000) |"
        ),
        "| `lone` | 1 | 9.0000 |  |  | 9.0000 |  |",
    ]


def test_curves_of_one_name_are_a_line_with_a_band(tmp_path):
    sys.path.insert(0, str(HERE))
    import plot

    for run, losses in (("bf16_s1_20", (4, 3, 2)), ("bf16_s2_20", (5, 4, 3)), ("other", (4, 4, 4))):
        (tmp_path / run).mkdir()
        lines = ["step,tokens,loss"] + [f"{i},{i * 10},{loss}" for i, loss in enumerate(losses, 1)]
        (tmp_path / run / "curves.csv").write_text("\n".join(lines) + "\n")
    plot.losses(sorted(tmp_path.glob("*/curves.csv")), tmp_path / "all.svg")
    svg = (tmp_path / "all.svg").read_text()
    assert (
        svg.count("<polyline") == 4 and svg.count("<polygon") == 1
    )  # a band of losses; none of differences from itself
    assert ">bf16, 2 seeds</text>" in svg and ">other</text>" in svg
    assert plot.spread([{1: 2.0, 2: 4.0}, {1: 4.0, 3: 1.0}]) == [(1, 3.0, 2.0, 4.0)]
