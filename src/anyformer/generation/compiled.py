"""Decoding by one compiled graph: the prompt is read as ever, and each further token is a step whose shapes stay.

What a step costs beside its products (Python, launches, memory passed between operators) goes away; on a GPU the graph is
replayed as one launch (CUDA graphs). One graph serves all texts of as many rows whose cache has as many slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import CacheError, UsageError
from anyformer.generation.static_cache import StaticCache
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.block import keep_graphs
from anyformer.layers.reordered import Reordered
from anyformer.model import Transformer
from anyformer.spec import cached_calls

GRAPHS = 64  # of one model: as many numbers of rows and lengths of caches


class CompiledStep:
    """The next logits of a model by a compiled graph, which the first call of each shape makes.

    `backend` is torch.compile's. Raises UsageError where a call cannot be compiled.
    """

    def __init__(self, model: Transformer, backend: str | Callable[..., Any] = "inductor") -> None:
        if any(isinstance(weight, Reordered) for weight in model.parameters()):
            raise UsageError("the model is laid out for several rows, which is not compiled; load it anew")
        kept = [kept for kept in cached_calls(model.spec) if kept.how == "tokens"]
        # Attention asks a mask of each slot.
        if others := [each.mixer.kind for each in kept if not isinstance(each.mixer, AttentionSpec)]:
            raise UsageError(f"{others[0]} takes slots that are empty for tokens; decode without compiling")
        device = next(model.parameters()).device
        if device.type == "cpu" and backend == "inductor":
            _refuse_without_compiler()
        self.model = model
        keep_graphs(GRAPHS)
        self._logits: Callable[..., Tensor] = torch.compile(
            _logits,
            fullgraph=True,
            dynamic=False,
            backend=backend,
            mode="reduce-overhead" if device.type == "cuda" and backend == "inductor" else None,
        )

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

        if cache.room is not None:
            if not cache.room:
                raise CacheError("the static cache is full; make it of a longer one")
            cache.room -= 1
        try:
            return self._logits(self.model, ids, types, cache)
        except Unsupported as error:
            raise UsageError(
                f"this model's step is no one graph ({_first_line(error)}); decode without compiling"
            ) from None
        except BackendCompilerFailed as error:
            inner = error.inner_exception
            said = f"{type(inner).__name__}: {_first_line(inner)}"
            raise UsageError(f"the compiler failed ({said}); decode without compiling") from None


def _logits(model: Transformer, ids: Tensor, types: Tensor | None, cache: KVCache) -> Tensor:
    read, written = (ids, None) if model.encoder is None else (None, ids)
    out = model(read, token_type_ids=types, decoder_input_ids=written, cache=cache, logits_to_keep=1)
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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
