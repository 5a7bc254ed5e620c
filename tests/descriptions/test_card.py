"""The card: what it says against the papers' tables and against the specification; nothing twice, nothing empty."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anyformer.descriptions import Card, card
from anyformer.descriptions.grouping import in_words, pattern, places
from anyformer.families import PRESETS, preset
from anyformer.layers import MLASpec
from anyformer.recipe import OLMO_1B_0724, Adam
from anyformer.spec import BlockSpec, Count, ModelSpec, Width
from tests.layers.test_own_parts import model_of_own_parts
from tests.sample import sampled

ROOT = Path(__file__).resolve().parents[2]
EVERY: dict[str, ModelSpec] = {
    **{name: found.spec for name, found in PRESETS.items()},
    "own parts": model_of_own_parts(),
}
# As the papers print them: key → words.
PAPERS = {
    "gpt2": {  # Radford et al. 2019
        "n_layers": "12", "d_model": "768", "vocab_size": "50,257", "context": "1,024", "activation": "GELU (tanh)",
        "norm": "LayerNorm", "norm_placement": "pre-norm", "positions": "learned, 1,024", "tied": "yes",
    },
    "llama2-70b": {  # Touvron et al. 2023, tables 1 and 2
        "n_layers": "80", "d_model": "8,192", "n_heads": "64", "n_kv_heads": "8", "attention": "grouped-query",
        "d_ff": "28,672", "activation": "SwiGLU", "norm": "RMSNorm", "norm_eps": "1e-5", "positions": "RoPE",
        "biases": "none", "context": "4,096", "tied": "no", "final_norm": "RMSNorm",
    },
    "gptj-6b": {  # Wang & Komatsuzaki 2021
        "arrangement": "2 branches in parallel, one norm", "rotary_dim": "64", "rope_layout": "(2i, 2i + 1)",
        "n_heads": "16", "head_dim": "256", "d_ff": "16,384",
    },
    "gpt-neox-20b": {"arrangement": "2 branches in parallel, a norm each", "rotary_dim": "24", "n_layers": "44"},
    "palm-540b": {  # Chowdhery et al. 2022, table 1 and section 2
        "attention": "multi-query", "n_heads": "48", "head_dim": "256", "d_model": "18,432", "n_layers": "118",
        "biases": "none", "activation": "SwiGLU", "tied": "yes", "arrangement": "2 branches in parallel, one norm",
    },
    "gemma3-27b": {  # Gemma Team 2025, sections 2 and 2.1
        "keys_seen": "5 × window of 1,024 : 1 × full", "rope_theta": "5 × 10,000 : 1 × 1,000,000", "n_kv_heads": "16",
        "norm_placement": "sandwich norm (before and after each branch)", "attention_scale": "1/√168", "n_layers": "62",
        "rope_scaling": "5 × none : 1 × linear scaling × 8", "direction": "causal",
    },
    "gemma2-9b": {"attention_softcap": "50", "logit_softcap": "30", "keys_seen": "1 × window of 4,096 : 1 × full"},
    "olmo2-7b": {"norm_placement": "output norm (after each branch)", "qk_norm": "RMSNorm of all heads together"},
    "olmo-7b": {"norm": "LayerNorm (no weights)"},
    "deepseek-v3": {  # DeepSeek-AI 2024, section 4.2
        "n_layers": "61", "d_model": "7,168", "n_heads": "128", "head_dim": "128", "kv_rank": "512", "query_rank": "1,536",
        "rotary_dim": "64", "attention": "multi-head latent", "moe_layers": "layers 3–60", "n_experts": "256",
        "n_experts_active": "8", "n_shared_experts": "1", "expert_d_ff": "2,048", "init": "normal, std 0.006",
        "d_ff": "18,432 in layers 0–2", "rope_scaling": "YaRN × 40 from 4,096 tokens",
    },
    "deepseek-v2": {"n_shared_experts": "2", "n_experts": "160", "n_experts_active": "6", "moe_layers": "layers 1–59"},
    "mixtral-8x7b": {"moe_layers": "all 32", "n_experts": "8", "n_experts_active": "2", "expert_d_ff": "14,336"},
    "inkling": {
        "keys_seen": "5 × window of 512 : 1 × full", "n_shared_experts": "2", "n_experts_active": "6",
        "branch_maps": "convolution added after a branch, Gain (over one) after a branch, convolution added after a branch",
    },
    "command-a": {"positions": "3 × RoPE : 1 × none", "keys_seen": "3 × window of 4,096 : 1 × full", "logit_scale": "0.25"},
    "gpt-oss-20b": {
        "attention_sink": "one a head", "activation": "GeGLU (quick), clamped at 7, up + 1", "n_experts": "32",
        "keys_seen": "1 × window of 128 : 1 × full", "n_experts_active": "4",
    },
    "nemotron4-15b": {"activation": "squared ReLU", "norm": "LayerNorm (gain stored minus 1)", "d_ff": "24,576"},
    "bloom-7b1": {"positions": "ALiBi", "embedding_norm": "LayerNorm"},
    "qwen2-7b": {"biases": "query, key, value"},
    "xlstm-7b": {"biases": "gates"},
    "opt-350m": {"embedding_width": "512, projected", "norm_placement": "post-norm"},
}  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_it_says_what_the_papers_say(name: str) -> None:
    rows = card(preset(name))
    assert {key: rows[key].words for key in PAPERS[name]} == PAPERS[name]


def test_both_stacks_of_an_encoder_decoder() -> None:
    rows = card(preset("transformer-base"))
    assert rows.sections == ("encoder", "decoder", "model", "training", "source")
    said = {name: {row.key: row.words for row in rows.section(name)} for name in ("encoder", "decoder")}
    assert said["encoder"]["direction"] == "bidirectional"
    assert said["decoder"]["direction"] == "causal"
    assert said["decoder"]["cross_attention"] == "multi-head, over the encoder's output"
    assert "cross_attention" not in said["encoder"]
    assert {said[name]["norm_placement"] for name in said} == {"post-norm"}


@pytest.mark.parametrize("name", sampled([*EVERY]))
def test_every_model_has_a_card(name: str) -> None:
    spec = EVERY[name]
    rows = card(spec)
    keys = [(row.section, row.key) for row in rows.rows if row.key not in ("head", "tied")]
    assert len(set(keys)) == len(keys), "a row twice"
    for row in rows.rows:
        assert row.words.strip(), row
        assert row.name.strip(), row
        assert not re.search(r"Spec\b|Spec\(|<|None|0x", row.words), row
    stacks = {"encoder": spec.encoder, "decoder": spec.stack} if spec.encoder else {"architecture": spec.stack}
    for section, stack in stacks.items():
        assert stack is not None
        found = {row.key: row for row in rows.section(section)}
        assert found["n_layers"].value == len(stack.blocks)
        assert found["d_model"].value == stack.d_model
        assert {"attention", "keys_seen", "n_heads"} <= set(found) or "other_mixers" in found
        for row in found.values():
            if isinstance(row.value, list) and row.key != "moe_layers":
                experts = found["moe_layers"].value if "moe_layers" in found else []
                assert len(row.value) in (len(stack.blocks), len(experts)), row
    assert rows["n_params"].value == int(rows["n_params"].words.replace(",", ""))


def test_a_users_own_part_is_shown_by_its_words() -> None:
    said = {row.key: row.words for row in card(model_of_own_parts()).rows}
    assert "ManhattanNorm" in said["norm"]
    assert "LookBack" in said["other_mixers"]
    assert "Dilated" in said["keys_seen"]


def test_a_recipe_is_told_in_words_and_numbers() -> None:
    """AI2 2024, OLMo-1B-0724: 4e-4 after 2,000 steps, to 5e-5 over 2,000B tokens, then linearly to 0 over 50B."""
    rows = card(preset("olmo-1b"), OLMO_1B_0724)
    wanted = {
        "tokens": 2e12, "batch_tokens": 512 * 4096, "training_seq_len": 4096, "warmup_steps": 2000, "peak_lr": 4e-4,
        "min_lr": 5e-5, "beta1": 0.9, "beta2": 0.95, "optimizer_eps": 1e-5, "weight_decay": 0.1, "clip": 1.0,
        "annealing_tokens": 50e9, "annealing_min_lr": 0.0,
    }  # fmt: skip
    training = {row.key: row for row in rows.section("training")}
    for key, value in wanted.items():
        assert training[key].value == pytest.approx(value, rel=1e-9, abs=1e-15), key
    assert training["optimizer"].words == "AdamW"
    assert training["schedule"].words == "cosine to 0.125 of the peak"
    assert training["annealing_schedule"].words == "linear to 0 of the peak"
    assert training["gradient_dtype"].words == training["state_dtype"].words == "float32, as always here"


def test_what_adam_adds_to_gradients_is_told_where_it_is_any() -> None:
    plain, l2 = (card(preset("gpt2"), OLMO_1B_0724.but(optimizer=Adam(l2=each))) for each in (0.0, 0.25))
    assert "l2" not in {row.key for row in plain.section("training")}
    assert {row.key: row.value for row in l2.section("training")}["l2"] == 0.25


def test_what_a_source_says_beside_the_recipe() -> None:
    """OPT's optimiser state is told by the paper, so that the row of what a recipe does here gives way."""
    said = {row.name: row.words for row in card(preset("opt-175b")).section("training")}
    assert said["optimiser state, as published"].startswith("float32")
    assert "optimiser state" not in said
    assert "gradient reduction" in said
    assert "2205.01068" in said["source of training"]


def test_numbers_by_layer() -> None:
    """Gemma 3: every sixth layer sees all and rotates more slowly."""
    thetas = card(preset("gemma3-27b"))["rope_theta"].value
    assert thetas == [1e6 if i % 6 == 5 else 1e4 for i in range(62)]
    assert card(preset("deepseek-v3"))["moe_layers"].value == list(range(3, 61))


def test_patterns_in_words() -> None:
    assert in_words(["a"] * 7) == "a"
    assert in_words(["a", "a", "b"] * 3 + ["a"]) == "2 × a : 1 × b"
    assert in_words(["a", "a", "b"]) == "a in layers 0–1; b in layer 2"
    assert in_words(["a", None, "a", None]) == "1 × a : 1 × none"
    assert in_words([None, "a", "a"]) == "a in layers 1–2"
    assert pattern("abcabca").period == 3
    assert pattern("abcab").whole, "a pattern must be seen twice"
    assert places([5, 3, 4, 0]) == "layers 0, 3–5"
    assert places(range(0, 20, 2)) == "10 layers (0, 2, 4, 6 …)"


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8").split("\n## rows of a card\n")[1].split("\n## ")[0]
    told = set(re.findall(r"[a-z]\w+", " ".join(re.findall(r"^\| [\w-]+ \| (.*) \|$", text, flags=re.MULTILINE))))
    cards = [*map(card, EVERY.values()), *(card(found) for found in PRESETS.values() if found.recipe)]
    keys = {row.key for found in cards for row in found.rows}
    assert {
        key for key in keys if not key.startswith(("cross_", "loss_", "dropout_", "optimizer_", "published_"))
    } - told == set()


def test_a_row_is_found_by_its_key() -> None:
    rows = card(preset("gpt2"))
    assert isinstance(rows, Card)
    assert rows["d_model"].value == 768
    assert set(rows.as_json()[0]) == {"section", "key", "name", "words", "value"}


def test_cross_attention_of_other_heads_has_rows_of_its_own() -> None:
    from anyformer.descriptions.facts import every_attention

    model = preset("transformer-base").spec
    assert "cross_head_dim" not in {row.key for row in card(model).rows}
    latent = MLASpec(n_heads=Count(4), kv_rank=Width(32), head_dim=Width(24))

    def turned(block: BlockSpec) -> BlockSpec:
        own, cross, feed = block.sublayers
        mixer = cross.branches[0].mixer.but(projection=latent)
        return block.but(sublayers=(cross.but(branches=(cross.branches[0].but(mixer=mixer),)), own, feed))

    model = model.but(stack=model.stack.but(blocks=tuple(map(turned, model.stack.blocks))))
    found = {row.key: row.value for row in card(model).rows if row.section == "decoder"}
    assert [found[key] for key in ("n_heads", "n_kv_heads", "head_dim")] == [8, 8, 64]
    assert [found[f"cross_{key}"] for key in ("n_heads", "head_dim", "kv_rank")] == [4, 24, 32]
    assert "kv_rank" not in found
    assert [a.spec.reads for a in every_attention(model) if a.stack == "decoder"] == ["self", "memory"]
