"""Texts as vectors: one of each text, by the model's own head or by a pool; and how well such vectors find each other.

Reimers & Gurevych 2019, arXiv:1908.10084.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from anyformer.amounts import counted
from anyformer.disk.atomic import refuse_place, write_named
from anyformer.errors import InputError, UsageError, among
from anyformer.families.heads import EMBEDDING, sentence_embedding
from anyformer.inference.classification import longest_of
from anyformer.inference.opened import Opened, TrainedModel, at_least_one, opened
from anyformer.layers import FirstTokenSpec, LastTokenSpec, MeanTokensSpec
from anyformer.layers.head import Head
from anyformer.model import Transformer
from anyformer.new_tokens import make_tokens
from anyformer.notebook import ShowsItself
from anyformer.recipe import Contrastive
from anyformer.spec import ModelSpec, Place, PoolSpec, in_turn
from anyformer.text import Tokenizer, length_batches
from anyformer.text.packing import padded
from anyformer.text.parallel import read_lines
from anyformer.training.objectives.contrastive.loss import usual_pool

Pool = Literal["mean", "first", "last"]
POOLS: Mapping[str, PoolSpec] = {"mean": MeanTokensSpec(), "first": FirstTokenSpec(), "last": LastTokenSpec()}
BATCH_TOKENS = 4096
ROWS_AT_ONCE = 1024  # of a matrix of cosines
VERSION = 1
TENSOR = "embeddings"  # in a .safetensors file
MOST_COMPARED = 20  # texts whose similarities are among the figures


@dataclass(frozen=True)
class Pooling:
    """How a text becomes a vector; what `embed` says of each."""

    pool: Pool | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    dimensions: int | None = None
    longest: int | None = None  # tokens
    truncate: bool = False
    may_cut: bool = True  # whoever asks may have `truncate`


@dataclass(frozen=True)
class Embedded(ShowsItself):
    """Texts and what stands for them."""

    texts: Sequence[str]
    vectors: Tensor  # [text, width] float32 on the CPU
    cut: int  # texts that were longer than the model was to read
    pool: str  # what made one vector of the tokens
    prompt: str = ""  # what was put before each text
    out: Path | None = None  # the file they were saved in

    @property
    def similarities(self) -> list[list[float]] | None:
        """Cosines of each text with each, of a few texts; None of one or of many."""
        if not 1 < len(self.texts) <= MOST_COMPARED:
            return None
        unit = F.normalize(self.vectors, dim=1, eps=1e-12)
        return (unit @ unit.T).tolist()

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "pool": self.pool,
            "prompt": self.prompt,
            "width": self.vectors.shape[1],
            "texts": len(self.texts),
            "cut": self.cut,
            "out": self.out and str(self.out),
            "similarities": self.similarities,
        }

    def __str__(self) -> str:
        cut = f", {self.cut:,} of them cut" if self.cut else ""
        prompt = f" behind {self.prompt!r}" if self.prompt else ""
        place = f" in {self.out}" if self.out else ""
        return f"{counted(len(self.texts), 'vector')} of {self.vectors.shape[1]:,} numbers by {self.pool}{prompt}{cut}{place}"


def embed(
    model: TrainedModel,
    tokenizer: Tokenizer | str | Path | None = None,
    texts: Sequence[str] = (),
    *,
    pool: Pool | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    dimensions: int | None = None,
    longest: int | None = None,
    truncate: bool = False,
    batch_tokens: int = BATCH_TOKENS,
    device: str | None = None,
) -> Tensor:
    """A vector for each text, [text, width] float32, in their order.

    `model` is a model, or a directory, which has its tokenizer. `pool` None asks the model's head "embedding"; without one,
    tokens that see all are averaged, and of those that do not the last is taken. "mean", "first" and "last" pool the last
    hidden state; vectors have length 1 unless the model's own head says otherwise. Before each text goes `prompt`, or the one
    that a directory of sentence-transformers has by `prompt_name`, or that which it says is usual; "" is none. Of a vector the
    first `dimensions` numbers are kept, at length 1 again (Matryoshka: arXiv:2205.13147). A text is framed as the tokenizer's
    own rules say; one of more than `longest` tokens, by default those of the training or those that the model has positions
    for, is refused, or cut with `truncate`. `batch_tokens`: texts of a batch times the longest of them. Raises InputError for
    a blank or too long text, an unknown pool, more dimensions than there are, and a model with an encoder and a decoder;
    UsageError for an unknown prompt.
    """
    way = Pooling(pool, prompt, prompt_name, dimensions, longest, truncate)
    return embedded(model, tokenizer, texts, way, batch_tokens=batch_tokens, device=device).vectors


def embedded(
    model: TrainedModel,
    tokenizer: Tokenizer | str | Path | None,
    texts: Sequence[str] | Path,
    way: Pooling | None = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
    device: str | None = None,
    out: str | Path | None = None,
) -> Embedded:
    """What `embed` does, with its figures; `texts` may be a file of them, one a line, and `out` one for the vectors.

    Raises UsageError for another kind of file, RunFailed where it cannot be written.
    """
    file = Path(out) if out is not None else None
    if file is not None and file.suffix not in (".safetensors", ".npy"):
        raise UsageError(f"--out {out}: vectors go into a .safetensors or an .npy file; give it one of these endings")
    if file is not None:
        refuse_place("--out", file)
    at_least_one("--batch-tokens", batch_tokens)
    texts = _lines(texts) if isinstance(texts, Path) else texts
    found = opened(model, tokenizer, device=device)
    way = way or Pooling()
    given = prepared(found, texts, way, batch_tokens)
    vectors = given.in_order([given.vectors(numbers) for numbers in given.batches])
    if file is not None:
        _write(vectors, file)
    return Embedded(texts, vectors, given.cut, pool_of(found.model.spec, way.pool).kind, given.prompt, file)


@dataclass(frozen=True)
class PreparedTexts:
    """Texts as a model reads them, and the batches in which it makes their vectors."""

    model: Transformer
    head: Head
    dimensions: int | None
    prompt: str  # what was put before each text
    ids: Sequence[np.ndarray]  # of each text
    cut: int  # texts that were longer than the model was to read
    batches: Sequence[np.ndarray]  # numbers of texts

    def vectors(self, numbers: np.ndarray) -> Tensor:
        """Those of a batch, [text, width] float32 on the CPU."""
        device = next(self.model.parameters()).device
        ids, mask = (torch.from_numpy(each).to(device) for each in padded([self.ids[i] for i in numbers], 0))
        with torch.inference_mode():
            hidden = self.model(ids, mask.long(), output_logits=False).last_hidden_state
            found = self.head(hidden, make_tokens(ids, mask.long())).float().cpu()
        if self.dimensions is None:
            return found
        return F.normalize(found[:, : self.dimensions], dim=1, eps=1e-12)

    def in_order(self, parts: Sequence[Tensor]) -> Tensor:
        """The vectors of all batches [text, width] in the order of the texts."""
        made = torch.cat(list(parts))
        return torch.empty_like(made).index_copy_(0, torch.from_numpy(np.concatenate(self.batches)), made)


def prepared(
    found: Opened, texts: Sequence[str | Sequence[int]], way: Pooling, batch_tokens: int = BATCH_TOKENS
) -> PreparedTexts:
    """What `embed` reads of texts, and how; token ids are read as they are. Raises what it does."""
    trained, truncate = found.framing(Contrastive, way.truncate)
    head, prompt = _head(found.model, way), found.prompts.chosen(way.prompt, way.prompt_name)
    if not texts:
        raise InputError("there are no texts to embed; give one at least")
    longest = at_least_one("longest", way.longest) or trained or longest_of(found.model.spec)
    remedy = "split it, or have what is too long cut (--truncate)" if way.may_cut else "split it"
    ids, cut = _framed(found, prompt, texts, longest, None if truncate else remedy)
    lengths = np.array([len(one) for one in ids])
    batches = list(length_batches(lengths[:, None], max(batch_tokens, int(lengths.max()))))
    return PreparedTexts(found.model, head, way.dimensions, prompt, ids, cut, batches)


def _lines(file: Path) -> list[str]:
    lines = read_lines(file)
    blank = next((i for i, line in enumerate(lines, 1) if not line.strip()), None)
    if blank is not None:
        raise UsageError(f"{file}, line {blank}: there is no text; every line gets a vector, so leave it out")
    return lines


def _write(vectors: Tensor, file: Path) -> None:
    """Write the file whole or not at all."""
    if file.suffix == ".npy":
        held = io.BytesIO()
        np.save(held, vectors.numpy())
        content = held.getvalue()
    else:
        content = save({TENSOR: vectors.contiguous()}, {"format": "pt"})
    write_named(file, content)


def pool_of(spec: ModelSpec, pool: Pool | None = None) -> PoolSpec:
    """What makes one vector of the tokens: what is named, else what the model's head says, else what is usual."""
    if pool is not None and pool not in POOLS:
        raise InputError(f"there is no pool {pool!r}{among(pool, POOLS)}")
    own = next((head.pool for head in spec.heads if head.name == EMBEDDING), None)
    return POOLS[pool] if pool is not None else own or usual_pool(spec)


def _framed(
    found: Opened, prompt: str, texts: Sequence[str | Sequence[int]], longest: int | None, remedy: str | None
) -> tuple[list[np.ndarray], int]:
    """The ids of each text, and how many texts were cut; `remedy` is for those that are not to be, None: they are."""
    every, cut, n_ids = [], 0, found.model.spec.vocab_size
    for number, text in enumerate(texts, 1):
        if isinstance(text, str):
            if not text.strip():
                raise InputError(f"text {number} is blank, and no vector stands for nothing; leave it out")
            one = found.tokenizer.frame((prompt + text,), longest)
            ids, lost = one.ids, one.cut
        else:
            if wrong := [token for token in text if not 0 <= token < n_ids]:
                raise InputError(
                    f"text {number}: there is no token {wrong[0]}; this model has those from 0 to {n_ids - 1}"
                )
            ids, lost = np.array(text[:longest], dtype=np.int64), max(0, len(text) - (longest or len(text)))
        if lost and remedy is not None:
            raise InputError(
                f"text {number} is {len(ids) + lost} tokens long, beyond the {longest} that are read; {remedy}"
            )
        if not len(ids):
            raise InputError(f"text {number} has no token in this vocabulary; leave it out")
        every.append(ids)
        cut += lost > 0
    return every, cut


def _head(model: Transformer, way: Pooling) -> Head:
    """The head that makes the vectors: the model's own, or one of a pool alone."""
    spec = model.spec
    if spec.encoder is not None:
        raise InputError(
            "this model is an encoder and a decoder, and no head reads the encoder; use one or the other alone"
        )
    own = way.pool is None and any(head.name == EMBEDDING and head.pool is not None for head in spec.heads)
    place = Place(spec.stack.d_model, (spec.stack.width,))
    head = model.head(EMBEDDING) if own else Head(sentence_embedding(pool_of(spec, way.pool)), place)
    width = in_turn(head.spec.transform, place)[1].shape[-1]
    if way.dimensions is not None and not 0 < way.dimensions <= width:
        raise InputError(f"dimensions = {way.dimensions}: a vector of this model has {width}; give 1 to {width}")
    return head


class Retrieval(NamedTuple):
    """Of all sources, each looking for its target among all of them (Voorhees 1999, TREC-8)."""

    accuracy: float  # share whose target is the first
    mrr: float  # mean of 1 / the target's rank
    pairs: int
    cut: int  # texts that were cut


def retrieve(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    longest: int | None = None,
    truncate: bool = False,
) -> Retrieval:
    """How well the vectors of sources find those of their targets. Raises what `embed` does."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    numbers = {text: i for i, text in enumerate(texts)}
    found = embedded(model, tokenizer, texts, Pooling(longest=longest, truncate=truncate))
    source, target = (found.vectors[[numbers[pair[side]] for pair in pairs]] for side in (0, 1))
    place = ranks(source, target, torch.tensor([[numbers[text] for text in pair] for pair in pairs]))
    return Retrieval(float((place == 1).double().mean()), float((1 / place.double()).mean()), len(pairs), found.cut)


def ranks(source: Tensor, target: Tensor, group: Tensor) -> Tensor:
    """The rank [pair] of each target by its cosine with its source, from 1.

    `group` [pair, 2] are numbers of the texts: what is the same text as a right answer, or the answer to the same text, is
    right too, and counts for nothing. Among equal cosines the right one is the last. Raises InputError without pairs.
    """
    if not len(source):
        raise InputError("there are no pairs to rank; give one at least")
    source, target = F.normalize(source, dim=1), F.normalize(target, dim=1)
    found = []
    for start in range(0, len(source), ROWS_AT_ONCE):
        here = slice(start, start + ROWS_AT_ONCE)
        cosines = source[here] @ target.T
        own = (source[here] * target[here]).sum(1, keepdim=True)
        right = (group[here, None, :] == group[None]).any(-1)
        found.append(1 + ((cosines >= own - 1e-6) & ~right).sum(1))
    return torch.cat(found)
