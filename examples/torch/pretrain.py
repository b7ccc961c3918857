#!/usr/bin/env python3
"""Pretrains a GPT on the bytes of a text under a recipe: one process, or several under torchrun.

    python pretrain.py --text text.txt --recipe ue5m3 --out runs/ue5m3
    NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node 2 pretrain.py --text text.txt --recipe ue5m3 --out runs/ue5m3_x2

Computes in BF16 (autocast) with FP32 master weights. The data of a step depends on the seed and the step alone, so runs
of any number of processes, and resumed ones, see the same. Leaves curves.csv, loss.svg, summary.json and checkpoint.pt
in --out; --resume goes on from there. --graph replays steps as CUDA graphs.
"""

import argparse
import csv
import datetime
import hashlib
import json
import lzma
import math
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # NVLink multicast stays off

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import microscale_torch as ms
from microscale_torch.linear import AMAX_RANGE

sys.path.insert(0, str(Path(__file__).resolve().parent))
import device_time
import plot


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(a.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary, context, layers, width, heads):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scaled = name.endswith(("out_proj.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if scaled else 0.02)

    def forward(self, tokens, targets):
        x = self.embedding(tokens) + self.position.weight[: tokens.size(1)]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Text:
    """The bytes of a file on the device; every 20th chunk, of 64 KiB in a long text, is held out."""

    CHUNK, EVERY = 1 << 16, 20

    def __init__(self, path, device, context):
        try:
            with lzma.open(path) if path.suffix == ".xz" else open(path, "rb") as file:
                data = bytearray(file.read())
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise SystemExit(f"--text: expected a file that can be read, got {path}: {error}") from None
        whole = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        chunks = whole.split(max(1, min(self.CHUNK, len(whole) // (2 * self.EVERY))))
        held_out = [c for i, c in enumerate(chunks) if i % self.EVERY == 1][:64]
        self.training = torch.cat([c for i, c in enumerate(chunks) if i % self.EVERY != 1]).to(device)
        self.held_out = torch.cat(held_out or [whole[:0]]).to(device)
        if min(len(self.training), len(self.held_out)) < context + 2:
            raise SystemExit(
                f"--text: expected more than {context + 1} bytes to train with and as many held out, got "
                f"{len(self.training)} and {len(self.held_out)}"
            )

    @staticmethod
    def take(data, starts, context):
        windows = data[starts[:, None].to(data.device) + torch.arange(context + 1, device=data.device)].long()
        return windows[:, :-1], windows[:, 1:]

    def batch(self, seed, step, batch, context):
        """The sequences of a step: the same whoever asks."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return torch.randint(len(self.training) - context - 1, (batch,), generator=generator)


def learning_rate(options, step):
    if step <= options.warmup:
        return options.lr * step / options.warmup
    part = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, part))))


@torch.no_grad()
def held_out_loss(model, text, options):
    model.eval()
    count = min(options.eval_sequences, (len(text.held_out) - 1) // options.context)
    losses = []
    for first in range(0, count, options.micro_batch):
        starts = torch.arange(first, min(count, first + options.micro_batch)) * options.context
        with torch.autocast(options.device, torch.bfloat16):
            losses.append(model(*Text.take(text.held_out, starts, options.context)) * len(starts))
    model.train()
    return (torch.stack(losses).sum() / count).item()


def digest(model):
    """Of what every rank must have alike: parameters, weights as the forward pass quantizes them, references."""
    h = hashlib.sha256()
    for parameter in model.parameters():
        h.update(parameter.detach().view(torch.uint8).cpu().numpy().tobytes())
    for module in model.modules():
        if isinstance(module, ms.Linear) and module.is_quantized:
            scheme = ms.ops.describe_recipe(module.recipe)["fprop"][1]["scheme"]
            reference = module.references[1:2] if module.carries_state else None
            q = ms.quantize(module.weight.detach(), scheme, reference=reference)
            for part in (q.codes, q.scales.view(torch.uint8), q.datum.view(torch.uint8)):
                h.update(part.cpu().numpy().tobytes())
            h.update(module.references.view(torch.uint8).cpu().numpy().tobytes())
    return h.hexdigest()


class Run:
    def __init__(self, options):
        self.options = options
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.device = torch.device(options.device)
        if options.device == "cuda":
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
        torch.manual_seed(options.seed)
        self.text = Text(options.text, self.device, options.context)
        self.model = GPT(options.vocabulary, options.context, options.layers, options.width, options.heads)
        self.model.to(self.device)
        if options.recipe != "bf16":  # torch's own layers are the baseline
            how = {"accumulation": options.accumulation}
            if options.period is not None:
                how["period"] = options.period
            if options.gradient_target is not None:
                how["targets"] = {"output_gradient": options.gradient_target}
            try:
                ms.convert(self.model, options.recipe, seed=options.seed, **how)
            except ValueError as error:
                raise SystemExit(str(error)) from None
        decayed = [p for p in self.model.parameters() if p.dim() == 2]
        others = [p for p in self.model.parameters() if p.dim() != 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=options.lr, betas=(0.9, 0.95), fused=options.device == "cuda",
        )  # fmt: skip
        self.compute = ms.GraphedStep(self.model, self.compute_step) if options.graph else self.compute_step
        options.out.mkdir(parents=True, exist_ok=True)
        self.step = 0
        self.seconds = 0.0
        self.rows = []
        if options.resume:
            self.load()
        if options.graph and options.device == "cuda":
            for group in self.optimizer.param_groups:  # a checkpoint has its own
                group["capturable"], group["lr"] = True, torch.zeros((), device=self.device)
        self.trained = self.model
        if self.world > 1:
            ids = [self.device.index] if options.device == "cuda" else None
            self.trained = DistributedDataParallel(self.model, device_ids=ids, broadcast_buffers=False)
        if options.compile:
            self.trained = torch.compile(self.trained)

    def save(self):
        if self.rank != 0:
            return
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rows": self.rows,
        }
        checkpoint = checkpoint_of(self.options)
        temporary = checkpoint.with_suffix(".new")
        torch.save(state, temporary)
        os.replace(temporary, checkpoint)

    def load(self):
        state = torch.load(checkpoint_of(self.options), map_location=self.device, weights_only=True)
        self.step, self.seconds, self.rows = state["step"], state["seconds"], state["rows"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.rank == 0:
            print(f"resumed after step {self.step}", flush=True)

    def train_step(self):
        """One optimizer step; returns this rank's mean loss, on the device."""
        options = self.options
        self.step += 1
        rate = learning_rate(options, self.step)
        for group in self.optimizer.param_groups:
            if options.graph and options.device == "cuda":
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        starts = self.text.batch(options.seed, self.step, options.batch, options.context)
        # Micro-batch j of rank r is number j x world + r of the step, as in microscale_torch.Clock.
        return self.compute(torch.stack(starts.split(options.micro_batch)[self.rank :: self.world]))

    def compute_step(self, parts):
        """A step over micro-batches of sequences that start there."""
        options = self.options
        total = torch.zeros((), device=self.device)
        for i, part in enumerate(parts):
            tokens, targets = Text.take(self.text.training, part, options.context)
            if self.world > 1:
                self.trained.require_backward_grad_sync = i == len(parts) - 1
            if options.compile and hasattr(self.model, "microscale_clock"):
                self.model.microscale_clock.begin_forward()  # a compiled model runs no hooks
            with torch.autocast(options.device, torch.bfloat16):
                loss = self.trained(tokens, targets) / len(parts)
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def wait(self):
        if self.options.device == "cuda":
            torch.cuda.synchronize()

    def record(self, losses):
        """Adds the window's mean training loss over all ranks, and the held-out loss, to the rows."""
        mean = torch.stack(losses).mean()
        if self.world > 1:
            dist.all_reduce(mean, op=dist.ReduceOp.SUM)
            mean /= self.world
        last = self.step == self.options.steps
        evaluates = last or self.step % self.options.eval_every == 0
        held_out = held_out_loss(self.model, self.text, self.options) if evaluates else math.nan
        tokens = self.step * self.options.batch * self.options.context
        rate = self.tokens_per_second(tokens)
        self.rows.append([self.step, tokens, mean.item(), held_out, round(self.seconds, 3)])
        if self.rank == 0:
            print(
                f"step {self.step:6d}  loss {mean.item():.4f}  held out {held_out:.4f}  {rate:,.0f} tokens/s",
                flush=True,
            )

    def tokens_per_second(self, tokens):
        """Since the first window, in which libraries load and memory is taken."""
        first = self.rows[0] if self.rows else (0, tokens, 0.0, 0.0, self.seconds)
        return (tokens - first[1]) / max(self.seconds - first[4], 1e-9)

    def train(self):
        options, losses = self.options, []
        self.wait()
        began = time.perf_counter()
        while self.step < options.steps:
            losses.append(self.train_step())
            if self.step % options.log_every == 0 or self.step == options.steps:
                self.wait()
                self.seconds += time.perf_counter() - began
                self.record(losses)
                losses = []
                if options.save_every and self.step % options.save_every == 0:
                    self.save()
                if self.step == options.stop_at:
                    break
                self.wait()
                began = time.perf_counter()

    def profile(self, steps=4):
        """Profiles a few steps: profile.txt has the times of kernels, device_time.txt where each GPU's time went. The
        lines of both, on rank 0.
        """
        from torch.profiler import ProfilerActivity, profile

        for _ in range(3):
            self.train_step()
        on_gpu = self.options.device == "cuda"
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
        self.wait()
        with profile(activities=activities) as recorded:
            for _ in range(steps):
                self.train_step()
            self.wait()
        key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        kernels = recorded.key_averages().table(sort_by=key, row_limit=24, max_name_column_width=70).splitlines()
        where = self.device_time(recorded, steps) if on_gpu else []
        if self.rank == 0:
            (self.options.out / "profile.txt").write_text("\n".join(kernels) + "\n")
            (self.options.out / "device_time.txt").write_text("\n".join(where) + "\n")
        return kernels, where

    def device_time(self, recorded, steps):
        """device_time's table of what was recorded, all ranks together."""
        path = self.options.out / f"trace_{self.rank}.json"
        recorded.export_chrome_trace(str(path))
        accounts = [device_time.account(json.loads(path.read_text())["traceEvents"], AMAX_RANGE)]
        if self.world > 1:
            own, accounts = accounts[0], [None] * self.world
            dist.all_gather_object(accounts, own)
        return device_time.table(accounts, steps)

    def finish(self):
        options = self.options
        if self.world > 1:
            digests = [None] * self.world
            dist.all_gather_object(digests, digest(self.model))
            if len(set(digests)) != 1:
                raise SystemExit(f"ranks differ in weights, quantized weights or references: {digests}")
            if self.rank == 0:
                print(f"weights, quantized weights and references equal on all {self.world} ranks: {digests[0][:16]}")
        self.save()
        if self.rank != 0:
            return
        with open(options.out / "curves.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "tokens", "loss", "held_out", "seconds"])
            writer.writerows(self.rows)
        plot.losses([options.out / "curves.csv"], options.out / "loss.svg")
        window = max(1, len(self.rows) // 20)
        parameters = sum(p.numel() for p in self.model.parameters())
        tokens = self.step * options.batch * options.context
        summary = {
            "run": options.out.name,
            "date": datetime.date.today().isoformat(),
            "commit": options.commit,
            "recipe": options.recipe,
            "period": "" if options.period is None else options.period,
            "gradient_target": "" if options.gradient_target is None else options.gradient_target,
            "accumulation": options.accumulation,
            "seed": options.seed,
            "processes": self.world,
            "parameters": parameters,
            "steps": self.step,
            "tokens": tokens,
            "final_loss": round(sum(r[2] for r in self.rows[-window:]) / window, 5),
            "held_out": round(self.rows[-1][3], 5) if self.rows else math.nan,
            "tokens_per_second": round(self.tokens_per_second(tokens)),
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        }
        (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        print(json.dumps(summary))
        if options.results:
            plot.append_result(options.results, summary)


def end(*runs):
    """Ends what ranks share. DDP goes first: freed after destroy_process_group(), it frees the group, whose thread it
    then waits for while it has Python's lock, which that thread may want.
    """
    for run in runs:
        run.trained = None
    if dist.is_initialized():
        dist.destroy_process_group()


def this_commit():
    got = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False,
                         cwd=Path(__file__).resolve().parent)  # fmt: skip
    return got.stdout.strip() or "unknown"


def at_least(least):
    def number(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"expected {least} or more, got {text}")
        return int(text)

    return number


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--text", type=Path, required=True, help="any file, also .xz; collect_text makes one")
    add("--out", type=Path, required=True)
    add("--recipe", default="ue5m3", choices=ms.recipes())
    add("--period", type=at_least(1), help="of the references, instead of the recipe's own")
    add("--gradient-target", type=at_least(1), help="target of dY's tensor scale, where the recipe takes targets")
    add("--accumulation", default="vendor", choices=["vendor", "exact_f32", "f32_blocks", "blackwell_k64"])
    add("--steps", type=at_least(1), default=1000)
    add("--stop-at", type=at_least(0), default=0, help="end here as if interrupted; a multiple of --log-every")
    add("--seed", type=at_least(0), default=1)
    add("--batch", type=at_least(1), default=64, help="sequences in a step, over all processes")
    add("--micro-batch", type=at_least(0), default=0, help="sequences of one process at once; all of its share if 0")
    add("--context", type=at_least(1), default=512)
    add("--layers", type=at_least(1), default=6)
    add("--width", type=at_least(1), default=384)
    add("--heads", type=at_least(1), default=6)
    add("--vocabulary", type=at_least(256), default=256,
        help="256 bytes; more makes a speed run as dear as another vocabulary")  # fmt: skip
    add("--lr", type=float, default=1e-3)
    add("--warmup", type=at_least(0), default=100)
    add("--log-every", type=at_least(1), default=20)
    add("--eval-every", type=at_least(1), default=200)
    add("--eval-sequences", type=at_least(1), default=512)
    add("--save-every", type=at_least(0), default=0, help="a multiple of --log-every")
    add("--resume", action="store_true")
    add("--compile", action="store_true", help="torch.compile")
    add("--graph", action="store_true", help="replay steps as CUDA graphs; on a CPU they run as without")
    add("--profile", action="store_true", help="profile a few steps instead of training")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    add("--results", type=Path, help="a CSV file that the summary is appended to")
    add("--commit", default=os.environ.get("MICROSCALE_COMMIT") or this_commit())
    options = parser.parse_args(arguments)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if options.micro_batch == 0:
        options.micro_batch = max(1, options.batch // world)
    wrong = refusal(options, world)
    if wrong:
        parser.error(wrong)
    return options


def refusal(options, world):
    """What is wrong with options that do not go together, or with this machine; None."""
    tokens, logs = options.micro_batch * options.context, options.log_every
    wgrad = ms.ops.describe_recipe(options.recipe)["wgrad"]
    transform = 1 if wgrad is None else wgrad[0]["transform"]
    checks = (
        (options.batch % (options.micro_batch * world) == 0, "--batch: expected a multiple of --micro-batch x processes"),
        (options.width % options.heads == 0, "--width: expected a multiple of --heads"),
        (tokens % transform == 0,
         f"--context: expected a multiple of {transform} tokens in a micro-batch under {options.recipe}, got {tokens}"),
        (options.save_every % logs == 0, "--save-every: expected a multiple of --log-every"),
        (options.stop_at % logs == 0, "--stop-at: expected a multiple of --log-every"),
        (not options.graph or (world == 1 and not options.compile), "--graph: expected one process, and no --compile"),
        (options.device != "cuda" or torch.cuda.is_available(), "--device: expected cpu, since no GPU is here"),
        (not options.resume or checkpoint_of(options).exists(), "--resume: expected a checkpoint.pt in --out"),
    )  # fmt: skip
    return next((message for holds, message in checks if not holds), None)


def checkpoint_of(options):
    return options.out / "checkpoint.pt"


def main():
    options = parse()
    torch.set_float32_matmul_precision("high")
    run = Run(options)
    if options.profile:
        kernels, where = run.profile()
        if run.rank == 0:
            print(*kernels, *where, sep="\n")
    else:
        run.train()
        run.finish()
    end(run)


if __name__ == "__main__":
    main()
