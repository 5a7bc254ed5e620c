"""Training steps of a Llama of 16M parameters beside litgpt's and x-transformers': forward, backward, AdamW; float32, eager.

    pip install litgpt==0.5.13 x-transformers==2.31.10
    python -m benchmarks.peers --quick

One shape, random weights of each library's own; their numbers of parameters are compared first. A loss is the mean cross-entropy
over all tokens, of ours as `anyformer train` computes it, in chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import measure, pair
from benchmarks.training import read_and_predicted, step_of

SHAPE = pair.SMALL


def litgpt() -> nn.Module:
    from litgpt import GPT, Config

    return GPT(
        Config(
            block_size=SHAPE.n_positions,
            padded_vocab_size=SHAPE.vocab_size,
            n_layer=SHAPE.n_layers,
            n_head=SHAPE.n_heads,
            n_embd=SHAPE.d_model,
            intermediate_size=SHAPE.d_ff,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
        )
    )


def x_transformers() -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=SHAPE.d_model,
        depth=SHAPE.n_layers,
        heads=SHAPE.n_heads,
        attn_dim_head=SHAPE.d_model // SHAPE.n_heads,
        attn_flash=True,
        rotary_pos_emb=True,
        rotary_emb_dim=SHAPE.d_model // SHAPE.n_heads,
        use_rmsnorm=True,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
        ff_mult=SHAPE.d_ff / SHAPE.d_model,
    )
    return TransformerWrapper(
        num_tokens=SHAPE.vocab_size, max_seq_len=SHAPE.n_positions, use_abs_pos_emb=False, attn_layers=layers
    )


PEERS: dict[str, Callable[[], nn.Module]] = {"litgpt": litgpt, "x-transformers": x_transformers}


def step(model: nn.Module) -> Callable[[], float]:
    """A training step, which gives the loss."""
    ids, labels = read_and_predicted()
    return measure.training_step(model, lambda: F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()))


def main() -> None:
    given = measure.arguments("Training steps beside litgpt and x-transformers.")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = {name: make() for name, make in PEERS.items()}
    counts = {"ours": pair.ours(SHAPE), **models}
    n_params = {name: sum(weight.numel() for weight in model.parameters()) for name, model in counts.items()}
    if max(n_params.values()) > 1.01 * min(n_params.values()):
        raise SystemExit(f"error: models of unlike sizes, {n_params}, say nothing of each other")
    steps = {"ours": step_of("ours"), **{name: step(model) for name, model in models.items()}}
    work = {name: lambda name=name: measure.cpu_seconds(steps[name]) for name in steps}
    taken = measure.turns(work, 3 if given.quick else 9)
    rows = [
        measure.row(
            f"training speed, eager float32, x {name} {version(name)}",
            measure.speed_ratio(taken, theirs=name),
            least=1.0,
        )
        for name in PEERS
    ]
    notes = {"n_params": n_params, "cpu_seconds": measure.rounded(taken), "shape": pair.facts(SHAPE)}
    measure.record("peers", given.out, rows, notes)


if __name__ == "__main__":
    main()
