#!/usr/bin/env python3
"""What amax collectives cost: step times of a model of GPT-2-small's size, 16 sequences on each GPU, under recipes that
need them never, in one step of 50, and in every step.

    python scaling.py --text text.txt --out runs/x1
    torchrun --standalone --nproc-per-node 2 scaling.py --text text.txt --out runs/x2

The cases take turns, so that what disturbs the machine meets all; the first turn is not counted. Then, with several
GPUs, a profile says where each rank's time goes. Leaves scaling.csv in --out, and a folder for each profile.
"""

import argparse
import csv
import datetime
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
import torch.distributed as dist

import microscale_torch as ms
import pretrain

WARM_UP, STEPS = 2, 10  # of a turn; up to step 50 none of the steps timed is one that a period of 50 samples

CASES = {
    "bf16": ("--recipe", "bf16"),
    "ue5m3, period 50": ("--recipe", "ue5m3"),
    "ue5m3, period 1, own amax": ("--recipe", "ue5m3", "--period", "1"),
    "ue5m3, period 1": ("--recipe", "ue5m3", "--period", "1"),
    "nvfp4_everywhere": ("--recipe", "nvfp4_everywhere"),
}
PROFILED = ("ue5m3, period 50", "ue5m3, period 1", "nvfp4_everywhere")


def model_arguments(small):
    width, context, vocabulary, batch = ("64", "32", "256", 2) if small else ("768", "1024", "50304", 16)
    layers = "1" if small else "12"
    return ("--layers", layers, "--width", width, "--heads", layers, "--context", context, "--vocabulary", vocabulary,
            "--batch", str(batch * int(os.environ.get("WORLD_SIZE", "1"))))  # fmt: skip


def make(name, options):
    out = options.out / name.replace(", ", "_").replace(" ", "_")
    run = pretrain.Run(
        pretrain.parse(("--text", str(options.text), "--out", str(out), *model_arguments(options.small), *CASES[name]))
    )
    if name.endswith("own amax"):
        for module in run.model.modules():
            if isinstance(module, ms.Linear):
                module.group = "none"
    return run


def turn(run):
    """Milliseconds of a step, and of that in which the host had not yet handed it over."""
    for _ in range(WARM_UP):
        run.train_step()
    run.wait()
    if dist.is_initialized():
        dist.barrier()
    run.wait()
    began = time.perf_counter()
    for _ in range(STEPS):
        run.train_step()
    handed_over = time.perf_counter()
    run.wait()
    return [(t - began) * 1e3 / STEPS for t in (time.perf_counter(), handed_over)]


def report(run, times, path):
    """A line for each case, and a row of the file at `path`; `run` stands for all, which differ in the recipe."""
    tokens = run.options.batch * run.options.context
    device = torch.cuda.get_device_name() if run.options.device == "cuda" else "cpu"
    print(f"{'ms a step':28}{'median':>9}{'least':>9}{'most':>9}{'host':>9}{'tokens/s':>11}")
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["date", "case", "processes", "ms", "least", "most", "host_ms", "tokens_per_second", "device"])
        for name, turns in times.items():
            steps, hosts = zip(*turns)
            figures = [statistics.median(steps), min(steps), max(steps), statistics.median(hosts)]
            rate = tokens / figures[0] * 1e3
            print(f"{name:28}" + "".join(f"{x:9.2f}" for x in figures) + f"{rate:11,.0f}", flush=True)
            today = datetime.date.today().isoformat()
            writer.writerow([today, name, run.world, *(round(x, 3) for x in figures), round(rate), device])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=2, choices=(1, 2, 3))
    parser.add_argument("--small", action="store_true", help="a tiny model, to see that this runs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")

    runs = {name: make(name, options) for name in CASES}
    times = {name: [] for name in CASES}
    for number in range(options.turns + 1):
        for name, run in runs.items():
            took = turn(run)
            if number > 0:
                times[name].append(took)

    first = next(iter(runs.values()))
    if first.rank == 0:
        report(first, times, options.out / "scaling.csv")
    for name in PROFILED if first.world > 1 and first.options.device == "cuda" else ():
        _, where = runs[name].profile()
        if first.rank == 0:
            print(f"{name}:", *where, sep="\n", flush=True)
    pretrain.end(*runs.values())


if __name__ == "__main__":
    main()
