"""A lineage of models and its checkpoints, registered from outside: known by name, built, saved as its files and read again.

python examples/own_family.py out
anyformer show sheep --import examples/own_family.py
anyformer diff llama2 sheep --import examples/own_family.py
anyformer check out --import examples/own_family.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import anyformer as af
from anyformer.families import register
from anyformer.families.compose import attend, block, changed, language_model, pre_norm, repeat
from anyformer.families.hf import table
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import FeedForwardSpec, GQASpec, ReLU2, RMSNormSpec, RotarySpec
from anyformer.spec import ModelSpec, Width


def sheep(n_layers: int, d_model: int, n_heads: int, d_ff: int) -> ModelSpec:
    """LLaMA 2 with norms of queries and keys, and a feed-forward of squared ReLU in place of the gated one."""
    norm = RMSNormSpec(eps=1e-5)
    feed = FeedForwardSpec(d_ff=Width(d_ff), activation=ReLU2(), bias_in=False, bias_out=False)
    attention = changed(attend(n_heads, rotary=RotarySpec()), GQASpec, norm_query=norm, norm_key=norm)
    layer = block(pre_norm(norm, attention), pre_norm(norm, feed))
    return language_model(8192, d_model, repeat(layer, n_layers), norm, tied=True, context=1024)


SHEEP = Origin("sheep", "llama2", 2026, "this file").lineage(
    "QK-norm, a feed-forward of squared ReLU without a gate",
    Preset("sheep-3m", sheep(4, 192, 4, 768)),
    Preset("sheep-12m", sheep(8, 320, 5, 1280), alias="sheep"),
    sizes="this file",
)

# The same as files: settings of config.json and what they are of our parts; modules of ours and theirs, in each layer.
SHEEP_FILES = table.family(
    "sheep",
    "SheepForCausalLM",
    sheep(1, 8, 1, 8),
    (
        table.VOCABULARY,
        table.D_MODEL,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff"),
        table.activation("hidden_act", "relu2", FeedForwardSpec),
        table.heads(),
        table.EVEN,
        table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5),
        table.positions(context=1024),
        table.tables(tied=True),
        table.layers(),
    ),
    {
        "0.norm_in": "before_grazing",
        **{f"{table.PROJECTION}.{ours}": f"grazing.{ours}" for ours in "qkvo"},
        f"{table.PROJECTION}.norm_query": "grazing.q_norm",
        f"{table.PROJECTION}.norm_key": "grazing.k_norm",
        "1.norm_in": "before_wool",
        f"{table.FEED}.up": "wool.up",
        f"{table.FEED}.down": "wool.down",
    },
    stack="flock",
    tokens="names",
    norm="fence",
)

register(SHEEP, SHEEP_FILES)


def main() -> None:
    """Save a model as this family's files, and show that what is read from them computes the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path, help="the directory to write")
    out: Path = parser.parse_args().directory

    model = af.build(af.preset("sheep-3m"), seed=0)
    af.save(model, out, form="hf")
    print(f"{out} holds a {json.loads((out / 'config.json').read_text(encoding='utf-8'))['architectures'][0]}")

    ids = torch.arange(24)[None] % 8192
    read, _ = af.load(out)
    with torch.no_grad():
        again = torch.equal(read(ids).logits, model(ids).logits)
    print(f"read again it computes the same: {again}")


if __name__ == "__main__":
    main()
