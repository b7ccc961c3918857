#!/usr/bin/env python3
"""Curves of pretrain.py as SVG: plot.py RUN/curves.csv... OUT.svg"""

import csv
import math
import sys
from pathlib import Path

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
WIDTH, LEFT, RIGHT, TOP, GAP, BOTTOM = 900, 70, 240, 20, 30, 50


def read(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return [(float(r["tokens"]), float(r["loss"])) for r in rows]


def smoothed(points, width=5):
    out = []
    for i in range(len(points)):
        part = points[max(0, i - width + 1) : i + 1]
        out.append((points[i][0], sum(p[1] for p in part) / len(part)))
    return out


def ticks(low, high, count=6):
    rough = (high - low) / count or 1.0
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / step) * step
    return [first + i * step for i in range(int((high - first) / step + 1e-9) + 1)]


def panel(curves, right, top, height, title):
    """One plot of curves over tokens; the first quarter sets no scale."""
    seen = [y for _, p in curves for x, y in p if x >= right / 4 and math.isfinite(y)] or [0.0, 1.0]
    margin = 0.05 * (max(seen) - min(seen)) + 1e-6
    low, high = min(seen) - margin, max(seen) + margin

    def at(x, y):
        return LEFT + x / right * (WIDTH - LEFT - RIGHT), top + (high - y) / (high - low) * height

    clip = f"panel{top}"
    width = WIDTH - LEFT - RIGHT
    svg = [f'<clipPath id="{clip}"><rect x="{LEFT}" y="{top}" width="{width}" height="{height}"/></clipPath>']
    for y in ticks(low, high):
        py = at(0, y)[1]
        svg.append(f'<path d="M{LEFT} {py:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        svg.append(f'<text x="{LEFT - 8}" y="{py + 4:.1f}" text-anchor="end">{round(y, 9):g}</text>')
    middle = top + height / 2
    svg.append(f'<text x="16" y="{middle}" transform="rotate(-90 16 {middle})" text-anchor="middle">{title}</text>')
    for i, (_, points) in enumerate(curves):
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(x, y) for x, y in points if math.isfinite(y)))
        colour = COLOURS[i % len(COLOURS)]
        svg.append(f'<polyline clip-path="url(#{clip})" points="{line}" fill="none" stroke="{colour}"/>')
    return svg


def losses(paths, out):
    """Training loss over tokens, a line for each file, named by its folder; below, each less the first file's."""
    curves = [(Path(p).resolve().parent.name, smoothed(read(p))) for p in paths]
    curves = [(name, points) for name, points in curves if points]
    if not curves:
        return
    right = max(points[-1][0] for _, points in curves)
    first = dict(curves[0][1])
    differences = [(name, [(x, y - first[x]) for x, y in points if x in first]) for name, points in curves]
    panels = [(curves, "training loss, nats a byte")]
    if len(curves) > 1:
        panels.append((differences, f"less {curves[0][0]}"))
    panel_height = 300
    height = TOP + len(panels) * (panel_height + GAP) - GAP + BOTTOM
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for i, (lines, title) in enumerate(panels):
        svg += panel(lines, right, TOP + i * (panel_height + GAP), panel_height, title)
    for x in ticks(0, right):
        px = LEFT + x / right * (WIDTH - LEFT - RIGHT)
        svg.append(f'<text x="{px:.1f}" y="{height - BOTTOM + 18}" text-anchor="middle">{x / 1e6:g}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 12}" text-anchor="middle">tokens, millions</text>')
    for i, (name, _) in enumerate(curves):
        y = TOP + 14 + 18 * i
        svg.append(
            f'<path d="M{WIDTH - RIGHT + 10} {y - 4}h20" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2"/>'
        )
        svg.append(f'<text x="{WIDTH - RIGHT + 36}" y="{y}">{name}</text>')
    Path(out).write_text("\n".join(svg) + "\n</svg>\n")


def append_result(path, summary):
    """A row of a results file, which keeps every run that was ever made."""
    new = not Path(path).exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, list(summary))
        if new:
            writer.writeheader()
        writer.writerow(summary)


if __name__ == "__main__":
    losses(sys.argv[1:-1], sys.argv[-1])
