#!/usr/bin/env python3
"""What runs of pretrain.py came to.

plot.py RUN/curves.csv... OUT.svg      curves; runs NAME_sSEED_STEPS of one NAME are a line and the band of its seeds
plot.py table RESULTS.csv STEPS        losses and their distance from BF16, as a table in Markdown
"""

import csv
import fcntl
import math
import os
import re
import sys
from collections import defaultdict
from pathlib import Path

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
WIDTH, LEFT, RIGHT, TOP, GAP, BOTTOM = 940, 70, 280, 20, 30, 50


def read(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return [(float(r["tokens"]), float(r["loss"])) for r in rows]


def smoothed(points, width=5):
    out = {}
    for i in range(len(points)):
        part = points[max(0, i - width + 1) : i + 1]
        out[points[i][0]] = sum(p[1] for p in part) / len(part)
    return out


def split_name(run):
    """The name and the seed of a run called NAME_sSEED_STEPS; other runs are their own name, without a seed."""
    found = re.fullmatch(r"(.+)_s(\d+)_\d+", run)
    return (found.group(1), int(found.group(2))) if found else (run, None)


def spread(curves):
    """[(x, mean, lowest, highest)] of curves, where all have a value."""
    common = set.intersection(*(set(c) for c in curves))
    columns = [(x, [c[x] for c in curves]) for x in sorted(common)]
    return [(x, sum(ys) / len(ys), min(ys), max(ys)) for x, ys in columns if all(map(math.isfinite, ys))]


def ticks(low, high, count=6):
    rough = (high - low) / count or 1.0
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / step) * step
    return [first + i * step for i in range(int((high - first) / step + 1e-9) + 1)]


def panel(lines, right, top, height, title):
    """One plot of lines with their bands over tokens; the first quarter sets no scale."""
    seen = [y for _, points in lines for p in points if p[0] >= right / 4 for y in p[2:]] or [0.0, 1.0]
    margin = 0.05 * (max(seen) - min(seen)) + 1e-6
    low, high = min(seen) - margin, max(seen) + margin

    def at(x, y):
        px, py = LEFT + x / right * (WIDTH - LEFT - RIGHT), top + (high - y) / (high - low) * height
        return f"{px:.1f},{py:.1f}"

    clip = f"panel{top}"
    width = WIDTH - LEFT - RIGHT
    svg = [f'<clipPath id="{clip}"><rect x="{LEFT}" y="{top}" width="{width}" height="{height}"/></clipPath>']
    for y in ticks(low, high):
        py = float(at(0, y).split(",")[1])
        svg.append(f'<path d="M{LEFT} {py:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        svg.append(f'<text x="{LEFT - 8}" y="{py + 4:.1f}" text-anchor="end">{round(y, 9):g}</text>')
    middle = top + height / 2
    svg.append(f'<text x="16" y="{middle}" transform="rotate(-90 16 {middle})" text-anchor="middle">{title}</text>')
    for i, (_, points) in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        if any(p[2] != p[3] for p in points):
            outline = [at(p[0], p[3]) for p in points] + [at(p[0], p[2]) for p in reversed(points)]
            svg.append(f'<polygon clip-path="url(#{clip})" points="{" ".join(outline)}" fill="{colour}" '
                       'fill-opacity="0.15"/>')  # fmt: skip
        line = " ".join(at(p[0], p[1]) for p in points)
        svg.append(f'<polyline clip-path="url(#{clip})" points="{line}" fill="none" stroke="{colour}"/>')
    return svg


def losses(paths, out):
    """Training loss over tokens, a line for each name, in the order of the files; below, each seed less that
    seed of the first name."""
    curves = defaultdict(dict)
    for path in paths:
        name, seed = split_name(Path(path).resolve().parent.name)
        points = smoothed(read(path))
        if points:
            curves[name][seed] = points
    if not curves:
        raise ValueError(f"no losses in {', '.join(map(str, paths))}")
    right = max(x for seeds in curves.values() for c in seeds.values() for x in c)
    panels = [([(name, spread(list(seeds.values()))) for name, seeds in curves.items()], "training loss, nats a byte")]
    if len(curves) > 1:
        base_name = next(iter(curves))
        base = curves[base_name]
        only = next(iter(base.values()))
        differences = []
        for name, seeds in curves.items():
            less = [{x: y - base.get(s, only)[x] for x, y in c.items() if x in base.get(s, only)}
                    for s, c in seeds.items()]  # fmt: skip
            differences.append((name, spread(less)))
        panels.append((differences, f"less {base_name}"))
    panel_height = 300
    height = TOP + len(panels) * (panel_height + GAP) - GAP + BOTTOM
    svg = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
            'font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for i, (lines, title) in enumerate(panels):
        svg += panel(lines, right, TOP + i * (panel_height + GAP), panel_height, title)
    for x in ticks(0, right):
        px = LEFT + x / right * (WIDTH - LEFT - RIGHT)
        svg.append(f'<text x="{px:.1f}" y="{height - BOTTOM + 18}" text-anchor="middle">{x / 1e6:g}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 12}" text-anchor="middle">tokens, millions</text>')
    for i, (name, seeds) in enumerate(curves.items()):
        y = TOP + 14 + 18 * i
        count = f", {len(seeds)} seeds" if len(seeds) > 1 else ""
        svg.append(
            f'<path d="M{WIDTH - RIGHT + 10} {y - 4}h20" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2"/>'
        )
        svg.append(f'<text x="{WIDTH - RIGHT + 36}" y="{y}">{name}{count}</text>')
    Path(out).write_text("\n".join(svg) + "\n</svg>\n")


def append_result(path, summary):
    """A row of a results file, which keeps every run that was ever made; several runs may write at once."""
    with open(path, "a", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer = csv.DictWriter(file, list(summary))
        if file.seek(0, os.SEEK_END) == 0:
            writer.writeheader()
        writer.writerow(summary)


def table(results, steps):
    """Mean and extremes over the seeds of runs NAME_sSEED_STEPS, and the distance from BF16 runs of the same seeds."""
    runs = defaultdict(dict)
    with open(results, newline="") as file:
        for row in csv.DictReader(file):
            name, seed = split_name(row["run"])
            if int(row["steps"]) == steps and seed is not None:
                runs[name][seed] = row
    if not runs:
        raise ValueError(f"no runs of {steps} steps in {results}")
    rows = [
        "| run | seeds | training loss | against BF16 | | held-out loss | against BF16 |",
        "|---|---|---|---|---|---|---|",
    ]
    final = {name: [float(row["final_loss"]) for row in seeds.values()] for name, seeds in runs.items()}
    for name in sorted(runs, key=lambda name: sum(final[name]) / len(final[name])):
        seeds = runs[name]
        cells = [f"`{name}`", str(len(seeds))]
        for what in ("final_loss", "held_out"):
            own = {s: float(row[what]) for s, row in seeds.items()}
            base = {s: float(row[what]) for s, row in runs["bf16"].items()}
            cells.append(text_of_spread(list(own.values()), "{:.4f}"))
            less = [own[s] - base[s] for s in own if s in base]
            if name == "bf16" or not less:
                cells += [""] * (2 if what == "final_loss" else 1)
                continue
            cells.append(text_of_spread(less, "{:+.4f}"))
            if what == "final_loss":
                paired = [base[s] for s in own if s in base]
                cells.append(f"{100 * sum(less) / sum(paired):.1f} %")
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def text_of_spread(values, form):
    mean = form.format(sum(values) / len(values))
    return mean if len(values) == 1 else f"{mean} ({form.format(min(values))} … {form.format(max(values))})"


def main(arguments):
    try:
        if len(arguments) == 3 and arguments[0] == "table" and arguments[2].isdecimal():
            print(table(arguments[1], int(arguments[2])))
        elif len(arguments) >= 2 and arguments[-1].endswith(".svg"):
            losses(arguments[:-1], arguments[-1])
        else:
            raise SystemExit(__doc__.strip())
    except (OSError, ValueError) as error:
        raise SystemExit(f"plot.py: {error}") from None
    except KeyError as error:
        raise SystemExit(f"plot.py: expected a column {error} in each file") from None


if __name__ == "__main__":
    main(sys.argv[1:])
