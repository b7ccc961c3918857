"""Turning the linear layers of a model into layers under a recipe."""

import re
import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from microscale_torch.linear import Clock, Linear, sample_weights

# What a layer is called, in the models that people have; the first pattern that its name holds decides.
_ROLE_PATTERNS = (
    ("head", r"(^|\.)(lm_head|head|output|classifier|score|unembed\w*)$"),
    ("attention_qkv", r"(qkv|c_attn|in_proj|query_key_value|Wqkv)"),
    ("attention_output", r"(o_proj|out_proj|(attn|attention)\w*\.(c_proj|proj|dense|output\.dense|wo|out)$)"),
    ("attention_q", r"\b(q_proj|query|wq|q)$"),
    ("attention_k", r"\b(k_proj|key|wk|k)$"),
    ("attention_v", r"\b(v_proj|value|wv|v)$"),
    ("mlp_down", r"(down_proj|c_proj|fc2|w2|dense_4h_to_h|linear2|down|output\.dense)$"),
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


def convert(model, recipe, *, select=None, position=None, seed=0, **how):
    """Replaces each nn.Linear in `model` by a Linear under `recipe`, in place, and returns the model.

    select(name, module) -> bool says which to take (all, by default); position(name, count) -> Position says where a
    layer stands (position_of, by default: look at print(model)). What else a layer takes (period, targets,
    accumulation) may follow. Parameters stay the objects they were, so optimizers and tied weights are not disturbed.

    The model gets a `microscale_clock`: each forward pass with gradients on is a micro-batch of the current step, and a
    step() of an optimizer that holds a converted weight ends it.
    """
    found = [
        (name, m)
        for name, m in model.named_modules()
        if isinstance(m, nn.Linear) and not isinstance(m, Linear) and (select is None or select(name, m))
    ]
    if not found:
        raise ValueError("convert: expected a model with linear layers to convert")
    count = 1 + max(_block_of(name) for name, _ in found)
    clock = Clock(seed)
    for number, (name, module) in enumerate(found):
        at = (position or position_of)(name, count)
        layer = Linear.from_linear(
            module, recipe=recipe, role=at.role, index=at.index, count=at.count, number=number, clock=clock, **how
        )
        if name == "":
            raise ValueError(
                "convert: expected a model that holds its linear layers; this one is one (Linear.from_linear)"
            )
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)
    model.microscale_clock = clock
    model.register_forward_pre_hook(_begin_forward)
    _followed.add(model)
    return model


def _begin_forward(model, _):
    if torch.is_grad_enabled() and not torch.compiler.is_compiling() and not model.microscale_clock.is_again:
        _followed.add(model)  # which may be a copy of what was converted
        model.microscale_clock.begin_forward()
        if model.microscale_clock.forwards == 1:
            sample_weights(model)


_followed = weakref.WeakSet()


def _after_optimizer_step(optimizer, _args, _kwargs):
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for model in _followed:
        if any(id(layer.weight) in held for layer in model.modules() if isinstance(layer, Linear)):
            model.microscale_clock.end_step()


register_optimizer_step_post_hook(_after_optimizer_step)
