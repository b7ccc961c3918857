"""A linear layer under a recipe, and the clock that its draws and references follow."""

import contextlib
import warnings
import weakref
from collections import deque

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointFunction

from microscale_torch import _C
from microscale_torch.ops import amax, as_word, describe_recipe

ROLES = (
    "embedding",
    "attention_qkv",
    "attention_output",
    "mlp_up",
    "mlp_down",
    "head",
    "attention_q",
    "attention_k",
    "attention_v",
)  # layer_role of recipe/recipe.hpp, in its order
OPERANDS = ("activation", "weight", "output_gradient")
ACCUMULATIONS = ("vendor", "exact_f32", "f32_blocks", "blackwell_k64")
AMAX_RANGE = "microscale amax all_reduce"  # what a profile calls the reduction of a sampled amax over ranks
MOST_FORWARDS = 1 << 10  # of a step: the micro-batches that random_stream tells apart


def in_backward_pass():
    """Whether this thread runs nodes of autograd: a forward pass there is one that is computed again."""
    return torch._C._current_graph_task_id() != -1


def _is_reentrant():
    return getattr(torch._C._current_autograd_node(), "_forward_cls", None) is CheckpointFunction


def _on_cpu(numbers):
    """What the host reads without waiting, whatever torch's default device is."""
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


class Clock:
    """Where a run stands: the optimizer step, from 1, and the micro-batch in it, from 0. Layers of a model share one.

    convert() lets the optimizer advance it. Random draws are functions of the seed, the step, the micro-batch and the
    layer, so a resumed run draws what the uninterrupted one would have. Ranks of a data-parallel run draw as if their
    micro-batches were those of one process, one rank's after the other's.
    """

    def __init__(self, seed=0):
        self.seed = as_word("seed", seed)
        self.step = 1
        self.micro_batch = 0
        self.forwards = 0  # of this step
        self.tensor = _on_cpu([1, 0])
        self.slots = None  # in a step of GraphedStep: on the GPU, the stream offset of each forward
        self.is_again = False  # within contexts(): a forward pass there is no other micro-batch
        self.ended_by = set()  # ids of the optimizers whose step() belongs to the step that ended last
        self.passes = None  # of this step: the number of autograd's next node when each began, and its `tensor`

    def __getstate__(self):
        # The nodes of a copy's forward passes are others.
        return {**self.__dict__, "slots": None, "passes": None, "ended_by": set()}

    def begin_forward(self):
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.set(self.step, self.forwards * world + rank)
        if self.micro_batch >= MOST_FORWARDS:
            warnings.warn(
                f"microscale: {self.micro_batch + 1} micro-batches in step {self.step}, of which {MOST_FORWARDS} draw "
                "differently; evaluate under torch.no_grad(), and where no torch optimizer that holds a converted weight "
                "ends the steps, call microscale_clock.end_step()",
                stacklevel=2,
            )
        if self.slots is not None:
            slot = self.forwards % len(self.slots)  # streams tell no more micro-batches apart
            self.tensor = self.slots[slot : slot + 1]
        self.forwards += 1
        if self.passes is None:
            self.passes = deque(maxlen=MOST_FORWARDS)
        self.passes.append((torch.autograd._get_sequence_nr(), self.tensor))

    def end_step(self):
        self._begin_step(self.step + 1)

    def end_step_of(self, optimizer):
        """Ends the step after step() of an optimizer, the first one where several share the model."""
        is_another_s = self.forwards == 0 and self.ended_by and id(optimizer) not in self.ended_by
        if not is_another_s:
            self.end_step()
        self.ended_by.add(id(optimizer))

    def _begin_step(self, step):
        self.forwards = 0
        self.ended_by.clear()
        if self.passes is not None:
            self.passes.clear()
        self.set(step)

    def set(self, step, micro_batch=0):
        self.step, self.micro_batch = step, micro_batch
        self.tensor = _on_cpu([step, micro_batch])  # a new one: backward passes hold the old

    @contextlib.contextmanager
    def reading(self, slots):
        """Within a step of GraphedStep, also before its first forward pass: the offsets are those in `slots`."""
        self.slots = slots
        if slots is not None:
            self.tensor = slots[:1]
        try:
            yield
        finally:
            self.slots = None
            self.set(self.step, self.micro_batch)

    def now(self):
        """What a forward pass of a layer draws as of: where the clock stands or, of a pass that is computed again for a
        backward pass, where it stood at the first time.
        """
        if self.is_again or self.passes is None or not in_backward_pass() or _is_reentrant():
            return self.tensor
        return self.first_time()

    def first_time(self):
        """Where the clock stood when what this backward pass computes again was computed first: it made the node of
        autograd that runs now. Under use_reentrant=True it made none.
        """
        if not _is_reentrant():
            number = torch._C._current_autograd_node()._sequence_nr()
            for began, tensor in reversed(self.passes or ()):
                if began <= number:
                    return tensor
        raise RuntimeError(
            "torch.utils.checkpoint: expected to compute a forward pass of this step again, got one that was not counted "
            "in it; pass use_reentrant=False, context_fn=model.microscale_clock.contexts"
        )

    def contexts(self):
        """For torch.utils.checkpoint as its context_fn: what is computed again for a backward pass, a part of the model
        or all of it, draws as of its own forward pass, whichever came since. now() does without, but not in compiled
        code, nor once the step has ended.
        """
        first = _FirstTime(self)
        return first, _Again(first)

    def state_dict(self):
        return {"seed": self.seed, "step": self.step}

    def load_state_dict(self, state):
        self.seed = int(state["seed"])
        self._begin_step(int(state["step"]))


class _FirstTime:
    """The context of a part of a model that will be computed again: keeps where the clock stood, be it that the part is
    the model, which sets it.
    """

    def __init__(self, clock):
        self.clock, self.tensor = clock, clock.tensor

    def __enter__(self):
        pass

    def __exit__(self, *_):
        self.tensor = self.clock.tensor


class _Again:
    """The context in which it is, once or more often."""

    def __init__(self, first):
        self.first = first

    def __enter__(self):
        clock = self.first.clock
        self.now = clock.tensor, clock.is_again
        clock.tensor, clock.is_again = self.first.tensor, True

    def __exit__(self, *_):
        clock = self.first.clock
        clock.tensor, clock.is_again = self.now


def _check(what, holds, expected, got):
    if not holds:
        raise ValueError(f"{what}: expected {expected}, got {got}")


def is_due(held, step, period, first_step):
    """Whether a reference taken at step `held` (0: never) is to be taken: this step samples and no micro-batch of it has
    yet, or none is held.
    """
    due = step >= first_step and (step - first_step) % period == 0
    return held == 0 or (due and held != step)


# Of each world. Held weakly: a group that outlives destroy_process_group() can abort the process at its end.
_communicators = weakref.WeakKeyDictionary()


def _amax_group():
    """All ranks, over a communicator of its own: on that of the gradients, a reduction would wait for what is in flight."""
    world = dist.group.WORLD
    known = _communicators.get(world, lambda: None)()
    if known is not None:
        return known
    group = dist.new_group()
    _communicators[world] = weakref.ref(group)
    return group


def _reduce(amax, group):
    """The maximum over ranks, in place."""
    if dist.is_initialized() and group != "none":
        with torch.profiler.record_function(AMAX_RANGE):
            dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=_amax_group())


def _sample(data, references, sampled, which, step, period, first_step, group):
    """Takes the amax of `data` as the held reference, if it is due."""
    if not is_due(int(sampled[which]), step, period, first_step):
        return
    own = amax(data)
    _reduce(own, group)
    references[which : which + 1].copy_(own)
    sampled[which] = step


@torch.no_grad()
def sample_weights(model):
    """Takes the references of a model's weights that are due, all of them by one reduction over ranks: they are known
    when a step begins, and what their layers would take one after the other. Sharded ones are left to their layers.
    """
    due = {}
    for layer in model.modules():
        if not isinstance(layer, Linear) or layer.scaling != "periodic" or isinstance(layer.weight, DTensor):
            continue
        if is_due(int(layer.sampled[1]), layer.clock.step, layer.period, layer.first_step):
            due.setdefault((layer.group, layer.weight.device), []).append(layer)
    for (group, _), layers in due.items():
        own = torch.cat([amax(layer.weight) for layer in layers])
        _reduce(own, group)
        for layer, value in zip(layers, own):
            layer.references[1].copy_(value)
            layer.sampled[1] = layer.clock.step


torch.library.define(
    "microscale::sample_reference",
    "(Tensor data, Tensor(a!) references, Tensor(b!) sampled, int which, Tensor clock, int period, int first_step, "
    "str group) -> ()",
)


@torch.library.impl("microscale::sample_reference", "CompositeExplicitAutograd")
def _sample_reference(data, references, sampled, which, clock, period, first_step, group):
    if data.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("CUDA graph: expected a model that is not compiled, got a training step of a compiled one")
    _sample(data, references, sampled, which, int(clock[0]), period, first_step, group)


@torch.library.register_fake("microscale::sample_reference")
def _(data, references, sampled, which, clock, period, first_step, group):
    return None


torch.library.define(
    "microscale::references_for_evaluation", "(Tensor x, Tensor weight, Tensor references, Tensor sampled) -> Tensor"
)


@torch.library.impl("microscale::references_for_evaluation", "CompositeExplicitAutograd")
def _references_for_evaluation(x, weight, references, sampled):
    """The held references; an amax of this call's own where none was taken yet. What training holds stays as it is."""
    out = references.clone()
    for which, data in enumerate((x, weight)):
        if sampled[which] == 0:
            out[which : which + 1].copy_(amax(data))
    return out


@torch.library.register_fake("microscale::references_for_evaluation")
def _(x, weight, references, sampled):
    return torch.empty_like(references)


class _Product(torch.autograd.Function):
    """Y = X W^T with the backward products of the recipe. `layer` is the module; its parameters come in as tensors."""

    @staticmethod
    def forward(ctx, x, weight, references, sampled, clock, layer, dtype, records):
        if not records and layer.scaling == "periodic":
            references = torch.ops.microscale.references_for_evaluation(x, weight, references, sampled)
        else:
            layer._hold(x, 0, references, sampled, clock)
            layer._hold(weight, 1, references, sampled, clock)
        needs_dx, needs_dw = (records and needed for needed in ctx.needs_input_grad[:2])
        y, saved = torch.ops.microscale.linear_forward(
            x, weight, references, clock, layer._recipe, layer.clock.seed, layer.number, layer.targets,
            layer.accumulation, dtype, needs_dx, needs_dw,
        )  # fmt: skip
        ctx.save_for_backward(*saved)
        # Not among the saved tensors: taking the amax of dY changes the references, as it should.
        ctx.layer, ctx.state, ctx.dtypes = layer, (references, sampled, clock), (x.dtype, weight.dtype)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        saved, layer = list(ctx.saved_tensors), ctx.layer
        references, sampled, clock = ctx.state
        dy = dy.contiguous()
        layer._hold(dy, 2, references, sampled, clock)
        needs_dx, needs_dw = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        dx, dw = torch.ops.microscale.linear_backward(
            dy, saved, references, layer._recipe, layer.clock.seed, layer.number, layer.targets,
            layer.accumulation, layer.in_features, *ctx.dtypes, needs_dx, needs_dw,
        )  # fmt: skip
        return dx if needs_dx else None, dw if needs_dw else None, None, None, None, None, None, None


class Linear(nn.Linear):
    """nn.Linear whose three products run under a recipe: any of ops.recipes(), as the library's C++ types declare them.

    role, index, count say where the layer stands (the recipe exempts some), `number` tells its random draws from those
    of other layers. Weights stay in their own precision (FP32 masters); operands of exempt layers are BF16. `period`
    and `targets` ({operand: target}) are what a recipe leaves to the run; `accumulation` is one of `vendor` (BF16
    tensor cores over decoded operands), `exact_f32`, `f32_blocks`, `blackwell_k64`. Inputs are FP32 or BF16, or anything
    that autocast to BF16 meets; there is no second derivative.
    """

    def __init__(self, in_features, out_features, bias=True, *, recipe, device=None, dtype=None, **how):
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._configure(recipe, **how)

    @classmethod
    def from_linear(cls, linear, *, recipe, **how):
        """The same parameters, and hooks, in a new layer."""
        weight = linear._parameters.get("weight")
        if weight is None or isinstance(weight, nn.parameter.UninitializedParameter):
            raise ValueError(
                "from_linear: expected a layer whose weight is a parameter, got one that is "
                + ("parametrized" if weight is None else "not initialized yet: call it once")
            )
        if isinstance(weight, DTensor):
            raise ValueError("from_linear: expected a layer that is converted before it is sharded, got a DTensor")
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.__dict__.update({k: v for k, v in linear.__dict__.items() if "_hook" in k})  # which handles remove from
        layer.in_features, layer.out_features = linear.in_features, linear.out_features
        layer.weight, layer.bias = weight, linear.bias
        layer._configure(recipe, **how)
        layer.training = linear.training
        return layer

    def _configure(
        self, recipe, role="mlp_up", index=0, count=1, number=0, clock=None, period=None, targets=None,
        accumulation="vendor",
    ):  # fmt: skip
        _check("role", role in ROLES, f"one of {', '.join(ROLES)}", role)
        _check("index", 0 <= index < count, f"a block of {count}, from 0", index)
        _check("accumulation", accumulation in ACCUMULATIONS, f"one of {', '.join(ACCUMULATIONS)}", accumulation)
        _check("recipe", recipe in _C.recipes(), "one of those that recipes() lists", recipe)
        described = describe_recipe(recipe)
        if period is not None:
            _check("period", described["scaling"] == "periodic", f"none under {recipe}, which holds nothing", period)
            _check("period", isinstance(period, int) and period >= 1, "a whole number, 1 or more", period)
        _check("targets", targets is None or isinstance(targets, dict), "{operand: target}", targets)
        for operand, target in (targets or {}).items():
            _check("targets", described["takes_targets"], f"none under {recipe}", targets)
            _check("targets", operand in OPERANDS, f"some of {', '.join(OPERANDS)}", operand)
            _check("targets", isinstance(target, int) and target >= 1, "whole numbers, 1 or more", target)
        where = (ROLES.index(role), index, count)
        self._recipe = recipe
        if _C.uses_alternative(recipe, *where):
            self._recipe = described["alternative"]
            described = describe_recipe(self._recipe)
        self.role, self.index, self.count, self.number, self.clock = role, index, count, number, clock or Clock()
        self.accumulation = accumulation
        self.is_quantized = described["fprop"] is not None and not _C.high_precision(self._recipe, *where)
        self.scaling = described["scaling"] if self.is_quantized else "none"
        self.period = described["period"] if period is None else period
        self.first_step = described["first_step"]
        self.targets = [(targets or {}).get(operand, 0) for operand in OPERANDS]
        self.group = "world"
        self.sampled = _on_cpu([0, 0, 0])  # when each reference was taken; 0 is never
        self.has_references = False  # of frozen ones, which compiled code asks too
        zeros = torch.zeros(3, dtype=torch.float32, device=self.weight.device)
        self.register_buffer("references", zeros, persistent=self.carries_state)

    def _apply(self, fn, recurse=True):
        held = self.references
        super()._apply(fn, recurse)
        if self.references.dtype != torch.float32:  # as after model.bfloat16(), which is for parameters
            self.references = held.to(self.references.device)
        return self

    @property
    def recipe(self):
        return self._recipe

    @property
    def carries_state(self):
        return self.scaling in ("periodic", "frozen")

    def set_references(self, activation, weight, output_gradient, step=1):
        """References that were found elsewhere: what frozen scaling wants before the first step."""
        values = torch.tensor([activation, weight, output_gradient], dtype=torch.float32)
        if not bool((values.isfinite() & (values >= 0)).all()):
            raise ValueError(f"references: expected finite numbers that are not negative, got {values.tolist()}")
        self.references.copy_(values)
        self.sampled.fill_(step)
        self.has_references = True

    def _hold(self, data, which, references, sampled, clock):
        if self.scaling == "periodic":
            if torch.compiler.is_compiling():
                torch.ops.microscale.sample_reference(
                    data, references, sampled, which, clock, self.period, self.first_step, self.group
                )
            else:
                step = self.clock.step if clock.is_cuda else int(clock[0])  # GraphedStep's, within this step
                if which < 2 and in_backward_pass() and is_due(int(sampled[which]), step, self.period, self.first_step):
                    raise RuntimeError(
                        "torch.utils.checkpoint: expected use_reentrant=False in a step that takes references, got a "
                        "first pass without gradients, which takes none"
                    )
                if not clock.is_cuda and data.is_cuda and torch.cuda.is_current_stream_capturing():
                    raise RuntimeError(
                        "CUDA graph: expected an evaluation or GraphedStep, got a training step, which samples "
                        "references or not"
                    )
                _sample(data, references, sampled, which, step, self.period, self.first_step, self.group)
        elif self.scaling == "frozen" and not self.has_references:
            raise RuntimeError("frozen references: expected set_references() before the first step")

    def forward(self, x):
        kind = x.device.type
        autocast = kind != "meta" and torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if autocast else x.dtype
        if not self.is_quantized:
            bias = None if self.bias is None else self.bias.bfloat16()
            return F.linear(x.bfloat16(), self.weight.bfloat16(), bias).to(dtype)
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"X of a linear layer: expected {self.in_features} features, got {tuple(x.shape)}")
        if dtype not in (torch.float32, torch.bfloat16):
            what = "autocast" if autocast else "X of a linear layer"
            raise TypeError(f"{what}: expected torch.float32 or torch.bfloat16, got {dtype}")
        rows = x.reshape(x.shape[:-1].numel(), self.in_features)
        clock = self.clock.tensor if torch.compiler.is_compiling() else self.clock.now()
        records = torch.is_grad_enabled()  # not to be seen within an autograd.Function
        with torch.autocast(kind, enabled=False) if autocast else contextlib.nullcontext():
            y = _Product.apply(rows, self.weight, self.references, self.sampled, clock, self, dtype, records)
            if self.bias is not None:
                y = y + self.bias.to(dtype)
        return y.view(*x.shape[:-1], y.size(-1))

    def extra_repr(self):
        how = self._recipe if self.is_quantized else f"{self._recipe}: bf16"
        return f"{super().extra_repr()}, recipe={how}, role={self.role}, block={self.index}/{self.count}"

    def get_extra_state(self):
        return {"sampled": self.sampled.clone(), "clock": self.clock.state_dict()}

    def set_extra_state(self, state):
        self.sampled.copy_(state["sampled"])
        self.has_references = bool((self.sampled != 0).all())
        self.clock.load_state_dict(state["clock"])
