"""Feed-forwards and mixtures of experts in the words of papers: activations with their gates, how experts are chosen."""

from __future__ import annotations

from typing import Any

from anyformer.descriptions.facts import n_shared_experts
from anyformer.descriptions.words import each, norm, number, phrase, scale, shared_maps
from anyformer.layers import GELU, GatedFeedForwardSpec, MoESpec, RouterSpec
from anyformer.variants.parts import GATED

SCORES = {
    "softmax": "softmax over all experts",
    "softmax-of-chosen": "softmax over the chosen experts",
    "sigmoid": "sigmoid of each expert",
    "sqrt-softplus": "root of the softplus of each expert",
    "sparsemixer": "SparseMixer",
}


def activation(mixer: Any, *, exact: bool = True) -> str:
    """A feed-forward by its activation with its gate, "SwiGLU"; of a mixture, its experts'. `exact`: with form and limits."""
    if isinstance(mixer, MoESpec):
        return each(activation(part, exact=exact) for part in (mixer.expert, mixer.shared_expert) if part is not None)
    value = getattr(mixer, "activation", None)
    if value is None:
        return phrase(mixer)
    form = f" ({value.form})" if exact and isinstance(value, GELU) and value.form != "erf" else ""
    name = phrase(value, without=("form",))
    inner = [f"then {norm(mixer.norm, exact=True)}"] if exact and getattr(mixer, "norm", None) else []
    inner += [f"maps in {mixer.groups} groups"] if exact and getattr(mixer, "groups", 1) > 1 else []
    if not isinstance(mixer, GatedFeedForwardSpec):
        return ", ".join([name + form, *inner])
    said = [GATED.get(name, f"gated {name}") + form]
    place = "" if mixer.clamps == "gate" else " behind the activation"
    said += [f"clamped at {number(mixer.limit)}{place}"] if exact and mixer.limit is not None else []
    said += [f"up + {number(mixer.up_offset)}"] if exact and mixer.up_offset else []
    said += [f"{number(100 * mixer.sparsity)} % at 0"] if exact and mixer.sparsity is not None else []
    return ", ".join([*said, *inner, *(shared_maps(mixer) if exact else [])])


def experts(mixer: Any) -> str:
    """A mixture of experts: how many, how they are chosen; "none" for a dense layer."""
    if not isinstance(mixer, MoESpec):
        return "none"
    said = [f"{' and '.join(choices(mixer.router))}, {mixer.router.top_k} a token"]
    if n := n_shared_experts(mixer):
        weighed = " that the router weighs" if mixer.router.n_shared else ""
        said.append(f"{n} shared{' behind a gate' if mixer.shared_gate else weighed}")
    said.append(router(mixer.router))
    said += [f"experts read {norm(mixer.norm, exact=True)}"] if mixer.norm else []
    said += [f"in a latent of {mixer.latent:,}"] if mixer.latent else []
    said += ["weights multiply what experts read"] if mixer.weighs == "input" else []
    return "; ".join([*said, *([phrase(mixer.capacity)] if mixer.capacity is not None else [])])


def choices(value: RouterSpec) -> list[str]:
    """What a router chooses from."""
    others = [f"{value.n_identity:,} {'skips' if value.empty else 'identities'}"] if value.n_identity else []
    return [f"{value.n_experts:,} experts", *others]


def router(value: RouterSpec) -> str:
    """How experts are chosen and weighted."""
    said = [SCORES[value.score]]
    said += [f"of {phrase(value.stream)}"] if value.stream else []
    said += [f"after {phrase(value.inner)}"] if value.inner else []
    said += [f"of a stream after {norm(value.norm, exact=True)}"] if value.norm else []
    said += [f"logits × {scale(value.scale, 'd_model')}"] if value.scale else []
    said += [f"within the best {value.top_groups} of {value.n_groups} groups"] if value.n_groups > 1 else []
    said += ["groups by the sum of their two best"] if value.group_score == "top2-sum" else []
    said += [f"chosen by a table of {value.hashed:,} token ids"] if value.hashed else []
    said += ["a bias of the logits"] if value.bias else []
    said += [f"logits capped at {number(value.softcap)}"] if value.softcap is not None else []
    of_logits = " of the logits" if value.corrects == "logits" else ""
    said += [f"a correction bias{of_logits} moved by the load"] if value.correction else []
    usual = RouterSpec.__dataclass_fields__
    said += ["weights normalised"] if value.renormalise else []
    said += [f"their sum + {number(value.eps)}"] if value.eps != usual["eps"].default else []
    said += [f"weights × {number(value.factor)}"] if value.factor != 1 else []
    said += ["a learned factor of each"] if value.gains else []
    said += [f"tolerance {number(value.tolerance)}"] if value.tolerance != usual["tolerance"].default else []
    return ", ".join(said)
