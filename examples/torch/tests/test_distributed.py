"""Data-parallel training by two gloo processes: DDP and FSDP against one process at the same global batch."""

import os
import socket
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import microscale_torch as ms
from microscale_torch import linear
from test_linear import Model

STEPS, PERIOD = 5, 2


def batch(step):
    return torch.randint(0, 32, (8, 17), generator=torch.Generator().manual_seed(step))


def loss_of(model, tokens):
    return torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def build(recipe, wrap, broadcasts=False):
    torch.manual_seed(0)
    model = Model()
    how = {"period": PERIOD} if recipe == "ue5m3" else {}
    ms.convert(model, recipe, **how)
    trained = model
    if wrap == "ddp":
        trained = DistributedDataParallel(model, broadcast_buffers=broadcasts)
    elif wrap == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        trained = fully_shard(model)
    return model, trained, torch.optim.AdamW(trained.parameters(), lr=1e-2)


def references(model):
    return torch.stack([m.references for m in model.modules() if isinstance(m, ms.Linear) and m.carries_state])


def worker(rank, port, recipe, wrap, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model, trained, optimizer = build(recipe, wrap)
    losses, reductions = [], []
    all_reduce = dist.all_reduce
    dist.all_reduce = lambda tensor, **how: (reductions.append(tensor.numel()), all_reduce(tensor, **how))
    for step in range(STEPS):
        loss = loss_of(trained, batch(step)[4 * rank : 4 * rank + 4])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    dist.all_reduce = all_reduce
    mine = torch.stack(losses)
    dist.all_reduce(mine)
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p.data for p in model.parameters()]
    state = {
        "losses": mine / 2,
        "weights": [w.clone() for w in weights],
        "step": model.microscale_clock.step,
        "reductions": reductions,
    }
    if recipe == "ue5m3":
        state["references"] = references(model)
    communicators = list(linear._communicators.values())
    reducer = weakref.ref(trained) if wrap == "ddp" else lambda: None
    del trained  # as pretrain.end says
    state["reducer"] = reducer() is not None
    dist.destroy_process_group()
    state["outlived"] = [known() is not None for known in communicators]
    torch.save(state, out + str(rank))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
@pytest.mark.parametrize("recipe", ["ue5m3", "nvfp4_everywhere"])
def test_two_processes_are_one(recipe, wrap, tmp_path):
    mp.spawn(worker, (free_port(), recipe, wrap, str(tmp_path / "rank")), nprocs=2)
    a, b = (torch.load(tmp_path / f"rank{r}") for r in range(2))
    assert a["step"] == b["step"] == STEPS + 1
    # A communicator that outlives its group can abort the process at its end; a reducer can block it.
    assert not a["reducer"] and not b["reducer"]
    assert a["outlived"] == b["outlived"] == ([False] if recipe == "ue5m3" else [])
    for x, y in zip(a["weights"], b["weights"]):
        assert torch.equal(x, y)
    if recipe == "ue5m3":
        assert torch.equal(a["references"], b["references"]) and bool((a["references"] > 0).all())
        layers, samples = len(a["references"]), len(range(0, STEPS, PERIOD))
        # Weights that lie whole on every rank are reduced together, X and dY where they arise.
        together = ([layers] + [1] * 2 * layers) * samples
        assert a["reductions"] == (together if wrap == "ddp" else [1] * 3 * layers * samples)
    else:
        assert a["reductions"] == []

    # One process, the two halves as micro-batches: the same loss but for how each half's draws and amax fall out.
    _, trained, optimizer = build(recipe, None)
    losses = []
    for step in range(STEPS):
        total = 0.0
        for half in batch(step).split(4):
            loss = loss_of(trained, half) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    assert losses[0] == pytest.approx(a["losses"][0].item(), rel=0.02)
    assert losses[-1] == pytest.approx(a["losses"][-1].item(), rel=0.1)
    assert losses[-1] < losses[0]
    if recipe == "ue5m3":
        # The two ranks' maximum is that of the whole batch; one process sampled its first micro-batch alone.
        assert bool((a["references"][:, 1] > 0).all())


def checkpointed_worker(rank, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    equal = {}
    for recipe, wrap in (("ue5m3", "ddp"), ("ue5m3", "fsdp"), ("nvfp4_everywhere", "fsdp")):
        trained = []
        for again in (False, True):
            model, called, optimizer = build(recipe, wrap, broadcasts=again)  # which changes nothing either
            for step in range(2):
                losses = []
                for part in range(2):
                    tokens = batch(2 * step + part)[4 * rank : 4 * rank + 4]
                    how = (called, tokens)
                    losses.append(checkpoint(loss_of, *how, use_reentrant=False) if again else loss_of(*how))
                    if wrap == "ddp":  # which wants each backward pass before the next forward pass
                        losses.pop().backward()
                for loss in losses:
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            trained.append([p.full_tensor() if wrap == "fsdp" else p.data for p in model.parameters()])
        equal[recipe, wrap] = all(torch.equal(a, b) for a, b in zip(*trained, strict=True))
    with pytest.raises(ValueError, match="converted before it is sharded"):
        ms.convert(fully_shard(Model()), "ue5m3")
    del called, how
    dist.destroy_process_group()
    torch.save(equal, out + str(rank))


def test_a_checkpointed_model_is_itself_on_every_rank(tmp_path):
    mp.spawn(checkpointed_worker, (free_port(), str(tmp_path / "rank")), nprocs=2)
    for rank in range(2):
        equal = torch.load(tmp_path / f"rank{rank}")
        assert len(equal) == 3 and all(equal.values()), equal
