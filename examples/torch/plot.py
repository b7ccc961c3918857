#!/usr/bin/env python3
"""Curves of pretrain.py as SVG: plot.py RUN/curves.csv... OUT.svg"""

import csv
import math
import sys
from pathlib import Path

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 860, 460, 70, 50, 20, 190


def read(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return [(float(r["tokens"]), float(r["loss"])) for r in rows]


def smoothed(points, width):
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


def losses(paths, out):
    """Training loss over tokens, a line for each file, named by its folder; the first quarter sets no scale."""
    curves = [(Path(p).resolve().parent.name, smoothed(read(p), 5)) for p in paths]
    curves = [(name, points) for name, points in curves if points]
    if not curves:
        return
    right = max(p[-1][0] for _, p in curves)
    seen = [y for _, p in curves for x, y in p if x >= right / 4 and math.isfinite(y)] or [0.0, 1.0]
    low, high = min(seen), max(seen)
    low, high = low - 0.05 * (high - low) - 1e-6, high + 0.05 * (high - low) + 1e-6

    def at(x, y):
        return (LEFT + x / right * (WIDTH - LEFT - RIGHT), TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM))

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<clipPath id="plot"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath>',
    ]
    for y in ticks(low, high):
        py = at(0, y)[1]
        svg.append(f'<path d="M{LEFT} {py:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        svg.append(f'<text x="{LEFT - 8}" y="{py + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in ticks(0, right):
        px = at(x, low)[0]
        svg.append(f'<text x="{px:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x / 1e6:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    svg.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">tokens (millions)</text>')
    svg.append(f'<text x="16" y="{HEIGHT / 2}" transform="rotate(-90 16 {HEIGHT / 2})" text-anchor="middle">'
               "training loss (nats a byte)</text>")  # fmt: skip
    for i, (name, points) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(x, y) for x, y in points if math.isfinite(y)))
        svg.append(f'<polyline clip-path="url(#plot)" points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        y = TOP + 14 + 18 * i
        svg.append(f'<path d="M{WIDTH - RIGHT + 10} {y - 4}h20" stroke="{colour}" stroke-width="2"/>')
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
