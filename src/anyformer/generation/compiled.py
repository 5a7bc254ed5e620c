"""Decoding by one compiled graph: the prompt is read as ever, and each further token is a step whose shapes stay.

What a step costs beside its products (Python, launches, memory passed between operators) goes away; on a GPU the graph is
replayed as one launch (CUDA graphs). One graph serves all texts of as many rows whose cache has as many slots.

Whether a graph fits is asked of the ids and the cache at each step, and of the model where a text begins: its modules would be
asked thousands of questions a token, which take as long as all else that a small model does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import UsageError, first_line
from anyformer.generation.static_cache import StaticCache
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.block import keep_graphs
from anyformer.layers.linear import load_vector_products
from anyformer.layers.reordered import Reordered
from anyformer.model import Transformer
from anyformer.spec import ModelSpec, Spec, cached_calls

# What a graph holds constant of a module's attributes.
PLAIN = (Spec, str, int, float, type(None), torch.dtype, torch.device)


class CompiledStep:
    """The next logits of a model by a compiled graph, which the first call of each shape makes.

    `backend` is torch.compile's. On a GPU `Decoding` asks for a step before it has read the tokens of the one before.
    Raises UsageError where a call cannot be compiled.
    """

    lengthens = False  # its graph is of one number of slots

    def __init__(self, model: Transformer, backend: str | Callable[..., Any] = "inductor") -> None:
        if any(isinstance(weight, Reordered) for weight in model.parameters()):
            raise UsageError("the model is laid out for steps that are not compiled; load it anew")
        if others := not_in_slots(model.spec):
            raise UsageError(f"{others[0]} takes slots that are empty for tokens; decode without compiling")
        device = next(model.parameters()).device
        if device.type == "cpu" and backend == "inductor":
            _refuse_without_compiler()
        elif device.type == "cuda":
            load_vector_products()
        self.model, self.backend = model, backend
        self.ahead = device.type == "cuda"  # whether the next step is asked for while this one's tokens are read
        self._text: Callable[[], StaticCache | None] = lambda: None
        keep_graphs()

    @property
    def notice(self) -> str:
        """How long the first call takes, in a line."""
        return (
            f"a step of {len(self.model.stack.blocks)} layers is compiled before the second token: about a minute, "
            "or seconds where the compiler has done it before"
        )

    @torch.inference_mode()
    def __call__(self, ids: Tensor, types: Tensor | None, cache: StaticCache) -> Tensor:
        """Logits [batch, vocab] of the token after `ids` [batch, 1], which the cache does not hold yet."""
        from torch._dynamo.exc import BackendCompilerFailed, Unsupported  # slow to import, and by now it has been

        cache.take_room()
        if self._text() is not cache:
            self._text, self._logits = ref(cache), _graphs(self.model, self.backend)
        try:
            return self._logits(self.model, ids, types, cache)
        except Unsupported as error:
            raise UsageError(
                f"this model's step is no one graph ({first_line(error)}); decode without compiling"
            ) from None
        except BackendCompilerFailed as error:
            inner = error.inner_exception
            said = f"{type(inner).__name__}: {first_line(inner)}"
            raise UsageError(f"the compiler failed ({said}); decode without compiling") from None


_GRAPHS = WeakKeyDictionary[Transformer, tuple[Any, Callable[..., Tensor]]]()


def _graphs(model: Transformer, backend: str | Callable[..., Any]) -> Callable[..., Tensor]:
    """The graphs of a model, made anew where something of it is no longer what it was."""
    state = (backend, *_state(model))
    known = _GRAPHS.get(model)
    if known is not None and known[0] == state:
        return known[1]
    options: dict[str, Any] = {"guard_filter_fn": _of_the_text}
    if backend == "inductor":
        # The guards have seen the sizes of what comes in; by itself a graph asserts each size on its way, again and again.
        options["size_asserts"] = False
        if next(model.parameters()).is_cuda:
            options["triton.cudagraphs"] = True
    # Graphs are kept by the code that they are of, and these are of one model.
    own = FunctionType(next_logits.__code__.replace(), next_logits.__globals__, argdefs=next_logits.__defaults__)
    graphs = torch.compile(own, fullgraph=True, dynamic=False, backend=backend, options=options)
    _GRAPHS[model] = state, graphs
    return graphs


def _of_the_text(guards: Sequence[Any]) -> list[bool]:
    """Which guards are looked at in each step: those of its ids and its cache."""
    return [not guard.is_global and "model" not in guard.name for guard in guards]


def _state(model: Transformer) -> tuple[list[Any], ...]:
    """What a graph takes for granted of a model: its modules, what is set on them, and what kinds of tensors they have."""
    modules = list[Any]()
    for module in model.modules():
        plain = {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)}
        modules += (ref(module), plain, *module._forward_pre_hooks, *module._forward_hooks)
    tensors = (*model.parameters(), *model.buffers())
    return modules, [(type(each), each.dtype, each.device, each.shape, each.stride()) for each in tensors]


def not_in_slots(spec: ModelSpec) -> list[str]:
    """What keeps tokens and takes slots that are empty for some: attention asks a mask of each slot."""
    kept = (each.mixer for each in cached_calls(spec) if each.how == "tokens")
    return [mixer.kind for mixer in kept if not isinstance(mixer, AttentionSpec)]


def next_logits(
    model: Transformer,
    ids: Tensor,
    types: Tensor | None,
    cache: KVCache | None,
    mask: Tensor | None = None,
    encoder_ids: Tensor | None = None,
) -> Tensor:
    """Logits [batch, vocab] of the token after `ids` [batch, token], those that the cache does not hold yet.

    `mask` is of the encoder's ids [batch, source token] where the model has one; they may be None once the cache holds it.
    """
    read, written = (ids, None) if model.encoder is None else (encoder_ids, ids)
    out = model(read, mask, token_type_ids=types, decoder_input_ids=written, cache=cache, logits_to_keep=1)
    return out.logits[:, -1]


def _refuse_without_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UsageError(
            "compiling for a CPU takes a C++ compiler, and none is found; install g++ or clang, or decode without compiling"
        ) from None
