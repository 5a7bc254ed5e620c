"""The family tree: what each lineage descends from, and what it changed; one entry a lineage."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from anyformer.errors import SpecError


class Lineage(NamedTuple):
    """One generation of models that share an architecture but for their sizes."""

    name: str
    parent: str | None
    year: int
    known: str  # the preset that it is known by
    presets: tuple[str, ...]  # patterns of the names of its presets, such as llama2-*
    source: str
    changed: str  # from its parent, in a phrase


# fmt: off
_OLDEST = (
    Lineage("transformer", None, 2017, "transformer-base", ("transformer-base", "transformer-big"),
            "arXiv:1706.03762",
            "the first"),
    Lineage("marian", "transformer", 2018, "opus-mt-en-de", ("opus-mt-*",),
            "arXiv:1804.00344 and the released models",
            "sinusoids side by side, SiLU, a bias of the logits"),
    Lineage("bart", "transformer", 2019, "bart-large", ("bart-*",),
            "arXiv:1910.13461, section 2.1",
            "learned positions, GELU, a norm after the embedding; restores noised text"),
    Lineage("led", "bart", 2020, "led-large-16384", ("led-*",),
            "arXiv:2004.05150, section 7",
            "Longformer's encoder: windows, and marked tokens that see all; 16,384 tokens"),
    Lineage("transformer-lm", "transformer", 2018, "transformer-lm", ("transformer-lm",),
            "Liu et al. 2018, arXiv:1801.10198, section 4.2.3",
            "the decoder alone, as a language model"),
)
_GPT = (
    Lineage("gpt", "transformer-lm", 2018, "gpt", ("gpt",),
            "Radford et al. 2018, section 4.1",
            "learned positions, GELU, a larger stack"),
    Lineage("sparse-transformer", "transformer-lm", 2019, "sparse-transformer-enwik8", ("sparse-transformer-*",),
            "arXiv:1904.10509, section 5",
            "factorised attention and positions, norms before each branch"),
    Lineage("gpt2", "gpt", 2019, "gpt2-xl", ("gpt2", "gpt2-*"),
            "Radford et al. 2019, section 2.3",
            "norms before each branch and at the end, outputs start smaller with depth, 1,024 tokens"),
    Lineage("gpt3", "gpt2", 2020, "gpt3-175b", ("gpt3-*",),
            "arXiv:2005.14165, section 2.1",
            "banded attention in every other layer, 2,048 tokens"),
    Lineage("gpt-neo", "gpt3", 2021, "gpt-neo-2.7b", ("gpt-neo-*[0-9][bm]",),
            "the repository gpt-neo, from memory",
            "scores not scaled, no biases of queries, keys and values"),
    Lineage("gptj", "gpt3", 2021, "gptj-6b", ("gptj-*",),
            "the repository mesh-transformer-jax, from memory",
            "attention beside the feed-forward, rotary positions"),
    Lineage("gpt-neox", "gptj", 2022, "gpt-neox-20b", ("gpt-neox-*",),
            "arXiv:2204.06745, section 2.1",
            "a norm for each branch, a quarter of each head rotates"),
    Lineage("pythia", "gpt-neox", 2023, "pythia-12b", ("pythia-*",),
            "arXiv:2304.01373, section 2",
            "GELU not approximated; eight sizes on the same data"),
    Lineage("gopher", "gpt2", 2021, "gopher-280b", ("gopher-*",),
            "arXiv:2112.11446, section 3.1",
            "RMSNorm, Transformer-XL's relative positions, SentencePiece"),
    Lineage("chinchilla", "gopher", 2022, "chinchilla-70b", ("chinchilla-*",),
            "arXiv:2203.15556, section 4.1",
            "a quarter of the size on four times the tokens"),
    Lineage("opt", "gpt3", 2022, "opt-175b", ("opt-*",),
            "arXiv:2205.01068, section 2",
            "ReLU, every layer dense"),
    Lineage("bloom", "gpt3", 2022, "bloom-176b", ("bloom-*",),
            "arXiv:2211.05100, section 3.2",
            "ALiBi, a norm after the embedding, 250,680 tokens"),
    Lineage("nemotron4", "gpt3", 2024, "nemotron4-340b", ("nemotron4-*",),
            "arXiv:2402.16819, section 2",
            "rotary positions, squared ReLU, grouped queries, no biases, untied"),
    Lineage("gpt-oss", "gpt3", 2025, "gpt-oss-120b", ("gpt-oss-*",),
            "arXiv:2508.10925, section 2",
            "experts, RMSNorm, rotary positions, grouped queries, sinks, windows in every other layer"),
)
_GOOGLE = (
    Lineage("t5", "transformer", 2019, "t5-11b", ("t5-[0-9s-]*", "t5-base", "t5-large"),
            "arXiv:1910.10683, section 2.1",
            "norms before each branch, RMSNorm, learned distances, no biases"),
    Lineage("t5-v1.1", "t5", 2020, "t5-v1.1-xxl", ("t5-v1.1-*",),
            "arXiv:2002.05202 and the release of T5 1.1",
            "GeGLU, untied tables"),
    Lineage("mt5", "t5-v1.1", 2020, "mt5-xxl", ("mt5-*",),
            "arXiv:2010.11934, section 3.2",
            "250,112 tokens of 101 languages"),
    Lineage("switch", "t5", 2021, "switch-c-2048", ("switch-*",),
            "arXiv:2101.03961, section 2",
            "experts for feed-forwards, one for a token; in every other layer of the base and the large"),
    Lineage("lamda", "t5-v1.1", 2022, "lamda-137b", ("lamda-*",),
            "arXiv:2201.08239, section 3",
            "the decoder alone"),
    Lineage("palm", "gptj", 2022, "palm-540b", ("palm-*",),
            "arXiv:2204.02311, section 2",
            "SwiGLU, multi-query attention, no biases, tied tables and scaled logits"),
    Lineage("falcon-rw", "gpt3", 2023, "falcon-rw-7b", ("falcon-rw-*",),
            "arXiv:2306.01116, section 4.1",
            "ALiBi, every layer dense"),
    Lineage("falcon", "palm", 2023, "falcon-180b", ("falcon-[0-9]*",),
            "arXiv:2311.16867, section 4",
            "GELU without a gate, grouped queries above 7B"),
    Lineage("falcon2", "falcon", 2024, "falcon2-11b", ("falcon2-*",),
            "arXiv:2407.14885, section 2",
            "one norm for both branches, untied, 8,192 tokens"),
    Lineage("command-r", "palm", 2024, "command-r", ("command-r", "command-r-08-*"),
            "the release of Command R, from memory",
            "all heads have keys and values, 131,072 tokens"),
    Lineage("command-r-plus", "command-r", 2024, "command-r-plus", ("command-r-plus",),
            "the release of Command R+, from memory",
            "QK-norm, grouped queries"),
    Lineage("command-a", "command-r", 2025, "command-a", ("command-a", "command-r7b"),
            "arXiv:2504.00698, section 2",
            "three windows to a full layer without positions"),
)
_BERT = (
    Lineage("bert", "transformer", 2018, "bert-large", ("bert-*",),
            "arXiv:1810.04805, section 3",
            "the encoder alone, learned positions, segments, GELU, masked words"),
    Lineage("roberta", "bert", 2019, "roberta-large", ("roberta-*",),
            "arXiv:1907.11692, section 4",
            "bytes, one segment, no next sentence, trained longer"),
    Lineage("distilbert", "bert", 2019, "distilbert-base", ("distilbert-*",),
            "arXiv:1910.01108, section 2",
            "half of the layers, no segments"),
    Lineage("minilm", "bert", 2020, "minilm-l12-h384", ("minilm-*",),
            "arXiv:2002.10957, section 3",
            "half as wide, taught by a larger one's attention"),
    Lineage("albert", "bert", 2019, "albert-xxlarge", ("albert-*",),
            "arXiv:1909.11942, section 3.1",
            "one layer used for all, a narrow table projected, sentences in order or not"),
    Lineage("electra", "bert", 2020, "electra-large", ("electra-*",),
            "arXiv:2003.10555, section 3",
            "tells which tokens a small generator has replaced"),
    Lineage("xlnet", "bert", 2019, "xlnet-large", ("xlnet-*",),
            "arXiv:1906.08237, section 2",
            "words predicted in any order by a second stream, Transformer-XL's distances, segments in the scores"),
    Lineage("bigbird", "bert", 2020, "bigbird-base", ("bigbird-*",),
            "arXiv:2007.14062, section 2",
            "each token sees the first, the last and three near blocks; 4,096 tokens"),
    Lineage("longformer", "roberta", 2020, "longformer-large-4096", ("longformer-*",),
            "arXiv:2004.05150, section 3.1",
            "a window of 512, and marked tokens, with projections of their own, that see all; 4,096 tokens"),
    Lineage("deberta", "roberta", 2020, "deberta-large", ("deberta-base*", "deberta-large*", "deberta-xlarge"),
            "arXiv:2006.03654, section 3",
            "content and distance apart in the scores, no segments"),
    Lineage("deberta-v2", "deberta", 2021, "deberta-v2-xxlarge", ("deberta-v2-*",),
            "arXiv:2006.03654, section 5 and the release of v2",
            "logarithmic buckets, distances through the content's projections, a convolution, 128,000 tokens"),
    Lineage("deberta-v3", "deberta-v2", 2021, "deberta-v3-large", ("deberta-v3-*",),
            "arXiv:2111.09543, section 3",
            "trained as ELECTRA is, no convolution"),
)
_LLAMA = (
    Lineage("llama", "gpt3", 2023, "llama-65b", ("llama-*",),
            "arXiv:2302.13971, section 2.2",
            "RMSNorm, rotary positions, SwiGLU, no biases, every layer dense"),
    Lineage("llama2", "llama", 2023, "llama2-70b", ("llama2-*",),
            "arXiv:2307.09288, section 2.2",
            "4,096 tokens; grouped queries in the 70B"),
    Lineage("llama3", "llama2", 2024, "llama3-70b", ("llama3-*",),
            "arXiv:2407.21783, section 3.2",
            "128,256 tokens, theta 500,000, grouped queries at every size"),
    Lineage("llama3.1", "llama3", 2024, "llama3.1-405b", ("llama3.1-*",),
            "arXiv:2407.21783, section 3.4.2",
            "frequencies stretched to 131,072 tokens"),
    Lineage("llama3.2", "llama3.1", 2024, "llama3.2-3b", ("llama3.2-*",),
            "the model card of Llama 3.2",
            "tied tables, a larger stretch"),
    Lineage("mistral", "llama2", 2023, "mistral-7b-v0.1", ("mistral-*-v0.1",),
            "arXiv:2310.06825, section 2",
            "a window of 4,096 in every layer, grouped queries"),
    Lineage("mistral-v0.2", "mistral", 2024, "mistral-7b-v0.2", ("mistral-*-v0.[23]",),
            "the releases of 2024, from memory",
            "no window, theta 1,000,000, 32,768 tokens"),
    Lineage("mixtral", "mistral", 2024, "mixtral-8x7b", ("mixtral-*",),
            "arXiv:2401.04088, section 2",
            "eight experts for each feed-forward, two for a token, no window"),
    Lineage("qwen", "llama", 2023, "qwen-14b", ("qwen-*",),
            "arXiv:2309.16609, section 2.3",
            "biases of queries, keys and values, 151,936 tokens"),
    Lineage("qwen2", "qwen", 2024, "qwen2-72b", ("qwen2-?b", "qwen2-?.5b", "qwen2-72b", "qwen2.5-*"),
            "arXiv:2407.10671, section 2.2; arXiv:2412.15115",
            "grouped queries, theta 1,000,000"),
    Lineage("qwen-moe", "qwen2", 2024, "qwen2-57b-a14b", ("qwen1.5-moe-*", "qwen2-57b-*"),
            "arXiv:2407.10671, section 2.2.2",
            "experts, beside a shared one behind a gate"),
    Lineage("phi", "gptj", 2023, "phi-2", ("phi-*",),
            "the release of Phi-2, from memory",
            "a share of each head rotates, biases everywhere"),
    Lineage("phi3", "llama2", 2024, "phi3-medium-4k", ("phi3-m*",),
            "arXiv:2404.14219, section 2",
            "a window of 2,047"),
    Lineage("phi3-small", "phi3", 2024, "phi3-small-8k", ("phi3-small-*",),
            "arXiv:2404.14219, section 2",
            "blocks of keys that differ by head, GeGLU with bounds, muP's scales, LayerNorm"),
    Lineage("phi-moe", "phi3", 2024, "phi3.5-moe", ("phi3.5-moe",),
            "arXiv:2404.14219, section 2",
            "sixteen experts, two for a token, LayerNorm, biases of attention"),
    Lineage("phi4", "phi3", 2024, "phi4-14b", ("phi4-14b",),
            "arXiv:2412.08905, section 3",
            "no window, 100,352 tokens, theta 250,000"),
    Lineage("phi4-mini", "phi3", 2025, "phi4-mini", ("phi4-mini",),
            "arXiv:2503.01743, section 2",
            "three quarters of each head rotate, stretched to 131,072 tokens, tied tables"),
    Lineage("deepseek", "llama", 2024, "deepseek-67b", ("deepseek-[0-9]*",),
            "arXiv:2401.02954, section 2.2",
            "102,400 tokens, grouped queries in the 67B, a smaller start"),
    Lineage("deepseek-v2", "deepseek", 2024, "deepseek-v2", ("deepseek-v2*",),
            "arXiv:2405.04434, section 2",
            "latent attention, many small experts beside shared ones"),
    Lineage("deepseek-v3", "deepseek-v2", 2024, "deepseek-v3", ("deepseek-v3",),
            "arXiv:2412.19437, section 2.1",
            "sigmoid scores with corrections instead of balancing losses, 256 experts"),
    Lineage("deepseek-v3-mtp", "deepseek-v3", 2024, "deepseek-v3-mtp", ("deepseek-v3-mtp",),
            "arXiv:2412.19437, section 2.2",
            "a module that predicts one token further, in training"),
    Lineage("gemma", "llama", 2024, "gemma-7b", ("gemma-*",),
            "arXiv:2403.08295, section 2",
            "GeGLU, embeddings × √d_model, tied tables, heads of 256"),
    Lineage("gemma2", "gemma", 2024, "gemma2-27b", ("gemma2-*",),
            "arXiv:2408.00118, section 2",
            "norms after each branch too, capped scores and logits, windows in every other layer, grouped queries"),
    Lineage("gemma3", "gemma2", 2025, "gemma3-27b", ("gemma3-*",),
            "arXiv:2503.19786, section 2",
            "QK-norm for the caps, five windows to a full layer, two thetas"),
    Lineage("smollm2", "llama2", 2025, "smollm2-1.7b", ("smollm2-*",),
            "arXiv:2502.02737, section 4",
            "49,152 tokens, tied tables, theta 130,000"),
    Lineage("yi", "llama2", 2024, "yi-34b", ("yi-*",),
            "arXiv:2403.04652, section 2.3",
            "64,000 tokens, theta 5,000,000, grouped queries at every size"),
    Lineage("reka", "llama2", 2025, "reka-flash-3", ("reka-*",),
            "the release of Reka Flash 3, from memory",
            "100,352 tokens, heads of 96, theta 8,000,000"),
    Lineage("olmo", "llama", 2024, "olmo-7b", ("olmo-1b", "olmo-7b"),
            "arXiv:2402.00838, section 2.1",
            "LayerNorm without weights, 50,304 tokens"),
    Lineage("olmo-0424", "olmo", 2024, "olmo-7b-0424", ("olmo-*-0[47]24",),
            "the release of April 2024, from memory",
            "queries, keys and values clamped to ±8, 4,096 tokens"),
    Lineage("olmo2", "olmo-0424", 2024, "olmo2-13b", ("olmo2-*",),
            "arXiv:2501.00656, section 3",
            "RMSNorm after each branch instead of before, QK-norm, theta 500,000"),
)

# fmt: on

TREE: Mapping[str, Lineage] = {line.name: line for line in (*_OLDEST, *_BERT, *_GPT, *_GOOGLE, *_LLAMA)}


def lineage_of(preset: str) -> Lineage:
    """The lineage of a preset, by its name. Raises SpecError where the tree has none."""
    for line in TREE.values():
        if any(fnmatchcase(preset, pattern) for pattern in line.presets):
            return line
    raise SpecError(f"the family tree has no lineage for {preset!r}; families/tree.py takes a line for it")


def ancestors(line: Lineage) -> tuple[Lineage, ...]:
    """The lineage, what it descends from, and so on to the first."""
    found = [line]
    while found[-1].parent is not None:
        found.append(TREE[found[-1].parent])
    return tuple(found)


def path(a: Lineage, b: Lineage) -> tuple[Lineage, ...]:
    """The way from one lineage to another: up to their common ancestor, and down."""
    up, down = ancestors(a), ancestors(b)
    common = next(line for line in up if line in down)
    return (*up[: up.index(common) + 1], *reversed(down[: down.index(common)]))
