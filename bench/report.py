#!/usr/bin/env python3
"""Rewrites the host's part of docs/performance.md from Google Benchmark's JSON.

    report.py RESULTS_DIRECTORY PERFORMANCE_MD FIGURES_DIRECTORY

Each RESULTS/NAME.json becomes the table between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`, and the figure
FIGURES/NAME.svg. Markers that are missing are an error; results that are missing leave their table as it is. Ratios are
to the baseline of the same size in the same file: the first name that begins as one of BASELINES, else the first."""

import datetime
import json
import pathlib
import re
import sys

UNITS = {"gemm": "Gmul/s"}
BASELINES = ("memcpy/", "copy/", "gemm/openblas")
OTHERS = re.compile(r"^gemm/(onednn|eigen)")

ONE, MIDDLE, LARGE, PRIME = "1x4096x4096", "128x4096x4096", "4096x4096x1024", "127x4093x4099"


def of(what, other):
    return f"gemm/{what}", f"gemm/{other}"


# What is aimed at: what the row says, ratios of two names, the aim.
AIMS = {
    "gemm_host_bench": [
        ("`nvfp4`, M = 1: times OpenBLAS FP32", [of(f"nvfp4/host/{ONE}", f"openblas_f32/host/{ONE}")], "14"),
        (
            "M = 128: times OpenBLAS FP32; oneDNN BF16",
            [of(f"nvfp4/host/{MIDDLE}", f"{other}/host/{MIDDLE}") for other in ("openblas_f32", "onednn_bf16")],
            "3; 1.15",
        ),
        (
            "M = N = 4096, K = 1024: the same",
            [of(f"nvfp4/host/{LARGE}", f"{other}/host/{LARGE}") for other in ("openblas_f32", "onednn_bf16")],
            "2.8; 1.3",
        ),
        (
            "M = 128, blocks of 32: the same",
            [of(f"ue5m3_fp4_b32/host/{MIDDLE}", f"{other}/host/{MIDDLE}") for other in ("openblas_f32", "onednn_bf16")],
            "–; 1.5",
        ),
        (
            "BF16 rows and `nvfp4` weights, M = 1: times OpenBLAS FP32",
            [of(f"nvfp4_weights/host/{ONE}", f"openblas_f32/host/{ONE}")],
            "–",
        ),
        (
            "prime dimensions: a product, of one of M = 128",
            [of(f"nvfp4/host/{PRIME}", f"nvfp4/host/{MIDDLE}")],
            ".7",
        ),
        (
            "AVX2; 128-bit vectors: of AVX-512, M = 128",
            [of(f"nvfp4/host_{level}/{MIDDLE}", f"nvfp4/host/{MIDDLE}") for level in ("avx2", "portable")],
            ".33; .05",
        ),
        (
            "two threads: times one, M = 128; 4096",
            [of(f"nvfp4/host_2_threads/{size}", f"nvfp4/host/{size}") for size in (MIDDLE, LARGE)],
            "1.8",
        ),
        (
            "`exact_f32`; `blackwell_k64`: of `f32_blocks`, M = 128",
            [of(f"nvfp4_{sums}/host/{MIDDLE}", f"nvfp4/host/{MIDDLE}") for sums in ("exact_f32", "blackwell_k64")],
            "–",
        ),
    ]
}


def machine():
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    names = [l.split(":", 1)[1].strip() for l in lines if l.startswith("model name")]
    flags = next((l for l in lines if l.startswith("flags")), "")
    level = "AVX-512" if "avx512_vbmi2" in flags else "AVX2" if " avx2 " in flags else "baseline"
    return f"{names[0] if names else 'unknown processor'}, {len(names)} processors, {level}"


def medians(path):
    """(name, items per second, bytes per second) in the order of the run's names."""
    rows = {}
    for b in json.loads(path.read_text(encoding="utf8"))["benchmarks"]:
        if b.get("aggregate_name") == "median" and "items_per_second" in b:
            rows[b["run_name"].removesuffix("/real_time")] = (b["items_per_second"], b.get("bytes_per_second"))
    return rows


def size_of(name):
    return name.rsplit("/", 1)[-1]


def is_baseline(name):
    return name.startswith(BASELINES)


def in_order(rows):
    """Size by size, the baseline first: the benchmarks ran in random order."""
    return sorted(rows.items(), key=lambda row: (size_of(row[0]), not is_baseline(row[0]), row[0]))


def ratios(rows):
    """(name, items per second, bytes per second, ratio to the baseline) size by size."""
    baseline = {}
    return [
        (name, items, size, items / baseline.setdefault(size_of(name), items)) for name, (items, size) in in_order(rows)
    ]


def table(rows, unit):
    has_bytes = any(size for _, size in rows.values())
    head = ["operation", unit] + ["GB/s"] * has_bytes + ["to the baseline"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, items, size, ratio in ratios(rows):
        cells = [f"`{name}`", f"{items / 1e9:.2f}"]
        cells += [f"{size / 1e9:.1f}" if size else "–"] * has_bytes + [f"{ratio:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def aims(name, rows):
    """A table of what was aimed at, of the ratios whose names were all measured."""
    lines = []
    for what, pairs, aim in AIMS.get(name, []):
        if all(a in rows and b in rows for a, b in pairs):
            lines.append(f"| {what} | {'; '.join(f'{rows[a][0] / rows[b][0]:.3g}' for a, b in pairs)} | {aim} |")
    return "\n".join(["| one thread | reached | aim |", "|---|---|---|", *lines, "", ""]) if lines else ""


def figure(rows, unit):
    """Horizontal bars, one for each name, under a heading for each size with a scale of its own: the baseline's grey,
    those of others lighter, this library's blue."""
    names = {name: name.rsplit("/", 1)[0] for name in rows}
    left, width, step, head = 20 + 7 * max(map(len, names.values())), 420, 20, 34
    by_size = {}
    for row in ratios(rows):
        by_size.setdefault(size_of(row[0]), []).append(row)
    height = step * len(rows) + head * len(by_size) + 8
    total = left + width + 110
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" viewBox="0 0 {total} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    y = 0
    for size, bars in by_size.items():
        top = max(items for _, items, _, _ in bars)
        out.append(f'<text x="{left}" y="{y + head - 10}" font-weight="bold">{size}</text>')
        out.append(f'<text x="{total - 8}" y="{y + head - 10}" text-anchor="end" fill="#666">{unit} (ratio)</text>')
        y += head
        for name, items, _, ratio in bars:
            backend = names[name].rsplit("/", 1)[-1]
            ours = backend.startswith("host") and not is_baseline(name) and not OTHERS.search(name)
            colour = "#2a6fbb" if ours else "#8a8a8a" if is_baseline(name) else "#bdbdbd"
            bar = max(1.0, width * items / top)
            out.append(
                f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{names[name]}</text>'
                f'<rect x="{left}" y="{y}" width="{bar:.1f}" height="{step - 5}" fill="{colour}"/>'
                f'<text x="{left + bar + 5:.1f}" y="{y + 12}">{items / 1e9:.2f} ({ratio:.2f})</text>'
            )
            y += step
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    results, document, figures = (pathlib.Path(a) for a in sys.argv[1:])
    text = document.read_text(encoding="utf8")
    found = sorted(results.glob("*.json"))
    if not found:
        sys.exit(f"no results in {results}")
    for path in found:
        name = path.stem
        rows = medians(path)
        if not rows:
            sys.exit(f"{path}: no medians in it")
        unit = next((u for operation, u in UNITS.items() if name.startswith(operation)), "Gelem/s")
        begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
        if begin not in text or end not in text:
            sys.exit(f"{document}: no markers {begin} … {end}")
        figures.mkdir(exist_ok=True)
        (figures / f"{name}.svg").write_text(figure(rows, unit), encoding="utf8")
        body = (
            f"{begin}\n\n{aims(name, rows)}{table(rows, unit)}\n\n![{name}](figures/{name}.svg)\n\n"
            f"{machine()}; {datetime.date.today().isoformat()}; `./bench/run`.\n\n{end}"
        )
        text = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: body, text, flags=re.S)
    document.write_text(text, encoding="utf8")


if __name__ == "__main__":
    main()
