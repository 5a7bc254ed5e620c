"""The model: from token ids through the stacks to logits; decoder, encoder and encoder-decoder are one class."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import register_dataclass

from anyformer.cache import KVCache
from anyformer.capacity import refuse_beyond_memory
from anyformer.errors import CacheError, InputError, UsageError, among
from anyformer.kernels import choose
from anyformer.kernels.ulysses import over_stretches
from anyformer.layers.ahead import run_ahead
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.block import Stack, mapped
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.context import Dropout, ForwardContext, KeepNothing, Kernel, Notes, Store
from anyformer.layers.cross_entropy import mean_loss
from anyformer.layers.execution import recorded
from anyformer.layers.head import Head
from anyformer.layers.indexer import IndexerSpec
from anyformer.layers.init import initialise
from anyformer.layers.part import Part, SharedParts
from anyformer.layers.scores import ScoreSpec
from anyformer.layers.stretch import Stretches, stretched
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.new_tokens import make_tokens
from anyformer.spec import Architecture, HeadSpec, ModelSpec, Place, Recompute, parameters, specification


@dataclass
class Output:
    """What a forward pass gives."""

    last_hidden_state: Tensor  # [batch, token, width], after the final norm
    outputs: dict[str, Tensor] = field(default_factory=dict)  # by head
    # the embedding's and each block's output, the last after the final norm
    hidden_states: tuple[Tensor, ...] | None = None
    # each attention's weights [batch, heads, query, key], in the order of calls
    attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    # what each mixer reports, the encoder's first, in the order of calls
    notes: list[Notes] = field(default_factory=list)
    # by head with layers of its own, what those made of the stream [batch, token, d_model]
    of_layers: dict[str, Tensor] = field(default_factory=dict)
    # what the first head reads to predict k tokens further, [batch, token - k, width] for k = 1, 2 …
    ahead: list[Tensor] = field(default_factory=list)
    loss: Tensor | None = None  # the mean over the labels, where some were given
    # where processes have some layers each, what the next is given; what comes out else is of the last
    carried: tuple[Tensor, ...] = ()

    def __getitem__(self, key: str | int) -> Any:
        """A field by name, or by its number among those that are there: the loss, the logits, the last hidden state.

        Raises KeyError for another name.
        """
        if isinstance(key, int):
            each = (self.loss, self.logits if self.outputs else None, self.last_hidden_state)
            return [value for value in each if value is not None][key]
        if key != "logits" and key not in self.__dataclass_fields__:
            raise KeyError(key)
        return getattr(self, key)

    def read_by(self, head: Head) -> Tensor:
        """What a head makes its logits of [batch, token, width], or the weights of all attentions [batch, maps, token, token].

        Raises InputError where the kernel that was asked for gives no weights.
        """
        if head.spec.by_name:
            if not self.attentions:
                raise InputError(f"the head {head.spec.name!r} reads attention's weights; take kernel='eager'")
            return torch.cat(self.attentions, 1)
        return self.last_hidden_state if head.layers is None else self.of_layers[head.spec.name]

    @property
    def logits(self) -> Tensor:
        """The first head's [batch, token, vocab], or [batch, rows] where it pools. Raises InputError without a head."""
        if not self.outputs:
            raise InputError("no head was asked, or the model has none; what it gives is last_hidden_state")
        return next(iter(self.outputs.values()))


register_dataclass(Output)  # torch.export and torch.func take it apart


# What `make_tokens` is told of tokens: attention_mask, position_ids, token_type_ids, facts.
TokenInputs = tuple[Tensor | None, Tensor | None, Tensor | None, Mapping[str, Tensor] | None]


class Transformer(Part[ModelSpec]):
    """The module of a whole specification.

    `kernel` names how attention runs; None takes the fastest that can. `recompute` says what a backward pass makes again
    instead of keeping it: nothing, attention ("selective") or whole layers ("full"); results are the same to the bit.
    """

    encoder: Stack | None
    stack: Stack
    heads: Any
    ahead: Any

    def __init__(self, spec: ModelSpec, place: Place | None = None) -> None:
        shared = SharedParts()
        super().__init__(spec, replace(place or Place(), modules=shared))
        self.shared = shared
        self.kernel: str | None = None
        self.cache_dtype: torch.dtype | None = None  # of the caches made for it; None: that of its weights
        self.runs_on: str | None = None  # the kind of device that kernels are chosen for; None: where the tokens are
        # what the rows of a head that classifies stand for, where files say it
        self.labels: tuple[str, ...] | None = None
        self.recompute: Recompute = "none"
        self.shares: Any = None  # how processes share its layers, where they do (training.cluster.tensor_parallel)
        # Where processes share rows: without a cache, what comes out is of this process's stretch of the tokens that go in.
        self.stretches: Stretches | None = None
        self._predicts_next: bool | None = None
        with suppress(InputError):  # of a mask that goes by more than plain tokens have, which is told when it is asked
            _ = self.predicts_next  # asked here: a compiler cannot ask a mask
        # All keys are worked out here: a compiled pass cannot, where Python's cached_property takes a lock (3.11).
        placed = {id(block): block for stack in spec.stacks.values() for block in stack.layers}  # as depth makes them
        keys = {value.key: value for part in (spec, *placed.values()) for value in part.nested()}
        self._attentions = {key: value for key, value in keys.items() if isinstance(value, AttentionSpec)}
        self._by_count = any(isinstance(value, ScoreSpec | IndexerSpec) and value.by_count for value in keys.values())
        self._kernels: dict[tuple[str | None, str], Mapping[str, Kernel]] = {}

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        *,
        facts: Mapping[str, Tensor] | None = None,
        cache: KVCache | None = None,
        logits_to_keep: int = 0,
        output_logits: bool = True,
        heads: Collection[str] | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        output_ahead: bool = False,
        kernel: str | None = None,
        dropout: Dropout | None = None,
        labels: Tensor | None = None,
        encoder_last_hidden_state: Tensor | None = None,
        carried: Sequence[Tensor] = (),
    ) -> Output:
        """Run the model.

        `input_ids` [batch, token] are the encoder's where there is one, and may be left out once a cache holds its memory.
        `attention_mask` [batch, token]: 0 for padding, and tokens of equal numbers see each other, so 1 … n are packed documents;
        with a cache it covers the new tokens, or all of them. Without one, a document begins wherever `position_ids`
        do not go on by one, as in transformers: gaps within a document need a mask.
        `encoder_last_hidden_state` [batch, source, width]: what the encoder made, instead of its ids, whose mask still counts.
        `facts`: more about the tokens of `input_ids` that this model reads, "order", "mark" or "language" [batch, token].
        `logits_to_keep`: only of the last so many tokens; 0: all. `heads`: which to ask, by name; None: all but those that
        read attention's weights. A head that pools gives one answer a row, and refuses rows that hold several documents.
        `output_ahead`: run what predicts further tokens too, which takes whole rows and no cache. `labels` [batch, token] make
        the first head's loss, their mean cross-entropy but for -100: of a decoder those of each token's successor, the tokens
        themselves given as labels; of an encoder and of an encoder–decoder those of each token. A head that pools takes a class
        a row [batch]. `carried`: what the process that has the layers before these gives, each [batch, …]. Raises InputError
        and KernelError.
        """
        stage = self.stack.stage
        if stage is not None and not stage.last:
            heads = ()  # they are the last stage's
        named = [head for head in self.heads if not head.spec.by_name] if heads is None else map(self.head, heads)
        asked = list(named)
        if logits_to_keep < 0:
            raise InputError(f"logits_to_keep={logits_to_keep} is no number of tokens; give 0, for all, or more")
        output_attentions = output_attentions or (output_logits and any(head.spec.by_name for head in asked))
        name = "eager" if output_attentions and kernel is None else kernel or self.kernel
        given = decoder_input_ids if input_ids is None else input_ids
        device = self.runs_on or (given.device.type if isinstance(given, Tensor) else "cpu")
        kernels = self._choose(name, device)
        memory = memory_tokens = None
        notes: list[Notes] = []
        known = (attention_mask, position_ids, token_type_ids, facts)
        if self.encoder is None:
            ids = input_ids
            if decoder_input_ids is not None:
                raise InputError("decoder_input_ids were given to a model without an encoder; pass them as input_ids")
        else:
            ids, of_encoder = decoder_input_ids, known
            known = (decoder_attention_mask, None, None, None)
            memory_tokens = cache.memory_tokens if cache else None
            if memory_tokens is None and encoder_last_hidden_state is not None:
                memory = encoder_last_hidden_state
                memory_tokens = _as_memory(make_tokens(memory[..., 0], *of_encoder))
            elif memory_tokens is None:
                memory, memory_tokens, notes = self._encode(
                    input_ids, of_encoder, kernels, dropout, name, output_attentions
                )
        if ids is None:
            raise InputError(f"{'input_ids' if self.encoder is None else 'decoder_input_ids'} are missing")
        tokens = make_tokens(ids, *known, cache=cache, by_count=self._by_count)
        stores: Iterator[Store] = KeepNothing()
        if cache is not None:
            if output_ahead:
                raise InputError("output_ahead is for whole rows, in training; leave the cache out")
            cache.admit(tokens, ids.shape[0], self.spec.stack)
            cache.memory_tokens = memory_tokens
            stores = iter(cache.stores)
        elif self.stretches is not None:
            if name is None:
                kernels = over_stretches(kernels, self._attentions, self.stretches, tokens, dropout, device)
            ids, tokens, stores = stretched(self.stretches, ids, tokens, memory_tokens)
        context = ForwardContext(
            tokens, kernels, memory, memory_tokens, None, dropout, output_attentions, _experts(name)
        )
        context.trains = torch.is_grad_enabled() and cache is None
        context.recompute = self.recompute if context.trains else "none"
        if stage is not None and not stage.last:
            x, own = self.stack(ids, context, stores, carried=carried)
            return Output(x, notes=own, carried=stage.leave(x, context))
        hidden: list[Tensor] | None = [] if output_hidden_states else None
        # A cache holds what the layers of every head keep of every token.
        layered = [one for one in (asked if cache is None else self.heads) if one.layers is not None]
        early: dict[int, Tensor | None] = {len(self.stack.blocks) - one.layers.spec.before: None for one in layered}
        x, own = self.stack(ids, context, stores, hidden, early, carried)
        out = Output(x, encoder_last_hidden_state=memory, notes=[*notes, *own])
        if hidden is not None:
            out.hidden_states = tuple(hidden)
        if output_attentions:
            out.attentions = tuple(note["attention"] for note in own if "attention" in note)
        if output_ahead:
            out.ahead, more = run_ahead(self.ahead, x, context, self.stack.residual)
            out.notes += more
        for one in layered:
            begin = early[len(self.stack.blocks) - one.layers.spec.before]
            read, more = one.layers(x if begin is None else begin, ids, self.stack.residual, context, stores)
            out.of_layers[one.spec.name] = read
            out.notes += more
        if cache is not None:
            cache.settle()
        if output_logits:
            _refuse_pooling([head.spec for head in asked if head.pool is not None], tokens, cache)
            for one in asked:
                read = out.read_by(one)
                kept = read[:, -logits_to_keep:] if logits_to_keep and one.pool is None else read
                out.outputs[one.spec.name] = one(kept, tokens)
        if labels is not None:
            head = asked[0] if asked else self.head()
            logits = out.outputs.get(head.spec.name)
            out.loss = mean_loss(head, out.read_by(head), logits, labels, shifted=self.predicts_next)
        return out

    def head(self, name: str | None = None) -> Head:
        """The head of a name, or the first. Raises InputError where there is none."""
        for head in self.heads:
            if name in (None, head.spec.name):
                return head
        known = [head.spec.name for head in self.heads]
        if not known:
            raise InputError("this model has no head; what it gives is last_hidden_state")
        raise InputError(f"there is no head {name!r}{among(name, known)}")

    def new_cache(
        self, batch: int, length: int, *, longest: int | None = None, slack: int = 0, spec: ModelSpec | None = None
    ) -> KVCache:
        """A cache for passes over so many rows; what `length`, `longest` and `slack` are, `KVCache` says. `spec`: of a part.

        Raises CacheError for a model whose tokens see later ones: what a `KVCache` of it holds are XLNet's memories, which the
        next segment sees, and no part of one text.
        """
        if seeing := later_tokens_seen((spec or self.spec).stack, after_prefix=True):
            raise CacheError(
                f"{seeing} shows tokens later ones, as encoders do, so that no text goes on; give whole rows"
            )
        device, dtype = next(self.parameters()).device, self.kept_dtype
        return KVCache(spec or self.spec, batch, length, longest=longest, slack=slack, dtype=dtype, device=device)

    @property
    def kept_dtype(self) -> torch.dtype:
        """What its caches hold keys and values in."""
        return self.cache_dtype or next(each.dtype for each in self.parameters() if each.is_floating_point())

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """What the encoder makes [batch, source, width] of ids [batch, source], for `encoder_last_hidden_state`."""
        kernels = self._choose(self.kernel, self.runs_on or input_ids.device.type)
        return self._encode(input_ids, (attention_mask, None, None, None), kernels, None, self.kernel)[0]

    def ahead_of(self, k: int, x: Tensor, later_ids: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
        """What the k-th module of `ahead`, from 1, makes [1, token, width] of tokens that its cache does not hold yet, and the
        logits [1, 1, vocab] that the first head reads from the last.

        x [1, token, width] is what the stack, or the module before, made of these tokens, `later_ids` [1, token] stand k
        places after them, and the cache is one of the module's block alone. One row, without padding.
        """
        module, kernels = self.ahead[k - 1], self._choose(self.kernel, self.runs_on or later_ids.device.type)
        later = plain_tokens(x.shape[1], x.device, cache.n + k)
        embedded = self.stack.embedding(later_ids, ForwardContext(later, kernels))
        context = ForwardContext(make_tokens(later_ids, cache=cache), kernels, ids=later_ids)
        cache.admit(context.tokens, 1)
        x, _ = module(x, embedded, context, self.stack.residual, iter(cache.stores))
        cache.settle()
        return x, self.head()(mapped(module.spec.norm, module.norm, x[:, -1:], context), context.tokens)

    @property
    def predicts_next(self) -> bool:
        """Whether a token is told what comes after it, so that labels are shifted: in a decoder alone."""
        if self._predicts_next is None:
            self._predicts_next = self.encoder is None and not later_tokens_seen(self.spec.stack, after_prefix=True)
        return self._predicts_next

    def _encode(
        self,
        ids: Tensor | None,
        known: TokenInputs,
        kernels: Mapping[str, Kernel],
        dropout: Dropout | None,
        kernel: str | None,
        weights: bool = False,
    ) -> tuple[Tensor, Tokens, list[Notes]]:
        if ids is None:
            raise InputError("input_ids are missing: the encoder has nothing to read, and no cache holds its memory")
        assert self.encoder is not None
        whole = tokens = make_tokens(ids, *known, by_count=self._by_count)
        stores: Iterator[Store] = KeepNothing()
        if self.stretches is not None:
            if kernel is None:
                kernels = over_stretches(
                    kernels, self._attentions, self.stretches, whole, dropout, self.runs_on or ids.device.type
                )
            ids, tokens, stores = stretched(self.stretches, ids, whole)
        context = ForwardContext(tokens, kernels, dropout=dropout, weights=weights, experts=_experts(kernel))
        context.trains = torch.is_grad_enabled()
        context.recompute = self.recompute if context.trains else "none"
        memory, notes = self.encoder(ids, context, stores)
        return memory, _as_memory(whole), notes

    def _choose(self, name: str | None, device: str) -> Mapping[str, Kernel]:
        if (name, device) not in self._kernels:
            self._kernels[name, device] = {key: choose(name, spec, device) for key, spec in self._attentions.items()}
        return self._kernels[name, device]


def _as_memory(tokens: Tokens) -> Tokens:
    """What is known of the encoder's tokens, for who reads them beside others."""
    return replace(tokens, name="memory", leaps=True)


def _refuse_pooling(heads: Sequence[HeadSpec], tokens: Tokens, cache: KVCache | None) -> None:
    """Refuse rows of several documents, and rows of which a cache holds a part; compiled, what tokens say is not looked at."""
    if cache is not None and cache.n > tokens.n and (late := [h.name for h in heads if h.pool and h.pool.needs_all]):
        raise InputError(f"the head {late[0]!r} pools all tokens of a row; give it whole rows, without a cache")
    if not heads or tokens.document is None or recorded():
        return
    first = tokens.document.amax(1, keepdim=True)
    if bool(((tokens.document != first) & (tokens.document > 0)).any()):
        raise InputError(
            f"the head {heads[0].name!r} gives one answer a row, and these rows hold several documents; "
            "give each a row of its own, or ask other heads by heads=[…]"
        )


def _experts(kernel: str | None) -> Literal["sorted", "loop"]:
    """How experts run: one after the other beside the attention that is the oracle too."""
    return "loop" if kernel == "eager" else "sorted"


def build(
    architecture: Architecture,
    seed: int | None = 0,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> Transformer:
    """The model of a specification, initialised from the seed; None leaves the weights unset (to load them, or meta).

    Raises SpecError for what has no specification, and for a part that has no module; UsageError for a seed beyond 64
    bits and where memory has no room.
    """
    spec = specification(architecture)
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise UsageError(f"build: seed = {seed} is beyond 64 bits; take a number nearer 0")
    nbytes = parameters(spec).total * torch.get_default_dtype().itemsize
    refuse_beyond_memory(nbytes, device, "a model of this size", "take a smaller one, or another device")
    with torch.device(device):
        model = Transformer(spec)
    if seed is not None and torch.device(device).type != "meta":
        initialise(model, spec, seed)
    return model if dtype is None else model.to(dtype)
