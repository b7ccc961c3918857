"""Training steps as CUDA graphs: what a step enqueues is recorded once and replayed, without Python and launches."""

import contextlib
import gc
import weakref
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _pytree as pytree

from microscale_torch import _C
from microscale_torch.linear import MOST_FORWARDS, Linear, is_due


@dataclass
class _Recorded:
    graph: object
    inputs: list
    outputs: list
    output_tree: object
    sampled: list  # (layer, operand) whose references the step takes
    optimizers: list  # each with the options of its groups


@contextlib.contextmanager
def without_collection():
    """Collects garbage, and keeps the collector off. While a graph is recorded, it could come upon an older graph in a
    cycle, whose destruction CUDA does not permit then: that would end the recording.
    """
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _reset_on_load(step, optimizer):
    """Resets a GraphedStep, which it does not keep alive, when the optimizer loads a state."""
    step = weakref.ref(step)
    optimizer.register_load_state_dict_post_hook(lambda _: None if step() is None else step().reset())


def _reads(tensor):
    """Whether a graph reads that memory when it runs."""
    return tensor.is_cuda


def _option(name, value):
    """What must not change of an option: of parameters their number; of a tensor on a GPU the memory, which a graph
    reads; of one on the CPU what it holds, which a graph repeats.
    """
    if name == "params":
        return len(value)
    if isinstance(value, torch.Tensor):
        return value.data_ptr() if _reads(value) else value.tolist()
    return value


def _options_of(optimizer):
    """Of each group, and how many groups there are."""
    groups = [{name: _option(name, value) for name, value in group.items()} for group in optimizer.param_groups]
    return [{"groups": len(groups)}, *groups]


class GraphedStep:
    """A training step of a model, replayed as a CUDA graph where its parameters are on a GPU.

        step = ms.GraphedStep(model, function)  # function(tokens, targets) does the step and returns the loss
        loss = step(tokens, targets)

    `function` is a whole optimizer step: the forward and backward passes of one micro-batch or several, step() of the
    optimizer, zero_grad(). On the GPU, what it does may depend on the data of its arguments alone, which are tensors.
    So autocast is entered within it, nothing is read back, the optimizer is `capturable`, and its learning rate, if it
    changes, is a tensor there that is filled before each step. What the function returns comes back detached.

    The first `warm_up` calls run as they are. Of the others, the first that takes other references than the recorded
    ones do is recorded: one graph for steps that sample, one for those that hold; likewise the first with arguments of
    another shape, or after layers got another configuration. Draws, references and state_dict() are those of the same
    steps without graphs. Where parameters or buffers of the model moved, others are trained than before, or an optimizer
    loaded a state, all begins anew. Not for several processes, nor parts of a model that were converted one by one.

    `capture_error_mode` is that of torch.cuda.graph: `thread_local` if other threads of the process use CUDA meanwhile,
    such as one that pins memory, which ends a recording under `global`.
    """

    def __init__(self, model, function, warm_up=2, capture_error_mode="global"):
        if warm_up < 1:  # of which optimizers make their state
            raise ValueError(f"GraphedStep: expected a warm-up of 1 step or more, got {warm_up}")
        self.model, self.function, self.warm_up = model, function, warm_up
        self.capture_error_mode = capture_error_mode
        clocks = {id(m.microscale_clock): m.microscale_clock for m in model.modules() if hasattr(m, "microscale_clock")}
        if len(clocks) > 1:
            raise ValueError(f"GraphedStep: expected a model that was converted as one, got {len(clocks)} parts")
        self.clock = next(iter(clocks.values()), None)  # a model that was not converted has none
        self.layers = [m for m in model.modules() if isinstance(m, Linear) and m.is_quantized]
        self._followed = weakref.WeakSet()
        self.reset()

    def reset(self):
        """Forgets what was recorded: the next calls warm up again."""
        self._calls, self._recorded, self._where = 0, {}, None
        self._pool = self._stream = self._slots = self._micro_batches = None

    @property
    def graphs(self):
        """How many graphs were recorded."""
        return len(self._recorded)

    def __call__(self, *arguments):
        leaves, tree = pytree.tree_flatten(arguments)
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise TypeError("GraphedStep: expected arguments that are tensors, or made of tensors")
        device = next(self.model.parameters()).device
        if device.type != "cuda":
            return self._run(leaves, tree)
        self._check()
        with torch.cuda.device(device):
            where = self._memory()
            if where != self._where:
                self.reset()
                self._begin(device)
                self._where = where
            if self.clock is not None:
                torch.add(self._micro_batches, _C.stream_offset(self.clock.step, 0), out=self._slots)
            self._calls += 1
            if self._calls > self.warm_up:
                return self._replay(leaves, tree, device)
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                out = self._run([leaf.to(device) for leaf in leaves], tree)
            torch.cuda.current_stream().wait_stream(self._stream)
            return out

    def _memory(self):
        """What a graph reads and writes of the model, and what it trains."""
        parameters = [(p.data_ptr(), p.requires_grad) for p in self.model.parameters()]
        return parameters + [b.data_ptr() for b in self.model.buffers()]

    def _check(self):
        if dist.is_initialized() and dist.get_world_size() > 1:
            raise RuntimeError("GraphedStep: expected one process, got several, whose collectives are not recorded")
        if torch.is_autocast_enabled("cuda"):
            raise RuntimeError("GraphedStep: expected autocast to be entered within the function, not around its call")
        if self.clock is not None and self.clock.forwards != 0:
            raise RuntimeError("GraphedStep: expected to begin a step, got one with forward passes behind it")

    def _begin(self, device):
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        numbers = [_C.stream_offset(0, j) for j in range(MOST_FORWARDS)]
        self._micro_batches = torch.tensor(numbers, device=device)
        self._slots = torch.empty_like(self._micro_batches)  # where kernels find the stream offset of each micro-batch

    def _run(self, leaves, tree):
        with contextlib.nullcontext() if self.clock is None else self.clock.reading(self._slots):
            out = self.function(*pytree.tree_unflatten(leaves, tree))
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, out)

    def due(self):
        """Which references of which layers this step takes."""
        if self.clock is None:
            return ()
        return tuple(
            is_due(held, self.clock.step, layer.period, layer.first_step)
            for layer in self.layers
            if layer.scaling == "periodic"
            for held in layer.sampled.tolist()
        )

    def _configuration(self):
        """What a graph repeats of what the model's layers are told."""
        layers = tuple((layer.recipe, layer.number, layer.accumulation, *layer.targets) for layer in self.layers)
        return self.clock and self.clock.seed, layers, tuple(m.training for m in self.model.modules())

    def _replay(self, leaves, tree, device):
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = (self.due(), self._configuration(), tree, shapes)
        recorded = self._recorded.get(key)
        if recorded is None:
            inputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]
        else:
            inputs = recorded.inputs
        with torch.no_grad():
            for own, given in zip(inputs, leaves):
                own.copy_(given, non_blocking=not given.is_pinned())
        if recorded is None:
            recorded = self._recorded[key] = self._record(inputs, tree)
        else:
            for optimizer, before in recorded.optimizers:
                self._compare(before, _options_of(optimizer))
            if self.clock is not None:
                for layer, operand in recorded.sampled:
                    layer.sampled[operand] = self.clock.step
                self.clock.end_step()
        recorded.graph.replay()
        outputs = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in recorded.outputs]
        return pytree.tree_unflatten(outputs, recorded.output_tree)

    def _record(self, inputs, tree):
        """Of this step, what the device is to do. What the host keeps of a step advances as the function runs."""
        clock, step = self.clock, self.clock.step if self.clock is not None else 0
        before = [layer.sampled.clone() for layer in self.layers]
        optimizers, graph = [], torch.cuda.CUDAGraph()
        hook = register_optimizer_step_post_hook(lambda optimizer, *_: optimizers.append(optimizer))
        current = torch.cuda.current_stream()
        how = {"pool": self._pool, "stream": self._stream, "capture_error_mode": self.capture_error_mode}
        try:
            with without_collection(), torch.cuda.graph(graph, **how):
                out = self._run(inputs, tree)
            if not optimizers or (clock is not None and clock.step != step + 1):
                raise RuntimeError("GraphedStep: expected a function that calls step() of the model's optimizer, once")
        except BaseException:
            torch.cuda.set_stream(current)  # torch leaves the other one where a recording ends early
            for layer, sampled in zip(self.layers, before):
                layer.sampled.copy_(sampled)
            for parameter in self.model.parameters():
                parameter.grad = None  # which may be memory of the graph
            if clock is not None:
                clock.forwards = 0
                clock.set(step)
            self._pool = torch.cuda.graph_pool_handle()  # the other may count as in use
            raise
        finally:
            hook.remove()
        for optimizer in optimizers:
            if optimizer not in self._followed:
                self._followed.add(optimizer)
                _reset_on_load(self, optimizer)
        outputs, output_tree = pytree.tree_flatten(out)
        sampled = [
            (layer, operand)
            for layer, held in zip(self.layers, before)
            for operand in range(3)
            if layer.sampled[operand] != held[operand]
        ]
        return _Recorded(graph, inputs, outputs, output_tree, sampled, [(o, _options_of(o)) for o in optimizers])

    @staticmethod
    def _compare(before, now):
        for a, b in zip(before, now):
            for name in a | b:
                old, new = a.get(name), b.get(name)
                if old != new:
                    raise RuntimeError(
                        f"GraphedStep: {name} was {old} when the step was recorded, and is {new}, which the "
                        "graph does not see: make it a tensor on the GPU, and fill that, or call reset()"
                    )
