"""GraphedStep: replayed steps against the same steps without graphs, bit for bit."""

import copy
import gc
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

import microscale_torch as ms
from microscale_torch import _C, graph
from microscale_torch.graph import without_collection
from test_linear import on_a_gpu, operands
from test_ops import bits

PERIOD, PARTS = 3, 2
QUANTIZING = [r for r in ms.recipes() if ms.ops.describe_recipe(r)["fprop"] is not None]


class Training:
    """A small model of linear layers, whose kernels are deterministic, and its step of two micro-batches."""

    def __init__(self, recipe, graphed, device="cuda", accumulation="vendor"):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 64))
        if recipe is not None:
            how = {"period": PERIOD} if ms.ops.describe_recipe(recipe)["scaling"] == "periodic" else {}
            ms.convert(
                self.model, recipe, accumulation=accumulation, position=lambda *_: ms.Position("mlp_up", 4, 9), **how
            )
        self.model.to(device)
        for layer in self.model:
            if isinstance(layer, ms.Linear) and layer.scaling == "frozen":
                layer.set_references(4.0, 0.2, 0.01)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=torch.tensor(0.0, device=device), fused=True, capturable=device == "cuda"
        )
        self.device, self.graphed = device, graphed
        self.step = ms.GraphedStep(self.model, self.compute) if graphed else self.compute

    def compute(self, x, target):
        total = torch.zeros((), device=self.device)
        for part, wanted in zip(x.chunk(PARTS), target.chunk(PARTS)):
            with torch.autocast(self.device, torch.bfloat16):
                loss = (self.model(part) - wanted).float().square().mean()
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def run(self, first, steps):
        losses = []
        for i in range(first, first + steps):
            generator = torch.Generator().manual_seed(i)
            x, target = (torch.randn(64, 64, generator=generator).to(self.device) for _ in range(2))
            for group in self.optimizer.param_groups:
                group["lr"].fill_(1e-2 / (1 + i))
            losses.append(self.step(x, target))
        return torch.stack(losses).cpu()

    def state(self):
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def load(self, state):
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(copy.deepcopy(state[1]))


def assert_same_state(a, b):
    (model, optimizer), (other, other_optimizer) = a, b
    assert model.keys() == other.keys() and len(model) > 6
    for name, value in model.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(bits(value), bits(other[name])), name
        else:
            assert torch.equal(value["sampled"], other[name]["sampled"]) and value["clock"] == other[name]["clock"], (
                name
            )
    for key, moments in optimizer["state"].items():
        for name, value in moments.items():
            assert torch.equal(bits(value), bits(other_optimizer["state"][key][name])), (key, name)


def test_the_offset_of_a_step_is_its_part_of_the_stream():
    assert [_C.stream_offset(*at) for at in ((0, 0), (0, 1), (3, 2), (2**32 + 1, 1024))] == [
        0, 1 << 6, 3 << 32 | 2 << 6, 1 << 32
    ]  # fmt: skip


def test_on_the_cpu_steps_run_as_they_are():
    plain, stepped = Training("ue5m3", False, "cpu"), Training("ue5m3", True, "cpu")
    assert torch.equal(plain.run(0, 4), stepped.run(0, 4))
    assert_same_state(plain.state(), stepped.state())
    with pytest.raises(TypeError, match="tensors"):
        stepped.step(torch.zeros(2, 64), 3)


def test_what_is_due_is_what_a_step_samples():
    training = Training("ue5m3", True, "cpu")
    layers, seen = training.step.layers, set()
    for i in range(2 * PERIOD + 1):
        due = training.step.due()
        before = [layer.sampled.tolist() for layer in layers]
        training.run(i, 1)
        changed = tuple(a != b for layer, held in zip(layers, before) for a, b in zip(layer.sampled.tolist(), held))
        assert due == changed and set(due) == {i % PERIOD == 0}
        seen.add(due)
    assert len(seen) == 2


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self, deaths):
        self.itself, self.deaths = self, deaths

    def __del__(self):
        self.deaths.append(gc.isenabled())


@contextmanager
def eager_collector():
    """Collects at every opportunity."""
    before, was_on = gc.get_threshold(), gc.isenabled()
    gc.enable()
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        (gc.enable if was_on else gc.disable)()


def test_no_garbage_is_collected_while_a_graph_is_recorded():
    deaths = []
    with eager_collector():
        gc.disable()
        Cycle(deaths)
        gc.enable()
        with without_collection():
            assert len(deaths) == 1  # before
            Cycle(deaths)
            kept = [[i] for i in range(10_000)]
            assert len(deaths) == 1 and not gc.isenabled()
        assert gc.isenabled()
        kept = [[i] for i in kept]
        assert len(deaths) == 2
        with pytest.raises(ValueError, match="broken"), without_collection():
            raise ValueError("broken")
        assert gc.isenabled()
        gc.disable()
        with without_collection():
            pass
        assert not gc.isenabled()


class FakeGraph:
    """On the CPU, in the place of torch.cuda.CUDAGraph: what is recorded runs at once, and the first replay is that."""

    recordings: ClassVar = []

    def replay(self):
        pass

    @staticmethod
    @contextmanager
    def record(graph, **how):
        FakeGraph.recordings.append((graph, how, gc.isenabled()))
        yield


@pytest.fixture
def fake_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", FakeGraph.record)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: None)
    monkeypatch.setattr(graph, "_reads", lambda _: True)
    monkeypatch.setattr(FakeGraph, "recordings", [])


def test_what_the_host_keeps_of_recorded_steps(fake_cuda):
    """Steps that are recorded advance it by the function; those that replay, as the recorded one did."""
    plain, stepped = Training("ue5m3", False, "cpu"), Training("ue5m3", True, "cpu")
    step, weights = stepped.step, [p.detach().clone() for p in stepped.model.parameters()]
    for i in range(2 * PERIOD + 2):
        plain.run(i, 1)
        stepped.step = lambda *x: step._replay(list(x), torch.utils._pytree.tree_structure(x), "cpu")
        stepped.run(i, 1)
        expected, got = plain.state()[0], stepped.state()[0]
        for name in [n for n in expected if n.endswith("_extra_state")]:
            assert torch.equal(expected[name]["sampled"], got[name]["sampled"]), (i, name)
            assert expected[name]["clock"] == got[name]["clock"] == {"seed": 0, "step": i + 2}
    assert step.graphs == len(FakeGraph.recordings) == 2  # of steps 1, which samples, and 2, which holds
    assert all(not collects and how["capture_error_mode"] == "global" for _, how, collects in FakeGraph.recordings)
    assert not any(torch.equal(a, b) for a, b in zip(weights, stepped.model.parameters()))
    weights = [p.detach().clone() for p in stepped.model.parameters()]
    stepped.run(8, 1)  # a replay, of which the fake does nothing
    assert all(torch.equal(a, b) for a, b in zip(weights, stepped.model.parameters()))

    # Another state of the optimizer has other memory.
    stepped.optimizer.load_state_dict(stepped.optimizer.state_dict())
    assert step.graphs == 0


# Not converted; draws the signs of transforms; draws for scales too. None of them samples.
@pytest.mark.parametrize("recipe", [None, "ufp4", "quartet2"])
def test_steps_without_references_are_recorded_once(fake_cuda, recipe):
    plain, stepped = Training(recipe, False, "cpu"), Training(recipe, True, "cpu")
    step = stepped.step
    stepped.step = lambda *x: step._replay(list(x), torch.utils._pytree.tree_structure(x), "cpu")
    assert torch.equal(plain.run(0, 1), stepped.run(0, 1))
    stepped.run(1, 3)
    assert step.graphs == len(FakeGraph.recordings) == 1


def test_a_recording_that_fails_leaves_the_host_as_it_was(fake_cuda):
    training = Training("ue5m3", True, "cpu")
    step, before = training.step, training.model.state_dict()

    def broken(x, target):
        training.model(x)
        training.model.microscale_clock.end_step()
        raise ValueError("broken")

    for function, error in ((broken, "broken"), (lambda x, target: training.model(x).sum().backward(), "calls step")):
        step.function = function
        with pytest.raises((ValueError, RuntimeError), match=error):
            step._replay([torch.ones(4, 64)] * 2, torch.utils._pytree.tree_structure((0, 0)), "cpu")
        after = training.model.state_dict()
        for name in [n for n in before if n.endswith("_extra_state")]:
            assert torch.equal(before[name]["sampled"], after[name]["sampled"]), name
            assert before[name]["clock"] == after[name]["clock"]
        assert training.model.microscale_clock.forwards == 0 and step.graphs == 0 and gc.isenabled()
        assert all(p.grad is None for p in training.model.parameters())


def test_a_warm_up_of_no_steps_is_refused():
    """Optimizers would make their state in the graph, and each replay anew."""
    training = Training("ue5m3", False, "cpu")
    with pytest.raises(ValueError, match="warm-up of 1 step"):
        ms.GraphedStep(training.model, training.compute, warm_up=0)


def test_the_clock_is_that_of_the_part_that_was_converted():
    training = Training("ue5m3", False, "cpu")
    whole = nn.Sequential(nn.Identity(), training.model)
    assert ms.GraphedStep(whole, training.compute).clock is training.model.microscale_clock
    whole.append(Training("ue5m3", False, "cpu").model)
    with pytest.raises(ValueError, match="2 parts"):
        ms.GraphedStep(whole, training.compute)


@pytest.mark.parametrize(
    "name, change",
    [
        ("groups", lambda o: o.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})),
        ("params", lambda o: o.param_groups[0]["params"].append(nn.Parameter(torch.zeros(1)))),
        ("lr", lambda o: o.param_groups[0]["lr"].fill_(0.25)),  # on the CPU: the graph has the number
        ("lr", lambda o: o.param_groups[0].update(lr=0.5)),
        ("eps", lambda o: o.param_groups[0].pop("eps")),
        ("own", lambda o: o.param_groups[0].update(own=1)),
    ],
)
def test_what_a_graph_repeats_of_an_optimizer_is_compared(name, change):
    optimizer = Training("ue5m3", False, "cpu").optimizer
    before = graph._options_of(optimizer)
    ms.GraphedStep._compare(before, graph._options_of(optimizer))
    change(optimizer)
    with pytest.raises(RuntimeError, match=f"{name} was .* recorded"):
        ms.GraphedStep._compare(before, graph._options_of(optimizer))


def test_another_configuration_takes_another_graph():
    step = Training("ue5m3", True, "cpu").step
    model, seen = step.model, {step._configuration()}
    model[1].eval()
    seen.add(step._configuration())
    model.microscale_clock.seed = 5
    seen.add(step._configuration())
    model[0].targets = [0, 0, 2048]
    seen.add(step._configuration())
    model[2].accumulation = "f32_blocks"
    seen.add(step._configuration())
    assert len(seen) == 5


def test_other_memory_and_other_trained_parameters_are_noticed():
    step = Training("ue5m3", True, "cpu").step
    seen = [step._memory()]
    assert step._memory() == seen[0]
    step.model[0].weight.requires_grad_(False)
    seen.append(step._memory())
    step.model[0].references = torch.zeros(3)
    seen.append(step._memory())
    assert all(a != b for i, a in enumerate(seen) for b in seen[:i])


def test_every_optimizer_that_is_recorded_is_followed(fake_cuda):
    """Also one that lies where another lay, which is gone."""
    training = Training("ue5m3", True, "cpu")
    step, resets = training.step, []
    step.reset = lambda: resets.append(1)
    for i in range(1, 4):
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
        leaves, tree = torch.utils._pytree.tree_flatten((torch.zeros(4, 64), torch.zeros(4, 64)))
        step._record(leaves, tree)
        training.optimizer.load_state_dict(training.optimizer.state_dict())
        assert len(resets) == i
        training.optimizer = None
        gc.collect()


def test_a_step_reads_its_offsets_before_its_first_forward_pass_too():
    training = Training("ufp4", False, "cpu")
    clock, seen = training.model.microscale_clock, []

    def function():
        seen.append(clock.tensor.tolist())
        clock.begin_forward()
        clock.begin_forward()
        seen.append(clock.tensor.tolist())
        if len(seen) > 2:
            raise ValueError("broken")
        clock.end_step()

    step = ms.GraphedStep(training.model, function)
    step._slots = torch.arange(10, 14)
    step._run(*torch.utils._pytree.tree_flatten(()))
    assert (seen, clock.tensor.tolist()) == ([[10], [11]], [2, 0])
    with pytest.raises(ValueError, match="broken"):
        step._run(*torch.utils._pytree.tree_flatten(()))
    assert (seen[2:], clock.tensor.tolist(), clock.slots) == ([[10], [11]], [2, 1], None)


def test_more_micro_batches_than_streams_tell_apart_go_round():
    clock = ms.Clock()
    clock.slots = torch.arange(4)
    seen = []
    for _ in range(6):
        clock.begin_forward()
        seen.append(clock.tensor.tolist())
    assert seen == [[0], [1], [2], [3], [0], [1]]


# ---------------------------------------------------------------------------------------------------------------


@on_a_gpu
@pytest.mark.parametrize("accumulation", ["vendor", "f32_blocks"])
@pytest.mark.parametrize("recipe", QUANTIZING)
def test_draws_by_an_offset_on_the_gpu_are_those_by_the_step(recipe, accumulation):
    for shape in [(64, 96, 64), (37, 70, 41)]:
        if shape[0] == 37 and any(
            s["transform"] > 1 for gemm in ("fprop", "dgrad", "wgrad") for s in ms.ops.describe_recipe(recipe)[gemm]
        ):
            continue
        x, w, dy = (t.cuda() for t in operands(*shape))
        for dtype in (torch.float32, torch.bfloat16):
            got = []
            for step, clock in (
                (True, torch.tensor([7, 5])),
                (False, torch.tensor([_C.stream_offset(7, 5)], device="cuda")),
            ):
                how = (recipe, 3, 5, [0, 0, 0], accumulation)
                references = torch.tensor([3.0, 0.5, 0.01], device="cuda")
                a, b, g = x[0].to(dtype), w, dy[0].to(dtype)
                y, saved = torch.ops.microscale.linear_forward(a, b, references, clock, *how, dtype, True, True)
                back = torch.ops.microscale.linear_backward(
                    g, saved, references, *how, a.size(1), dtype, torch.float32, True, True
                )
                got.append([y, *saved[:-1], *back])
            assert [torch.equal(bits(a), bits(b)) for a, b in zip(*got, strict=True)] == [True] * len(got[0])


@on_a_gpu
@pytest.mark.parametrize("accumulation", ["vendor", "f32_blocks"])
@pytest.mark.parametrize("recipe", QUANTIZING)
def test_replayed_steps_are_the_steps_without_graphs(recipe, accumulation):
    plain, graphed = (
        Training(recipe, False, accumulation=accumulation),
        Training(recipe, True, accumulation=accumulation),
    )
    expected = plain.run(0, 11)
    assert torch.equal(graphed.run(0, 11), expected)
    assert_same_state(plain.state(), graphed.state())
    samples = ms.ops.describe_recipe(recipe)["scaling"] == "periodic"
    assert graphed.step.graphs == (2 if samples else 1)
    assert plain.model.microscale_clock.step == graphed.model.microscale_clock.step == 12


@on_a_gpu
def test_a_model_that_was_not_converted_replays_too():
    plain, graphed = Training(None, False), Training(None, True)
    assert torch.equal(graphed.run(0, 6), plain.run(0, 6)) and graphed.step.graphs == 1
    for a, b in zip(plain.model.parameters(), graphed.model.parameters(), strict=True):
        assert torch.equal(bits(a), bits(b))


@on_a_gpu
def test_older_graphs_in_cycles_do_not_end_a_recording(monkeypatch):
    class Recording(torch.cuda.graph):
        def __enter__(self):
            super().__enter__()
            if gc.isenabled():  # then the collector could run at any time
                gc.collect()

    expected = Training("ue5m3", False).run(0, 6)
    monkeypatch.setattr(torch.cuda, "graph", Recording)
    old = Training("ue5m3", True)
    old.run(0, 5)
    assert old.step.graphs == 2
    old.itself = old
    del old
    assert gc.isenabled() and torch.equal(Training("ue5m3", True).run(0, 6), expected)


@on_a_gpu
@pytest.mark.parametrize("recipe, graphs", [("ue5m3", 2), ("ufp4", 1), ("quartet2", 1)])
def test_runs_resume_with_and_without_graphs(recipe, graphs):
    whole = Training(recipe, True)
    losses = whole.run(0, 12)
    cut = Training(recipe, True)
    assert torch.equal(cut.run(0, 7), losses[:7])
    state = cut.state()
    for graphed in (True, False):
        again = Training(recipe, graphed)
        again.load(state)
        assert torch.equal(again.run(7, 5), losses[7:])
        assert_same_state(whole.state(), again.state())
    # The run that was cut, back at its checkpoint: its optimizer has other memory now.
    assert cut.step.graphs == graphs
    cut.run(7, 2)
    cut.load(state)
    assert cut.step.graphs == 0
    assert torch.equal(cut.run(7, 5), losses[7:])
    assert_same_state(whole.state(), cut.state())


@on_a_gpu
def test_what_a_replay_would_get_wrong_is_refused():
    training = Training("ue5m3", True)
    training.run(0, 5)
    with pytest.raises(RuntimeError, match="weight_decay was 0.01"):
        training.optimizer.param_groups[0]["weight_decay"] = 0.5
        training.run(5, 1)
    training.optimizer.param_groups[0]["weight_decay"] = 0.01
    with pytest.raises(RuntimeError, match="within the function"), torch.autocast("cuda", torch.bfloat16):
        training.run(5, 1)
    training.model(torch.zeros(4, 64, device="cuda"))
    with pytest.raises(RuntimeError, match="begin a step"):
        training.run(5, 1)
    training.model.microscale_clock.forwards = 0
    assert torch.equal(training.run(5, 4), Training("ue5m3", False).run(0, 9)[5:])

    # A function that cannot be recorded leaves everything as it was.
    training = Training("ue5m3", True)
    training.run(0, 2)
    before, step = training.state(), training.step

    def broken(x, target):
        training.compute(x, target)
        raise ValueError("broken")

    step.function = broken
    with pytest.raises(ValueError, match="broken"):
        training.run(2, 1)
    step.function = lambda x, target: training.model(x).sum().backward()
    with pytest.raises(RuntimeError, match="calls step"):
        training.run(2, 1)
    assert_same_state(before, training.state())
    step.function = training.compute
    assert torch.equal(training.run(2, 4), Training("ue5m3", False).run(0, 6)[2:])
