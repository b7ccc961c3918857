"""Linear and convert: the library's own layer bit for bit, gradients, state, compilation."""

import copy
import ctypes
import os
import sys

import pytest
import torch
from test_ops import DEVICES, bits, same
from torch import nn
from torch.utils.checkpoint import checkpoint

import microscale_torch as ms
from microscale_torch import _C

STEPS = 3
QUANTIZING = [r for r in ms.recipes() if ms.ops.describe_recipe(r)["fprop"] is not None]
# What reference.cpp has.
REFERENCES = ["ue5m3", "ue5m3_b32_te", "nvfp4", "quartet2", "transposition_invariant", "ufp4", "fusion"]


class Job(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("tokens", "inputs", "outputs", "first_step", "steps")),
        ("seed", ctypes.c_uint64),
        ("layer", ctypes.c_uint32),
        *((name, ctypes.c_void_p) for name in ("x", "w", "dy", "y", "dx", "dw", "references")),
        ("operands", ctypes.c_void_p * 4),
        ("multipliers", ctypes.c_void_p),
    ]


def by_the_library(recipe, x, w, dy, *, first_step, seed, layer, operands=None, multipliers=None):
    """`STEPS` steps of microscale::linear<recipe, f32_blocks>; into `operands`, those of the last backward products."""
    library = ctypes.CDLL(os.environ["MICROSCALE_TORCH_REFERENCE"])
    library.run_linear.restype = ctypes.c_bool
    steps, tokens, inputs = x.shape
    outputs = w.size(0)
    y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty(steps, outputs, inputs)
    references = torch.zeros(3)
    job = Job(tokens, inputs, outputs, first_step, steps, seed, layer,
              *(t.data_ptr() for t in (x, w, dy, y, dx, dw, references)))  # fmt: skip
    if operands is not None:
        job.operands = (ctypes.c_void_p * 4)(*(t.data_ptr() for t in operands))
        job.multipliers = multipliers.data_ptr()
    assert library.run_linear(recipe.encode(), ctypes.byref(job))
    return y, dx, dw, references


def layer_of(recipe, w, accumulation="f32_blocks", **how):
    plain = nn.Linear(w.size(1), w.size(0), bias=False)
    plain.weight.data.copy_(w)
    return ms.Linear.from_linear(plain, recipe=recipe, accumulation=accumulation, count=2, **how)


def operands(tokens, inputs, outputs, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(STEPS, tokens, inputs, generator=g) * torch.exp2(torch.randn(inputs, generator=g) * 2)
    w = torch.randn(outputs, inputs, generator=g) * 0.02
    dy = torch.randn(STEPS, tokens, outputs, generator=g) * 1e-3
    return x, w, dy


def run(layer, x, dy, device="cpu"):
    layer = layer.to(device)
    out = []
    for i in range(len(x)):
        layer.clock.begin_forward()
        a = x[i].to(device).requires_grad_()
        layer.weight.grad = None
        y = layer(a)
        y.backward(dy[i].to(device))
        layer.clock.end_step()
        out.append((y.detach().cpu(), a.grad.cpu(), layer.weight.grad.cpu()))
    return [torch.stack(t) for t in zip(*out)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recipe", REFERENCES)
def test_the_library_s_layer_bit_for_bit(recipe, device):
    # first_step 49: the reference is taken there, as it is unset, held at 50, and taken again at 51.
    x, w, dy = operands(64, 80, 64)
    layer = layer_of(recipe, w, number=5, clock=ms.Clock(seed=9))
    layer.clock.set(49)
    expected = by_the_library(recipe, x, w, dy, first_step=49, seed=9, layer=5)
    for name, a, b in zip(("Y", "dX", "dW"), run(layer, x, dy, device), expected):
        assert same(a, b), name
    if layer.carries_state:
        assert torch.equal(layer.references.cpu(), expected[3]) and layer.sampled.tolist() == [51, 51, 51]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recipe", ["ue5m3_b32_te", "nvfp4", "quartet2", "transposition_invariant", "fusion"])
def test_operands_of_bf16_backward_products_are_the_library_s(recipe, device):
    x, w, dy = operands(64, 96, 32)
    expected = [torch.empty(64, 96), torch.empty(32, 96), torch.empty(64, 32), torch.empty(64, 32)]
    factors = torch.empty(4)
    by_the_library(recipe, x, w, dy, first_step=6, seed=9, layer=5, operands=expected, multipliers=factors)
    clock, references = torch.tensor([6 + STEPS - 1, 0]), torch.zeros(3, device=device)
    how = (recipe, 9, 5, [0, 0, 0], "vendor")
    a, b, g = (t.to(device) for t in (x[-1], w, dy[-1]))
    _, saved = torch.ops.microscale.linear_forward(a, b, references, clock, *how, torch.float32, True, True)
    for values, factor, e, f in zip(saved[0:4:2], saved[1:4:2], expected, factors):
        assert values.dtype == torch.bfloat16 and torch.equal(values.float().cpu(), e)
        assert torch.equal(factor.cpu(), f[None] if len(factor) else torch.empty(0)) and (len(factor) or f == 1)
    one = torch.ones(1, device=device)
    kept = [torch.eye(64, device=device).bfloat16(), one, torch.eye(32, device=device).bfloat16(), one, clock]
    dx, dw = torch.ops.microscale.linear_backward(g, kept, references, *how, 32, *(torch.float32,) * 2, True, True)
    for got, e, f in zip((dx, dw.t()), expected[2:], factors[2:]):
        assert torch.equal(got.cpu(), e * f) and bool((e != 0).any())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "recipe", ["ue5m3", "nvfp4_everywhere", "mxfp4", "mxfp8", "fp4_all_the_way", "fusion_h16", "quartet2"]
)
def test_vendor_is_within_its_bound(recipe, device):
    x, w, dy = operands(64, 80, 64)
    dy *= 1000  # one level of scales reaches no gradients of 1e-3
    exact = run(layer_of(recipe, w, "exact_f32"), x, dy)
    vendor = run(layer_of(recipe, w, "vendor"), x, dy, device)
    for a, b in zip(exact, vendor):
        # Operands are the same bits; sums of 80 terms at most, in any order, each below a row's largest magnitudes.
        assert (a - b).abs().max() <= 80 * 2.0**-22 * 80 * a.abs().max()
        assert not torch.equal(a, torch.zeros_like(a))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("accumulation", ["vendor", "f32_blocks"])
@pytest.mark.parametrize("recipe", QUANTIZING)
def test_a_batch_of_no_tokens_changes_no_weight(recipe, accumulation, device):
    x, w, dy = torch.empty(STEPS, 0, 64), torch.randn(32, 64), torch.empty(STEPS, 0, 32)
    layer = layer_of(recipe, w, accumulation)
    if layer.scaling == "frozen":
        layer.set_references(4.0, 4.0, 4.0)
    y, dx, dw = run(layer, x, dy, device)
    assert y.shape == dy.shape and dx.shape == x.shape and torch.equal(dw, torch.zeros(STEPS, 32, 64))


def test_recipes_are_those_of_the_library():
    assert {"bf16", "ue5m3", "ue5m3_b32", "nvfp4", "nvfp4_everywhere_no_rht", "mxfp4", "ufp4"} <= set(ms.recipes())
    described = ms.ops.describe_recipe("nvfp4")
    assert described["wgrad"][0] == {
        "scheme": "nvfp4",
        "rounding": "stochastic_floor8",
        "transform": 16,
        "drawn_signs": False,
    }
    assert described["dgrad"][1]["scheme"] == "nvfp4_2d" and described["scaling"] == "current"
    assert ms.ops.describe_recipe("ue5m3")["period"] == 50
    quartet2 = ms.ops.describe_recipe("quartet2")
    assert quartet2["backward_from_quantized"] and not described["backward_from_quantized"]
    nearest = {"scheme": "nvfp4_4over6", "rounding": "nearest_even", "transform": 1, "drawn_signs": False}
    eden = {"scheme": "nvfp4_ms_eden", "rounding": "with_scale_draws", "transform": 32, "drawn_signs": True}
    assert quartet2["fprop"] == (nearest,) * 2 and quartet2["dgrad"] == quartet2["wgrad"] == (eden,) * 2
    sizes = [ms.ops.describe_recipe(name)["wgrad"][0]["transform"] for name in ("fusion", "fusion_h16")]
    assert sizes == [32, 16]
    assert _C.high_precision("nvfp4", ms.linear.ROLES.index("mlp_up"), 3, 4)
    assert not _C.high_precision("nvfp4_everywhere", ms.linear.ROLES.index("mlp_up"), 3, 4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(64, 32, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Checkpointed(Model):
    """Whose blocks are computed again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.how = {}

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, **self.how)
        return self.head(x)


def train(model, optimizer, steps, first=0):
    losses = []
    for i in range(first, first + steps):
        tokens = torch.randint(0, 32, (4, 17), generator=torch.Generator().manual_seed(i))
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def fresh(recipe="ue5m3", **how):
    torch.manual_seed(0)
    model = ms.convert(Model(), recipe, **how)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def test_convert_keeps_parameters_and_exempts_the_head():
    plain = Model()
    before = dict(plain.named_parameters())
    model = ms.convert(plain, "nvfp4", select=lambda name, m: name != "blocks.0.up")
    assert all(p is before[name] for name, p in model.named_parameters())
    assert type(model.blocks[0].up) is nn.Linear
    assert model.blocks[0].down.is_quantized and model.blocks[0].down.role == "mlp_down"
    assert not model.blocks[1].up.is_quantized  # the last block
    assert not model.head.is_quantized and model.head.role == "head"
    assert len({m.number for m in model.modules() if isinstance(m, ms.Linear)}) == 4
    with pytest.raises(ValueError, match="linear layers"):
        ms.convert(nn.ReLU(), "ue5m3")


def test_names_tell_roles():
    places = {
        "transformer.h.3.attn.c_attn": ("attention_qkv", 3),
        "transformer.h.3.attn.c_proj": ("attention_output", 3),
        "transformer.h.3.mlp.c_proj": ("mlp_down", 3),
        "transformer.h.3.mlp.c_fc": ("mlp_up", 3),
        "model.layers.11.self_attn.q_proj": ("attention_q", 11),
        "model.layers.11.self_attn.o_proj": ("attention_output", 11),
        "model.layers.11.mlp.down_proj": ("mlp_down", 11),
        "model.layers.11.mlp.gate_proj": ("mlp_up", 11),
        "lm_head": ("head", 0),
    }
    for name, (role, index) in places.items():
        assert ms.position_of(name, 12) == ms.Position(role, index, 12), name


@pytest.mark.parametrize("recipe", ["bf16", "ue5m3", "nvfp4_everywhere", "mxfp4", "ufp4", "quartet2"])
def test_training_learns(recipe):
    model, optimizer = fresh(recipe)
    tokens = torch.arange(17).repeat(4, 1)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_the_clock_follows_the_optimizer():
    model, optimizer = fresh(period=2)
    assert model.microscale_clock.step == 1
    train(model, optimizer, 2)
    assert model.microscale_clock.step == 3
    assert model.blocks[0].up.sampled.tolist() == [1, 1, 1]
    for _ in range(2):  # two micro-batches of step 3, of which the first one samples
        model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    assert (model.microscale_clock.step, model.microscale_clock.micro_batch) == (3, 1)
    assert model.blocks[0].up.sampled.tolist() == [3, 3, 3]
    with torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.int64))
    assert model.microscale_clock.micro_batch == 1
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    other.step()
    assert model.microscale_clock.step == 3


def test_an_evaluation_leaves_the_references_to_training():
    model, optimizer = fresh(period=2)
    layer, tokens = model.blocks[0].up, torch.zeros(1, 4, dtype=torch.int64)
    with torch.no_grad():
        before = model(tokens)
    assert layer.sampled.tolist() == [0, 0, 0] and layer.references.tolist() == [0, 0, 0]
    assert torch.equal(before, model(tokens))  # which takes the same amax, and holds it
    train(model, optimizer, 2)
    held = layer.references.clone()
    assert model.microscale_clock.step == 3  # which samples
    with torch.no_grad():
        model(tokens)
    assert torch.equal(layer.references, held) and layer.sampled.tolist() == [1, 1, 1]


def test_variants_differ_from_ue5m3_in_what_they_are_named_for():
    def facts(name):
        r = ms.ops.describe_recipe(name)
        return [(side["scheme"], side["rounding"]) for gemm in ("fprop", "dgrad", "wgrad") for side in r[gemm]]

    rows, square = "ue5m3_fp4", "ue5m3_fp4_2d"
    nearest, drawn = "nearest_even", "stochastic_midpoint8"
    x, w, dy = (rows, nearest), (square, nearest), (rows, drawn)
    assert facts("ue5m3") == [x, w, dy, w, dy, x]
    assert facts("ue5m3_nearest") == [x, w, x, w, x, x]
    assert facts("ue5m3_stochastic") == [dy, (square, drawn), dy, (square, drawn), dy, dy]
    assert facts("ue5m3_1d") == [x, x, dy, x, dy, x]


def test_a_resumed_run_is_the_uninterrupted_one():
    model, optimizer = fresh(period=4)
    train(model, optimizer, 6)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = train(model, optimizer, 4, first=6)
    again, optimizer_again = fresh(period=4)
    again.load_state_dict(saved[0])
    optimizer_again.load_state_dict(saved[1])
    assert again.microscale_clock.step == 7
    assert train(again, optimizer_again, 4, first=6) == expected
    for name, t in model.state_dict().items():
        if isinstance(t, torch.Tensor):
            assert torch.equal(bits(t), bits(again.state_dict()[name])), name


def trained_in_pairs(model, whole, alternately, how):
    """Three steps of two micro-batches: each one's backward pass follows its forward pass, or both follow both. Each
    backward pass runs twice. The model is checkpointed as a whole, or is one that checkpoints its parts.
    """
    optimizer, clock = torch.optim.AdamW(model.parameters(), lr=1e-2), model.microscale_clock
    for i in range(3):
        losses = []
        for part in range(2):
            tokens = torch.randint(0, 32, (4, 16), generator=torch.Generator().manual_seed(2 * i + part))
            y = checkpoint(model, tokens, use_reentrant=False, **how) if whole else model(tokens)
            losses.append(y.logsumexp(-1).mean())
            if alternately or part == 1:
                for loss in losses:
                    loss.backward(retain_graph=True)
                    loss.backward()
                losses = []
        assert clock.forwards == 2 and clock.micro_batch == 1
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("alternately", [True, False])
@pytest.mark.parametrize("recipe", ["ue5m3", "nvfp4_everywhere", "ufp4", "quartet2"])
def test_checkpointed_parts_draw_as_of_their_forward_pass(recipe, alternately):
    seen = []
    for kind, whole in ((Model, False), (Checkpointed, False), (Model, True)):
        torch.manual_seed(0)
        model = ms.convert(kind(), recipe, **({"period": 2} if recipe == "ue5m3" else {}))
        model.how = {} if alternately and not whole else {"context_fn": model.microscale_clock.contexts}
        seen.append(trained_in_pairs(model, whole, alternately, model.how))
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


def test_a_copy_has_a_clock_of_its_own():
    model, optimizer = fresh()
    train(model, optimizer, 1)
    other = copy.deepcopy(model)
    train(other, torch.optim.AdamW(other.parameters(), lr=1e-2), 2)
    assert (model.microscale_clock.step, other.microscale_clock.step) == (2, 4)
    assert all(m.clock is other.microscale_clock for m in other.modules() if isinstance(m, ms.Linear))


def test_frozen_references_come_first():
    layer = ms.Linear(64, 64, recipe="ngpt")
    with pytest.raises(RuntimeError, match="set_references"):
        layer(torch.ones(2, 64))
    layer.set_references(3.0, 0.5, 0.1)
    layer(torch.ones(2, 64)).sum().backward()
    assert layer.references.tolist() == [3.0, 0.5, torch.tensor(0.1).item()]
    with pytest.raises(ValueError, match="finite"):
        layer.set_references(float("nan"), 1.0, 1.0)


def test_targets_are_the_recipe_s_own_unless_said():
    x, w, dy = operands(32, 32, 32)
    default, own, other = (
        run(layer_of("ue5m3", w, targets=t), x, dy)[1]
        for t in (None, {"output_gradient": 448}, {"output_gradient": 2048})
    )
    assert torch.equal(default, own) and not torch.equal(default, other)
    with pytest.raises(ValueError, match="targets"):
        layer_of("nvfp4", w, targets={"weight": 2048})


def test_autocast_computes_in_bf16_and_keeps_masters():
    layer = ms.Linear(64, 32, recipe="ue5m3")
    x = torch.randn(4, 3, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16 and y.shape == (4, 3, 32)
    y.float().sum().backward()
    assert layer.weight.grad.dtype == x.grad.dtype == torch.float32
    assert torch.equal(layer.bias.grad, torch.full((32,), 12.0))


@pytest.mark.parametrize("recipe", ["ue5m3", "nvfp4_everywhere", "quartet2"])
def test_compiled_training_is_eager_training(recipe):
    eager, optimizer = fresh(recipe, period=2) if recipe == "ue5m3" else fresh(recipe)
    expected = train(eager, optimizer, 5)
    torch._dynamo.reset()
    model, optimizer = fresh(recipe, period=2) if recipe == "ue5m3" else fresh(recipe)
    compiled = torch.compile(model, backend="aot_eager")
    losses = []
    for i in range(5):
        model.microscale_clock.begin_forward()
        losses += train(compiled, optimizer, 1, first=i)
    assert losses == expected
    assert torch._dynamo.utils.counters["graph_break"] == {}


on_a_gpu = pytest.mark.skipif(len(DEVICES) < 2, reason="no GPU here")


def vendor_products(recipe, x, w, dy, device):
    """What shows every operand of the three products alone: the other one is the identity, or picks 512 tokens."""
    references, clock = torch.tensor([3.0, 0.5, 0.01], device=device), torch.tensor([7, 1])
    how = (recipe, 3, 5, [0, 0, 0], "vendor")
    x, w, dy = x.to(device), w.to(device), dy.to(device)
    one = torch.ones(1, device=device)
    features = torch.eye(x.size(1), device=device)
    (y, saved), (y_of_w, saved_of_w) = (
        torch.ops.microscale.linear_forward(*pair, references, clock, *how, torch.float32, True, True)
        for pair in ((x, features), (features, w))
    )
    picked = torch.randperm(x.size(0), generator=torch.Generator().manual_seed(0))[:512]
    tokens = torch.zeros(x.size(0), len(picked)).index_put_((picked, torch.arange(len(picked))), torch.ones(()))
    tokens, outputs = tokens.to(device), torch.eye(dy.size(1), device=device)
    kept = [tokens.bfloat16(), one, outputs.bfloat16(), one, clock]
    dx, dw = torch.ops.microscale.linear_backward(
        dy, kept, references, *how, dy.size(1), torch.float32, torch.float32, True, True
    )
    whole = ms.ops.describe_recipe(recipe)["fprop"][0]["transform"] > 1  # then Y has sums, in any order
    return [t.cpu() for t in ([] if whole else [y, y_of_w]) + [*saved[:4], *saved_of_w[2:4], dx, dw]]


@on_a_gpu
@pytest.mark.parametrize("recipe", QUANTIZING)
def test_operands_for_bf16_products_are_the_same_bits_on_a_gpu(recipe):
    described = ms.ops.describe_recipe(recipe)
    shapes = [(128, 192, 64), (96, 96, 160), (4096, 384, 1536)]
    if all(side["transform"] == 1 for gemm in ("fprop", "dgrad", "wgrad") for side in described[gemm]):
        shapes.append((37, 70, 41))
    for shape in shapes:
        x, w, dy = operands(*shape)
        x, dy = x[0], dy[0]
        for m in (x, w):
            m[1, :16], m[2] = 0.0, m[2] * 2.0**-60
        dy[3] *= 50.0  # beyond what is held
        for dtype in (torch.float32, torch.bfloat16):
            cpu, gpu = (vendor_products(recipe, x.to(dtype), w.to(dtype), dy.to(dtype), device) for device in DEVICES)
            assert [torch.equal(a, b) for a, b in zip(cpu, gpu, strict=True)] == [True] * len(cpu), (shape, dtype)


@on_a_gpu
def test_a_captured_evaluation_replays_and_a_captured_training_step_is_refused():
    torch.manual_seed(0)
    model = ms.convert(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)), "ue5m3").cuda()
    x = torch.randn(32, 64, device="cuda")
    model(x).sum().backward()  # takes references
    static, graph = torch.zeros_like(x), torch.cuda.CUDAGraph()
    with torch.no_grad():
        expected = model(x)
        with torch.cuda.graph(graph):
            y = model(static)
        static.copy_(x)
        graph.replay()
        assert torch.equal(y, expected)
    refusals = {"ue5m3": "samples references or not", "nvfp4_everywhere": "draws each replay would",
                "ufp4": "draws each replay would", "quartet2": "draws each replay would"}  # fmt: skip
    for recipe, message in refusals.items():
        layer = ms.Linear(64, 64, recipe=recipe, bias=False).cuda()
        layer(x).sum().backward()
        with pytest.raises(Exception, match=message), torch.cuda.graph(torch.cuda.CUDAGraph()):
            layer(static).sum().backward()
        torch.cuda.synchronize()
    layer = ms.Linear(64, 64, recipe="mxfp8", bias=False).cuda()  # draws nothing, holds nothing
    layer(x).sum().backward()
    expected, graph = layer.weight.grad.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.weight.grad = None
        layer(static).sum().backward()
    static.copy_(x)
    graph.replay()
    assert torch.equal(layer.weight.grad, expected)


def test_weights_sampled_together_are_those_sampled_one_by_one(monkeypatch):
    states = []
    for together in (True, False):
        torch.manual_seed(3)
        model = ms.convert(Model(), "ue5m3", period=2)
        if not together:
            monkeypatch.setattr(sys.modules["microscale_torch.convert"], "sample_weights", lambda _: None)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for step in range(4):
            for part in range(2):
                tokens = torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(2 * step + part))
                model(tokens).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        states.append(model.state_dict())
    layers = [key for key in states[0] if key.endswith("references")]
    assert len(layers) > 2 and all(bool((states[0][key] > 0).all()) for key in layers)
    for key, value in states[0].items():
        if key.endswith("_extra_state"):
            assert torch.equal(value["sampled"], states[1][key]["sampled"])
        else:
            assert torch.equal(value, states[1][key]), key
