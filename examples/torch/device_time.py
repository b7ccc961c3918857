"""Where a GPU's time went in a trace of torch.profiler: work, collectives by what they are for, and waiting."""


def union(spans):
    """Sorted spans without overlap that cover the same time."""
    out = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([begin, end])
    return out


def length(spans):
    return sum(end - begin for begin, end in union(spans))


def _is_on_device(event):
    return event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")


def _launched_in(events, name):
    """The correlation numbers of what was launched by a thread while it was in a range of that name."""
    ranges = {}
    for e in events:
        if e.get("cat") == "user_annotation" and e["name"] == name:
            ranges.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    return {
        e["args"]["correlation"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver")
        and any(begin <= e["ts"] < end for begin, end in ranges.get(e["tid"], ()))
    }


def account(events, amax_range):
    """Of the events of a trace (`traceEvents` of its JSON), in microseconds: `window`, from the first thing on the
    device to the last; `work`, in which anything but a collective ran; for the collectives of `amax` (NCCL's kernels
    launched in ranges of the name `amax_range`) and of `gradients` (its others) their number, each one's time, and
    `exposed`, in which nothing else ran; `idle`, in which nothing did. work + exposed + exposed + idle = window.
    """
    amax = _launched_in(events, amax_range)
    spans = {"work": [], "amax": [], "gradients": []}
    for e in filter(_is_on_device, events):
        kind = "work"
        if e["cat"] == "kernel" and e["name"].startswith("nccl"):
            kind = "amax" if e["args"]["correlation"] in amax else "gradients"
        spans[kind].append((e["ts"], e["ts"] + e["dur"]))
    everything = union([s for part in spans.values() for s in part])
    window = everything[-1][1] - everything[0][0] if everything else 0.0
    work, with_amax = length(spans["work"]), length(spans["work"] + spans["amax"])
    exposed = {"amax": with_amax - work, "gradients": length(everything) - with_amax}
    out = {"window": window, "work": work, "idle": window - length(everything)}
    for kind, time in exposed.items():
        each = [end - begin for begin, end in sorted(spans[kind])]
        out[kind] = {"count": len(each), "each": each, "exposed": time}
    return out


def table(accounts, steps):
    """Lines of a table with a column for each rank, in milliseconds a step. Ranks meet in the same order of collectives,
    so of each one the shortest time over ranks is the exchange, and the rest of it waiting for the others.
    """
    rows = [("from first to last", [a["window"] for a in accounts]), ("work", [a["work"] for a in accounts])]
    for kind in ("amax", "gradients"):
        parts = [a[kind] for a in accounts]
        rows.append((f"{kind}: {parts[0]['count'] / steps:g} collectives", [sum(p["each"]) for p in parts]))
        if len(parts) > 1 and len({p["count"] for p in parts}) == 1:
            exchange = sum(map(min, zip(*(p["each"] for p in parts))))
            rows.append((f"{kind}: exchange, without waiting", [exchange] * len(parts)))
        rows.append((f"{kind}: nothing else running", [p["exposed"] for p in parts]))
    rows.append(("nothing running", [a["idle"] for a in accounts]))
    head = f"{'ms a step':40}" + "".join(f"{f'rank {r}':>10}" for r in range(len(accounts)))
    return [head] + [f"{name:40}" + "".join(f"{v / 1e3 / steps:10.3f}" for v in values) for name, values in rows]
