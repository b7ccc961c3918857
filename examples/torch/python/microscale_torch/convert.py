"""Turning the linear layers of a model into layers under a recipe."""

import re
import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from microscale_torch.linear import Clock, Linear, in_backward_pass, sample_weights
from microscale_torch.ops import as_word

# What a layer is called, in the models that people have; the first pattern that its name holds decides.
_ROLE_PATTERNS = (
    ("head", r"(^|\.)(lm_head|head|classifier|score|unembed\w*|embed_out)$"),
    ("head", r"^[^\d]*(\boutput|\bproj_out|output_projection|predictions\.decoder)$"),  # outside the blocks
    ("attention_qkv", r"(qkv|c_attn|in_proj|query_key_value|Wqkv)"),
    ("attention_output", r"(o_proj|out_proj|to_out(\.0)?$)"),
    ("attention_output", r"(?i:attn|attention)\w*\.(c_proj|proj|dense|output(\.dense)?|wo|out|out_lin|o)$"),
    ("attention_q", r"\b(q_proj|query|wq|q|to_q|q_lin)$"),
    ("attention_k", r"\b(k_proj|key|wk|k|to_k|k_lin)$"),
    ("attention_v", r"\b(v_proj|value|wv|v|to_v|v_lin)$"),
    ("mlp_down", r"(down_proj|c_proj|fc2|fc_out|w2|lin2|dense_4h_to_h|linear2|down|output\.dense|\.wo)$"),
)


@dataclass
class Position:
    """Where a layer stands: its role (linear.ROLES), its block, from 0, and how many blocks there are."""

    role: str
    index: int
    count: int


def position_of(name, count):
    """A layer's place from its name: the role by the usual names, the block by the first number in it."""
    role = next((r for r, pattern in _ROLE_PATTERNS if re.search(pattern, name)), "mlp_up")
    return Position(role, _block_of(name), count)


def _block_of(name):
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)


def _is_plain(module):
    """Whether a call of it is nn.Linear's product: not of what another class makes of it, nor of the out_proj of
    nn.MultiheadAttention, which is never called.
    """
    computes = isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
    return computes and not isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear)


def _linear_layers(model):
    """[(parent, child's name, whole name)] of what can be converted, everywhere that a shared layer is used."""
    return [
        (parent, child, f"{name}.{child}" if name else child)
        for name, parent in model.named_modules()
        for child, module in parent._modules.items()
        if _is_plain(module)
    ]


def convert(model, recipe, *, select=None, position=None, seed=None, **how):
    """Replaces each nn.Linear in `model` by a Linear under `recipe`, in place, and returns the model.

    select(name, module) -> bool says which to take (all, by default); position(name, count) -> Position says where a
    layer stands (position_of, by default: look at print(model)). What else a layer takes (period, targets,
    accumulation) may follow. Parameters stay the objects they were, so optimizers and tied weights are not disturbed;
    so do hooks. Classes derived from nn.Linear with a forward() of their own are left alone, and so are projections
    within nn.MultiheadAttention. Where it raises an error, the model is as it was.

    The model gets a `microscale_clock`: each forward pass with gradients on is a micro-batch of the current step, and a
    step() of an optimizer that holds a converted weight ends it (of several, the first). Of a model that has one, what is
    not converted yet follows it too, so that parts can have different recipes. Its `seed` is 0 unless said.
    """
    if isinstance(model, nn.Linear):
        raise ValueError("convert: expected a model that holds its linear layers; this one is one (Linear.from_linear)")
    found = [at for at in _linear_layers(model) if select is None or select(at[2], at[0]._modules[at[1]])]
    if not found:
        raise ValueError("convert: expected a model with linear layers to convert, got none that is not converted yet")
    is_first = not hasattr(model, "microscale_clock")
    clock = Clock(seed or 0) if is_first else model.microscale_clock
    if seed is not None and as_word("seed", seed) != clock.seed:
        raise ValueError(f"convert: expected the seed {clock.seed} that this model has, got {seed}")

    number = 1 + max((m.number for m in model.modules() if isinstance(m, Linear) and m.clock is clock), default=-1)
    count = 1 + max(_block_of(name) for name, m in model.named_modules() if isinstance(m, nn.Linear))
    layers = {}
    for parent, child, name in found:
        module = parent._modules[child]
        if module not in layers:
            at = (position or position_of)(name, count)
            layers[module] = Linear.from_linear(
                module, recipe=recipe, role=at.role, index=at.index, count=at.count, number=number + len(layers),
                clock=clock, **how,
            )  # fmt: skip
    for parent, child, _ in found:
        setattr(parent, child, layers[parent._modules[child]])
    _keep_to_modules(model)
    if is_first:
        model.microscale_clock = clock
        model.register_forward_pre_hook(_begin_forward)
    _followed.add(model)
    return model


def _keep_to_modules(model):
    """nn.TransformerEncoderLayer, in an evaluation, would multiply by weights without calling the layers that hold them."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # on which that depends, and nothing else
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


def _begin_forward(model, _):
    clock = model.microscale_clock
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or clock.is_again:
        return
    if in_backward_pass():
        clock.first_time()  # which refuses what it cannot tell
        return
    _followed.add(model)  # which may be a copy of what was converted
    clock.begin_forward()
    if clock.forwards == 1:
        sample_weights(model)


_followed = weakref.WeakSet()


def _after_optimizer_step(optimizer, _args, _kwargs):
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for model in _followed:
        if any(id(layer.weight) in held for layer in model.modules() if isinstance(layer, Linear)):
            model.microscale_clock.end_step_of(optimizer)


register_optimizer_step_post_hook(_after_optimizer_step)
