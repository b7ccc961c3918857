#!/usr/bin/env python3
"""Times what a Python user would reach for instead, on the sizes and the kind of data of the host benchmarks, one
thread: ml_dtypes' cast to E2M1 (elements only, no scales), and torch's where it is installed. Prints JSON as Google
Benchmark does, so that bench/report.py reads both."""

import json
import time

import numpy as np

SIZES = {"l2": 12 * 4096, "dram": 8192 * 4096}


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
    for size, elements in SIZES.items():
        x = data[:elements]
        out = np.empty_like(x)
        add(f"copy/f32/numpy/{size}", elements, lambda: np.copyto(out, x))
        try:
            import ml_dtypes

            add(f"cast/e2m1/ml_dtypes/{size}", elements, lambda: x.astype(ml_dtypes.float4_e2m1fn))
            add(f"cast/e4m3/ml_dtypes/{size}", elements, lambda: x.astype(ml_dtypes.float8_e4m3fn))
        except (ImportError, AttributeError):
            pass
        try:
            import torch

            torch.set_num_threads(1)
            t = torch.from_numpy(x)
            add(f"cast/e4m3/torch/{size}", elements, lambda: t.to(torch.float8_e4m3fn))
        except ImportError:
            pass
    print(json.dumps({"context": {}, "benchmarks": results}, indent=1))


if __name__ == "__main__":
    main()
