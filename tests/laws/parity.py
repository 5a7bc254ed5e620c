"""One model twice, ours and transformers', with the same weights, on the same tokens: how far apart they are."""

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from anyformer.families import FAMILIES, Family
from anyformer.families.mapping import fitting, ours_of, theirs_of
from anyformer.model import Transformer
from anyformer.spec import ModelSpec
from tests.laws.tolerance import distance, gradient_distance
from tests.laws.weights import filled, telling

LENGTH = 40  # beyond the context (32) from which a shrunk llama3 scaling was stretched


@dataclass
class Inputs:
    """Arguments of a forward pass, alike on both sides, and which tokens are real."""

    input_ids: Tensor
    real: Tensor  # [batch, token]
    ours: dict[str, Tensor]
    theirs: dict[str, Tensor]


def inputs(kind: str, vocab_size: int, seed: int = 0) -> Inputs:
    """Return two rows of tokens: plain, padded on the right or left, or packed documents."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab_size, (2, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    if kind == "plain":
        return Inputs(ids, mask.bool(), {}, {})
    if kind == "packed":
        positions = torch.cat((torch.arange(15), torch.arange(LENGTH - 15))).expand(2, -1)
        return Inputs(ids, mask.bool(), {"position_ids": positions}, {"position_ids": positions})
    padding = slice(LENGTH - 7, None) if kind == "right" else slice(0, 7)
    mask[1, padding] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    theirs = {"attention_mask": mask} | ({"position_ids": positions} if kind == "left" else {})
    return Inputs(ids, mask.bool(), {"attention_mask": mask}, theirs)


@dataclass
class Pair:
    """The same model on both sides."""

    ours: Transformer
    theirs: Any
    family: Family
    spec: ModelSpec

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of their parameters by the names of ours."""
        found = {name: parameter.grad for name, parameter in self.theirs.named_parameters()}
        return dict(ours_of(self.family.rows(self.spec), lambda name: found[name]))


def pair(spec: ModelSpec, attention: str = "eager", least_row: float = 0.003) -> Pair:
    """Return our model and transformers' with telling weights."""
    family, settings = fitting(FAMILIES.values(), spec)
    weights = telling(spec, least_row=least_row)
    config = transformers.AutoConfig.for_model(family.hf_type, **settings, bos_token_id=None, eos_token_id=None)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    named = dict(theirs_of(family.rows(spec), weights.__getitem__))
    missing, surplus = theirs.load_state_dict(named, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert set(missing) <= tied, missing
    assert not surplus, surplus
    return Pair(filled(spec, weights), theirs.eval(), family, spec)


@dataclass
class Differences:
    """Each the largest, relative to the largest number compared."""

    logits: float
    hidden: float
    gradients: float


def differences(both: Pair, given: Inputs) -> Differences:
    """Run both sides forward and backward."""
    out = both.ours(given.input_ids, output_hidden_states=True, **given.ours)
    reference = both.theirs(given.input_ids, output_hidden_states=True, use_cache=False, **given.theirs)
    real, generator = given.real, torch.Generator().manual_seed(1)
    weight = torch.randn(reference.logits[real].shape, generator=generator)
    for model, logits in ((both.ours, out.logits), (both.theirs, reference.logits)):
        model.zero_grad(set_to_none=True)
        (logits[real] * weight).sum().backward()
    assert len(out.hidden_states) == len(reference.hidden_states) == both.spec.n_layers + 1
    states = zip(out.hidden_states, reference.hidden_states, strict=True)
    return Differences(
        distance(out.logits[real], reference.logits[real]),
        max(distance(a[real], b[real]) for a, b in states),
        gradient_distance({name: p.grad for name, p in both.ours.named_parameters()}, both.gradients()),
    )


def greedy(model: Transformer, ids: Tensor, mask: Tensor, n: int) -> Tensor:
    """Return the n likeliest next tokens of each row, one by one, without a cache."""
    for _ in range(n):
        with torch.no_grad():
            logits = model(ids, mask, logits_to_keep=1).logits
        ids = torch.cat((ids, logits[:, -1].argmax(-1, keepdim=True)), -1)
        mask = torch.cat((mask, torch.ones_like(mask[:, :1])), -1)
    return ids
