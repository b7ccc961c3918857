"""Linear and convert: the library's own layer bit for bit, gradients, state, compilation."""

import copy
import ctypes
import os
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import microscale_torch as ms
from microscale_torch import _C
from test_ops import DEVICES, bits, same

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
            x = checkpoint(block, x, **{"use_reentrant": False, **self.how})
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


def test_a_failed_convert_leaves_the_model_as_it_was():
    def position(name, count):
        return ms.Position("mlp_up" if name != "head" else "mlp", 0, count)

    for how, message in (
        ({"position": position}, "role: expected one of embedding, .*, got mlp"),
        ({"position": lambda *_: ms.Position("mlp_up", 2, 2)}, "index: expected a block of 2, from 0, got 2"),
        ({"accumulation": "fast"}, "accumulation: expected one of vendor, .*, got fast"),
        ({"period": 0}, "period: expected a whole number, 1 or more, got 0"),
        ({"targets": {"dY": 448}}, "targets: expected some of activation, weight, output_gradient, got dY"),
        ({"targets": {"weight": -5}}, "targets: expected whole numbers"),
        ({"targets": 448}, "targets: expected {operand: target}, got 448"),
        ({"seed": 1 << 64}, "seed: expected a whole number of 64 bits"),
    ):
        model = Model()
        before = list(model.modules())
        with pytest.raises(ValueError, match=message):
            ms.convert(model, "ue5m3", **how)
        assert list(model.modules()) == before and not model._forward_pre_hooks
        assert not hasattr(model, "microscale_clock")
    for recipe, how, message in (
        ("nvfp5", {}, "recipe: expected one of those that recipes"),
        ("nvfp4", {"period": 50}, "period: expected none under nvfp4"),
        ("nvfp4", {"targets": {"weight": 448}}, "targets: expected none under nvfp4"),
    ):
        with pytest.raises(ValueError, match=message):
            ms.convert(Model(), recipe, **how)
    with pytest.raises(ValueError, match="Linear.from_linear"):
        ms.convert(nn.Linear(16, 16), "ue5m3")


def test_a_model_converted_twice_has_one_clock():
    model = ms.convert(Model(), "ue5m3", select=lambda name, _: name.endswith("up"), seed=4)
    ms.convert(model, "nvfp4_everywhere", select=lambda name, _: name.endswith("down"))
    layers = [m for m in model.modules() if isinstance(m, ms.Linear)]
    assert [m.recipe for m in layers] == ["ue5m3", "nvfp4_everywhere"] * 2
    assert sorted(m.number for m in layers) == [0, 1, 2, 3] and all(m.count == 2 for m in layers)
    assert all(m.clock is model.microscale_clock for m in layers) and model.microscale_clock.seed == 4
    model(torch.zeros(1, 16, dtype=torch.int64)).sum().backward()
    assert model.microscale_clock.forwards == 1
    with pytest.raises(ValueError, match="expected the seed 4 that this model has, got 5"):
        ms.convert(model, "bf16", seed=5)
    ms.convert(model, "bf16")
    with pytest.raises(ValueError, match="not converted yet"):
        ms.convert(model, "bf16")


def test_a_shared_layer_is_converted_wherever_it_is_used():
    layer = nn.Linear(16, 16)
    model = ms.convert(nn.Sequential(layer, nn.ReLU(), layer, nn.Sequential(layer)), "ue5m3")
    assert isinstance(model[0], ms.Linear) and model[0] is model[2] and model[0] is model[3][0]
    assert model[0].weight is layer.weight and len(list(model.parameters())) == 2


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_what_nn_linear_does_not_compute_is_left_alone():
    model = nn.Sequential(nn.Linear(16, 16), Doubled(16, 16), nn.MultiheadAttention(16, 2))
    ms.convert(model, "nvfp4_everywhere")
    kinds = [type(m) for m in model.modules() if isinstance(m, nn.Linear)]
    assert kinds == [ms.Linear, Doubled, nn.modules.linear.NonDynamicallyQuantizableLinear]
    for layer, what in (
        (torch.nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)), "parametrized"),
        (nn.LazyLinear(16), "not initialized yet"),
    ):
        with pytest.raises(ValueError, match=what):
            ms.convert(nn.Sequential(layer), "ue5m3")


def test_hooks_stay():
    model, calls = nn.Sequential(nn.Linear(16, 16)), []
    forward = model[0].register_forward_hook(lambda *_: calls.append("forward"))
    model[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    ms.convert(model, "nvfp4_everywhere")
    for expected in (["forward", "backward"], ["backward"]):
        model(torch.randn(16, 16, requires_grad=True)).sum().backward()
        assert calls == expected
        calls.clear()
        forward.remove()


@pytest.mark.parametrize("nested", [True, False])
def test_an_evaluation_of_torch_s_encoder_runs_the_converted_layers(nested):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
    x, padding = torch.randn(4, 16, 32), torch.zeros(4, 16, dtype=torch.bool)
    padding[:, 12:] = True
    plain = model(x, src_key_padding_mask=padding)
    ms.convert(model, "nvfp4_everywhere")
    trained = model(x, src_key_padding_mask=padding)
    with torch.no_grad():
        evaluated = model.eval()(x, src_key_padding_mask=padding)
    assert torch.equal(evaluated, trained) and not torch.equal(trained, plain)


def test_references_stay_fp32_in_a_bf16_model():
    model, optimizer = fresh()
    train(model, optimizer, 1)
    layer = model.blocks[0].up
    held = layer.references.clone()
    model.to(torch.bfloat16)
    assert layer.weight.dtype == torch.bfloat16
    assert layer.references.dtype == torch.float32 and torch.equal(layer.references, held)
    assert torch.isfinite(torch.tensor(train(model, torch.optim.AdamW(model.parameters()), 2))).all()


def test_a_model_that_is_made_without_memory_is_trained_from_a_checkpoint():
    model, optimizer = fresh(period=2)
    train(model, optimizer, 1)
    with torch.device("meta"):
        other = ms.convert(Model(), "ue5m3", period=2)
        assert other(torch.zeros(1, 4, dtype=torch.int64)).shape == (1, 4, 32)
    other.to_empty(device="cpu").load_state_dict(copy.deepcopy(model.state_dict()))
    runs = [train(m, torch.optim.SGD(m.parameters(), lr=0.1), 3, first=1) for m in (model, other)]
    assert runs[0] == runs[1]


def test_a_whole_model_can_be_saved_between_the_micro_batches_of_a_step(tmp_path):
    model, _ = fresh("nvfp4_everywhere")
    tokens = torch.zeros(1, 16, dtype=torch.int64)
    model(tokens).sum().backward()
    torch.save(model, tmp_path / "model")
    other = torch.load(tmp_path / "model", weights_only=False)
    assert other.microscale_clock.passes is None  # another process counts its nodes anew
    for m in (model, other):
        m.zero_grad()
        m(tokens).sum().backward()
        assert m.microscale_clock.micro_batch == 1
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_checkpoint_of_a_model_that_was_not_converted_leaves_references_to_be_taken():
    plain, (model, optimizer) = Model(), fresh()
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert missing and not unexpected and all(k.endswith(("references", "_extra_state")) for k in missing)
    assert torch.equal(model.head.weight, plain.head.weight) and model.blocks[0].up.sampled.tolist() == [0, 0, 0]
    train(model, optimizer, 1)
    assert model.blocks[0].up.sampled.tolist() == [1, 1, 1]


def test_layers_say_what_they_take():
    layer, drawing = ms.Linear(64, 32, recipe="ue5m3"), ms.Linear(64, 32, recipe="nvfp4_everywhere")
    for x in (torch.ones(4, 63), torch.ones(4, 32), torch.ones(())):
        with pytest.raises(ValueError, match="X of a linear layer: expected 64 features, got"):
            layer(x)
    for dtype in (torch.float16, torch.float64, torch.int64):
        with pytest.raises(TypeError, match=f"expected torch.float32 or torch.bfloat16, got {dtype}"):
            layer(torch.ones(4, 64).to(dtype))
    with (
        torch.autocast("cpu", torch.float16),
        pytest.raises(TypeError, match="autocast: expected .* got torch.float16"),
    ):
        layer(torch.ones(4, 64))
    for other, x, message in (
        (drawing, torch.ones(7, 64), "tokens: expected a multiple of 16 under nvfp4_everywhere, got 7"),
        (ms.Linear(63, 32, recipe="ufp4"), torch.ones(16, 63), "input features: expected .* under ufp4, got 63"),
        (
            ms.Linear(64, 33, recipe="quartet2"),
            torch.ones(32, 64, requires_grad=True),
            "output features: expected a multiple of 32 under quartet2, got 33",
        ),
    ):
        with pytest.raises(RuntimeError, match=message):
            other(x).sum().backward()


def test_there_is_no_second_derivative():
    x = torch.randn(16, 64, requires_grad=True)
    dx = torch.autograd.grad(ms.Linear(64, 32, recipe="ue5m3")(x).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dx.sum().backward()


@pytest.mark.parametrize("tokens", [0, 16])
def test_a_layer_without_inputs_is_its_bias(tokens):
    with pytest.warns(UserWarning, match="zero-element"):
        layer = ms.Linear(0, 32, recipe="ue5m3")
    y = layer(torch.empty(tokens, 0))
    y.sum().backward()
    assert torch.equal(y, layer.bias.expand(tokens, 32)) and layer.weight.grad.shape == (32, 0)


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
        "output": ("head", 0),
        "embed_out": ("head", 0),
        "model.decoder.output_projection": ("head", 0),
        "single_transformer_blocks.3.proj_out": ("mlp_up", 3),
        "proj_out": ("head", 0),
        "cls.predictions.decoder": ("head", 0),
        "layers.2.attention.wo": ("attention_output", 2),
        "layers.2.feed_forward.w2": ("mlp_down", 2),
        "gpt_neox.layers.5.attention.query_key_value": ("attention_qkv", 5),
        "gpt_neox.layers.5.attention.dense": ("attention_output", 5),
        "gpt_neox.layers.5.mlp.dense_4h_to_h": ("mlp_down", 5),
        "encoder.layer.4.attention.self.key": ("attention_k", 4),
        "encoder.layer.4.attention.output.dense": ("attention_output", 4),
        "encoder.layer.4.intermediate.dense": ("mlp_up", 4),
        "encoder.layer.4.output.dense": ("mlp_down", 4),
        "blocks.7.attention.output": ("attention_output", 7),
        "encoder.block.1.layer.0.SelfAttention.q": ("attention_q", 1),
        "encoder.block.1.layer.0.SelfAttention.o": ("attention_output", 1),
        "encoder.block.1.layer.1.DenseReluDense.wo": ("mlp_down", 1),
        "transformer.layer.6.attention.v_lin": ("attention_v", 6),
        "transformer_blocks.9.attn1.to_out.0": ("attention_output", 9),
        "transformer_blocks.9.attn1.to_k": ("attention_k", 9),
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


@pytest.mark.parametrize("counted", [True, False])
def test_optimizers_that_share_a_model_end_one_step(counted):
    model, _ = fresh()
    clock, weights = model.microscale_clock, list(model.parameters())
    optimizers = [torch.optim.SGD(part, lr=0.1) for part in (weights[:3], weights[3:7], weights[7:])]
    assert all(any(layer.weight is w for o in optimizers[1:] for g in o.param_groups for w in g["params"])
               for layer in (model.head, model.blocks[1].up))  # fmt: skip
    for step in range(1, 5):
        assert (clock.step, clock.forwards) == (step, 0)
        if counted:
            for _ in range(2):
                model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    clock.load_state_dict({"seed": 0, "step": 8})
    optimizers[1].step()
    assert clock.step == 9


def test_more_micro_batches_than_draws_tell_apart_are_said():
    clock = ms.Clock()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(1024):
            clock.begin_forward()
        with pytest.raises(UserWarning, match="1025 micro-batches in step 1, of which 1024 draw"):
            clock.begin_forward()
        clock.end_step()
        clock.begin_forward()


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
def test_what_is_checkpointed_draws_as_of_its_forward_pass(recipe, alternately):
    def trained(kind, whole, told):
        torch.manual_seed(0)
        model = ms.convert(kind(), recipe, **({"period": 2} if recipe == "ue5m3" else {}))
        model.how = {"context_fn": model.microscale_clock.contexts} if told else {}
        return trained_in_pairs(model, whole, alternately, model.how)

    expected = trained(Model, False, False)
    for kind, whole in ((Checkpointed, False), (Model, True), (Checkpointed, True)):
        for told in (False, True):
            got = trained(kind, whole, told)
            assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)), (kind, whole, told)


def test_reentrant_checkpoints_are_the_same_or_refused():
    trained = []
    for kind in (Model, Checkpointed):
        torch.manual_seed(0)
        model = ms.convert(kind(), "nvfp4_everywhere")
        model.how = {"use_reentrant": True}
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), 3)
        trained.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))

    tokens, one = torch.zeros(1, 16, dtype=torch.int64), torch.ones(1, requires_grad=True)
    model = ms.convert(Model(), "nvfp4_everywhere")
    y = checkpoint(lambda x: model(tokens) * x, one, use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False, context_fn=model.microscale_clock.contexts"):
        y.sum().backward()
    model = ms.convert(Checkpointed(), "ue5m3")  # whose first step takes references
    model.how = {"use_reentrant": True}
    with pytest.raises(RuntimeError, match="use_reentrant=False in a step that takes references"):
        model(tokens).sum().backward()


def test_a_forward_pass_of_another_step_is_computed_again_as_of_it_or_not_at_all():
    tokens = torch.arange(16)[None]
    for told in (True, False):
        model, _ = fresh("nvfp4_everywhere")
        how = {"context_fn": model.microscale_clock.contexts} if told else {}
        y = checkpoint(model, tokens, use_reentrant=False, **how)
        model.microscale_clock.end_step()
        if not told:
            with pytest.raises(RuntimeError, match="of this step"):
                y.sum().backward()
            continue
        y.sum().backward()
        expected, _ = fresh("nvfp4_everywhere")
        expected(tokens).sum().backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), expected.parameters()))


def test_a_compiled_model_is_computed_again_as_it_was():
    trained = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model, _ = fresh("nvfp4_everywhere")
        called = torch.compile(model, backend="aot_eager") if compiled else model
        losses = []
        for part in range(2):  # both backward passes follow both forward passes
            tokens = torch.randint(0, 32, (4, 16), generator=torch.Generator().manual_seed(part))
            if compiled:
                model.microscale_clock.begin_forward()
                y = checkpoint(called, tokens, use_reentrant=False, context_fn=model.microscale_clock.contexts)
            else:
                y = called(tokens)
            losses.append(y.logsumexp(-1).mean())
        for loss in losses:
            loss.backward()
        trained.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def test_a_copy_has_a_clock_of_its_own():
    model, optimizer = fresh()
    train(model, optimizer, 1)
    other = copy.deepcopy(model)
    train(other, torch.optim.AdamW(other.parameters(), lr=1e-2), 2)
    assert (model.microscale_clock.step, other.microscale_clock.step) == (2, 4)
    assert all(m.clock is other.microscale_clock for m in other.modules() if isinstance(m, ms.Linear))


def test_frozen_references_come_first():
    torch._dynamo.reset()
    layer = ms.Linear(64, 64, recipe="ngpt")
    compiled = torch.compile(layer, backend="aot_eager")
    for called in (layer, compiled):
        with pytest.raises(RuntimeError, match="set_references"):
            called(torch.ones(2, 64))
    layer.set_references(3.0, 0.5, 0.1)
    other = ms.Linear(64, 64, recipe="ngpt")
    other.load_state_dict(copy.deepcopy(layer.state_dict()))
    layer(torch.ones(2, 64)).sum().backward()
    for called in (compiled, other):
        assert torch.equal(called(torch.ones(2, 64)), layer(torch.ones(2, 64)))
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


def test_a_compiled_evaluation_takes_any_number_of_tokens():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    layer = ms.Linear(64, 32, recipe="ue5m3")
    compiled = torch.compile(layer, backend="aot_eager", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for tokens in (7, 9, 40):
            x = torch.randn(tokens, 2, 64)
            assert torch.equal(compiled(x), layer(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


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
