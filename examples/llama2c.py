"""A model of llama2.c (karpathy/llama2.c) as one of ours: its weights, its tokenizer, and the text it writes.

    python examples/llama2c.py stories260K.bin tok512.bin --out stories260K --max-new-tokens 200

Both files are little-endian. The model: seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, which
is negative where the head has a table of its own, seq_len), then float32 tensors in the order of `rows`. The tokenizer:
one int32 (longest token), then for each token float32 score, int32 length, and its bytes.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Pipeline

import anyformer as af
from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.generation import generate_text
from anyformer.layers import AttentionSpec, Causal, GatedFeedForwardSpec, GQASpec, RMSNormSpec, RotarySpec, SiLU
from anyformer.model import Transformer
from anyformer.spec import Count, ModelSpec, Width
from anyformer.text import Tokenizer

HEADER = struct.Struct("<7i")


def architecture(header: tuple[int, ...]) -> ModelSpec:
    """Return Llama at the header's sizes, with rotary pairs side by side as llama2.c has them."""
    d_model, d_ff, n_layers, n_heads, n_kv_heads, vocab_size, seq_len = header
    norm = RMSNormSpec(eps=1e-5)
    heads = GQASpec(n_heads=Count(n_heads), n_kv_heads=Count(n_kv_heads), rotary=RotarySpec(layout="interleaved"))
    layer = block(
        pre_norm(norm, AttentionSpec(projection=heads, mask=Causal())),
        pre_norm(norm, GatedFeedForwardSpec(d_ff=Width(d_ff), activation=SiLU())),
    )
    return language_model(
        vocab_size=abs(vocab_size),
        d_model=d_model,
        blocks=repeat(layer, n_layers),
        norm=norm,
        tied=vocab_size > 0,
        context=seq_len,
    )


def rows(spec: ModelSpec, head_dim: int) -> Iterator[list[str] | int]:
    """Yield, in the file's order, our names of the tensors that lie together, or how many float32 to skip."""

    def each_layer(name: str) -> list[str]:
        return [f"stack.blocks.{layer}.sublayers.{name}.weight" for layer in range(spec.n_layers)]

    tied = spec.heads[0].table.shared is not None
    yield ["shared.tokens.weight" if tied else "stack.embedding.terms.0.table.weight"]
    yield each_layer("0.norm_in")
    for projection in "qkvo":
        yield each_layer(f"0.branches.0.mixer.projection.{projection}")
    yield each_layer("1.norm_in")
    for matrix in ("gate", "down", "up"):
        yield each_layer(f"1.branches.0.mixer.{matrix}")
    yield ["stack.norm.weight"]
    assert spec.context is not None
    yield spec.context * head_dim  # tables of cos and sin, which we compute
    if not tied:
        yield ["heads.0.table.weight"]


def read_model(path: Path) -> Transformer:
    """Return the model in a llama2.c file."""
    data = path.read_bytes()
    header = HEADER.unpack_from(data)
    model = af.build(architecture(header), seed=None)
    numbers = torch.from_numpy(np.frombuffer(data, dtype="<f4", offset=HEADER.size).copy())
    weights, at = model.state_dict(), 0
    for row in rows(model.spec, head_dim=header[0] // header[3]):
        if isinstance(row, int):
            at += row
            continue
        for name in row:
            target = weights[name]
            target.copy_(numbers[at : at + target.numel()].view_as(target))
            at += target.numel()
    if at != len(numbers):
        raise SystemExit(f"error: {path} holds {len(numbers):,} numbers and its header asks for {at:,}")
    return model


def read_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """Return the SentencePiece BPE in a llama2.c file: unknown, begin and end are tokens 0 to 2, the bytes 3 to 258."""
    data, at, tokens, scores = path.read_bytes(), 4, [], []
    for _ in range(vocab_size):
        score, length = struct.unpack_from("<fi", data, at)
        tokens.append(data[at + 8 : at + 8 + length].decode().replace(" ", "▁"))
        scores.append(score)
        at += 8 + length
    tokens[:3] = ["<unk>", "<s>", "</s>"]
    ids = {token: i for i, token in enumerate(tokens)}
    # SentencePiece joins the neighbours that spell the token of the highest score; a BPE wants the pairs in that order, those of
    # one token by their first half, as in transformers' files and GGUF's.
    pairs = [(token[:cut], token[cut:]) for token in tokens[259:] for cut in range(1, len(token))]
    merges = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
    merges.sort(key=lambda pair: (-scores[ids["".join(pair)]], ids[pair[0]]))
    pipeline = Pipeline(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    pipeline.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pipeline.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pipeline.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[:3]])
    return Tokenizer(pipeline, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert a model of llama2.c and let it write.")
    parser.add_argument("model", type=Path, help="weights, such as stories260K.bin")
    parser.add_argument("tokenizer", type=Path, help="tokenizer, such as tok512.bin")
    parser.add_argument("--prompt", default="", help="what the text begins with")
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--out", type=Path, help="save model and tokenizer in this directory")
    parser.add_argument("--no-cache", action="store_true", help="compute every step anew")
    arguments = parser.parse_args()

    model = read_model(arguments.model)
    tokenizer = read_tokenizer(arguments.tokenizer, model.spec.vocab_size)
    (written,) = generate_text(
        model, tokenizer, [arguments.prompt], max_new_tokens=arguments.max_new_tokens, cache=not arguments.no_cache
    )
    print(arguments.prompt + written.text)
    if arguments.out is not None:
        af.save(model, arguments.out, tokenizer=tokenizer)


if __name__ == "__main__":
    main()
