#!/usr/bin/env python3
"""Times what a Python user would reach for instead, on the sizes and the kind of data of the host benchmarks, one
thread: casts of ml_dtypes (elements only, no scales) and of torch, and NVFP4 in eager torch, whichever is installed.
Prints JSON as Google Benchmark does, so that bench/report.py reads both."""

import importlib
import importlib.util
import json
import os
import sys
import time

import numpy as np

SIZES = {"l2": 12 * 4096, "dram": 8192 * 4096}


def library(name):
    """The module, or None where it is not installed. Functions of CUDA are looked up when they are called: never."""
    sys.setdlopenflags(os.RTLD_LAZY)
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def quantize_nvfp4(torch, x):
    """Blocks of 16, a UE4M3 scale each, codes by counting the boundaries below a magnitude: eager PyTorch without FP4."""
    blocks = x.view(-1, 16)
    scale = (blocks.abs().amax(1, keepdim=True) / 6).to(torch.float8_e4m3fn)
    y = blocks / scale.float().clamp_min(2.0**-9)
    codes = torch.bucketize(y.abs(), torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]), out_int32=True)
    codes = (codes | (y < 0).int() << 3).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, scale


def median_time(run, repetitions=5):
    run()
    times = []
    for _ in range(repetitions):
        count = 1
        while True:
            start = time.perf_counter()
            for _ in range(count):
                run()
            elapsed = time.perf_counter() - start
            if elapsed > 0.05:
                break
            count *= 2
        times.append(elapsed / count)
    return sorted(times)[len(times) // 2]


def main():
    results = []

    def add(name, elements, run):
        seconds = median_time(run)
        results.append(
            {"name": name, "run_name": name, "aggregate_name": "median", "items_per_second": elements / seconds}
        )

    data = np.random.default_rng(1).standard_normal(max(SIZES.values()), dtype=np.float32)
    ml_dtypes, torch = library("ml_dtypes"), library("torch")
    if ml_dtypes is None and torch is None:
        sys.exit("neither ml_dtypes nor torch is installed")
    for size, elements in SIZES.items():
        x = data[:elements]
        out = np.empty_like(x)
        add(f"copy/f32/numpy/{size}", elements, lambda: np.copyto(out, x))
        if ml_dtypes is not None:
            add(f"cast/e2m1/ml_dtypes/{size}", elements, lambda: x.astype(ml_dtypes.float4_e2m1fn))
            add(f"cast/e4m3/ml_dtypes/{size}", elements, lambda: x.astype(ml_dtypes.float8_e4m3fn))
        if torch is not None:
            torch.set_num_threads(1)
            t = torch.from_numpy(x)
            add(f"cast/e4m3/torch/{size}", elements, lambda: t.to(torch.float8_e4m3fn))
            add(f"quantize/nvfp4/torch/{size}", elements, lambda: quantize_nvfp4(torch, t))
    print(json.dumps({"context": {}, "benchmarks": results}, indent=1))


if __name__ == "__main__":
    main()
