"""Names of variants: what each change makes, built here by hand, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

import anyformer as af
from anyformer.errors import AnyformerError, SpecError
from anyformer.families.compose import changed, elsewhere
from anyformer.layers import (
    GELU,
    ALiBiSpec,
    AttentionSpec,
    Causal,
    Everything,
    FeedForwardSpec,
    GatedDeltaNetSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    LightningAttentionSpec,
    RMSNormSpec,
    RotarySpec,
    SiLU,
    SlidingWindow,
    SSDSpec,
)
from anyformer.layers.feed_forward import GatedFeedForwardSpec
from anyformer.layers.norm import NormSpec
from anyformer.spec import Count, HeadSpec, ModelSpec, Spec, TableSpec, Width, Window, label, parameters, split_variant

LLAMA, GPT2, GEMMA2 = (af.preset(name).spec for name in ("llama2", "gpt2", "gemma2-2b"))
D, F, L = 4096, 11_008, 32  # LLaMA 2 7B's
DELTA = GatedDeltaNetSpec(n_key_heads=Count(32), n_heads=Count(32), key_dim=Width(128), value_dim=Width(128))


def with_norm(value: object, norm: NormSpec) -> object:
    """The value with this norm for every norm in it."""
    if isinstance(value, NormSpec):
        return norm
    if isinstance(value, Spec):
        return value.but(**{name: with_norm(inner, norm) for name, inner in value.values().items()})
    return tuple(with_norm(item, norm) for item in value) if isinstance(value, tuple) else value


def with_feed(model: ModelSpec, feed: FeedForwardSpec | GatedFeedForwardSpec) -> ModelSpec:
    """The model with this feed-forward in every layer, the second sublayer."""

    def layer(block: object) -> object:
        attend, second = block.sublayers  # type: ignore[attr-defined]
        return block.but(sublayers=(attend, second.but(branches=(second.branches[0].but(mixer=feed),))))  # type: ignore[attr-defined]

    return model.but(stack=model.stack.but(blocks=tuple(layer(block) for block in model.stack.blocks)))


UNCAPPED = changed(changed(GEMMA2, AttentionSpec, softcap=None), HeadSpec, softcap=None)
SAME = {
    "llama2": LLAMA,
    "llama2+norm=LayerNorm": with_norm(LLAMA, LayerNormSpec(eps=1e-5)),
    "llama2+norm=rmsnorm(eps=1e-6)": with_norm(LLAMA, RMSNormSpec(eps=1e-6)),
    "llama2+norm=gpt2": with_norm(LLAMA, LayerNormSpec(eps=1e-5)),
    "llama2+eps=1e-6": with_norm(LLAMA, RMSNormSpec(eps=1e-6)),
    "llama2+positions=alibi": changed(changed(LLAMA, GQASpec, rotary=None), AttentionSpec, scores=(ALiBiSpec(),)),
    "llama2+positions=bloom": changed(changed(LLAMA, GQASpec, rotary=None), AttentionSpec, scores=(ALiBiSpec(),)),
    "llama2+positions=none": changed(LLAMA, GQASpec, rotary=None),
    "llama2+positions=Rotary(theta=5e5)": changed(LLAMA, RotarySpec, theta=500_000.0),
    "llama2+theta=5e+5": changed(LLAMA, RotarySpec, theta=500_000.0),
    "llama2+activation=GELU": with_feed(
        LLAMA, FeedForwardSpec(d_ff=Width(F), activation=GELU(), bias_in=False, bias_out=False)
    ),
    "llama2+activation=GeGLU(form=tanh)": with_feed(
        LLAMA, GatedFeedForwardSpec(d_ff=Width(F), activation=GELU(form="tanh"))
    ),
    "gemma2-2b+attention=gpt2+softcap=none": changed(UNCAPPED, GQASpec, n_kv_heads=None),
    "gpt2+activation=SwiGLU+norm=RMSNorm+placement=pre": with_norm(
        with_feed(GPT2, GatedFeedForwardSpec(d_ff=Width(3072), activation=SiLU(), bias_in=True, bias_out=True)),
        RMSNormSpec(),
    ),
    "llama2+attention=GQA(n_kv_heads=8)": changed(LLAMA, GQASpec, n_kv_heads=8),
    "llama2+attention=MQA": changed(LLAMA, GQASpec, n_kv_heads=1),
    "llama2+n_kv_heads=8": changed(LLAMA, GQASpec, n_kv_heads=8),
    "llama2+mask=SlidingWindow(size=128)": changed(
        LLAMA, AttentionSpec, mask=Causal() & SlidingWindow(size=Window(128))
    ),
    "llama2+mask=Causal & SlidingWindow(size=128)": changed(
        LLAMA, AttentionSpec, mask=Causal() & SlidingWindow(size=Window(128))
    ),
    "llama2+mask=Everything": changed(LLAMA, AttentionSpec, mask=Everything()),
    "llama2+qk-norm=RMSNorm": changed(LLAMA, GQASpec, norm_query=RMSNormSpec(), norm_key=RMSNormSpec()),
    "llama2+d_ff=2048": changed(LLAMA, GatedFeedForwardSpec, d_ff=2048),
    "llama2+n_layers=12": LLAMA.but(stack=LLAMA.stack.but(blocks=LLAMA.stack.blocks[:12])),
    "llama2+layers=12": LLAMA.but(stack=LLAMA.stack.but(blocks=LLAMA.stack.blocks[:12])),
    "llama2+n_heads=64": changed(LLAMA, GQASpec, n_heads=64),
    "llama2+vocab_size=50000": changed(LLAMA, TableSpec, rows=50_000),
    "llama2+Attention.softcap=50": changed(LLAMA, AttentionSpec, softcap=50.0),
    "llama2+softcap=none": LLAMA,
    "gpt2+tied=true": GPT2,
    "gpt2+tied=false": changed(GPT2, TableSpec, shared=None),
    "gpt2+context=2048": changed(GPT2.but(context=2048), LearnedPositionsSpec, n_positions=2048),
    "llama2+mixer=attention": LLAMA,
    "llama2+mixer=gpt2": LLAMA,  # attention stays as it is
    "llama2+mixer=[GatedDeltaNet,GatedDeltaNet,attention]": elsewhere(LLAMA, range(2, L, 3), DELTA),
    "llama2+mixer=[gateddeltanet(n_heads=16,n_key_heads=8),attention]": elsewhere(
        LLAMA, range(1, L, 2), DELTA.but(n_heads=Count(16), n_key_heads=Count(8))
    ),
    "llama3-8b+mixer=SSD": elsewhere(
        af.load_spec("llama3-8b"),
        (),
        SSDSpec(n_heads=Count(32), head_dim=Width(128), state_dim=Width(128), n_groups=Count(8)),
    ),
    # Of a model the pattern, cut to the depth; the heads are that model's.
    "llama2+mixer=qwen3-next-80b-a3b": elsewhere(
        LLAMA, range(3, L, 4), next(af.load_spec("qwen3-next-80b-a3b").nested(GatedDeltaNetSpec))
    ),
    "llama2+mixer=[LightningAttention,attention]+mask=SlidingWindow(size=128)": changed(
        elsewhere(LLAMA, range(1, L, 2), LightningAttentionSpec(n_heads=Count(32), head_dim=Width(128))),
        AttentionSpec,
        mask=Causal() & SlidingWindow(size=Window(128)),
    ),
    "llama2+sharing=all": LLAMA.but(stack=LLAMA.stack.but(blocks=(LLAMA.stack.blocks[0].but(shared="layer"),) * L)),
}


@pytest.mark.parametrize(("name", "spec"), SAME.items(), ids=list(SAME))
def test_what_a_variant_is(name: str, spec: ModelSpec) -> None:
    assert af.load_spec(name) == spec


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("llama2+norm=LayerNorm", (2 * L + 1) * D),  # a bias beside each gain
        ("llama2+placement=post", -D),  # none at the end
        ("llama2+placement=sandwich", 2 * L * D),
        ("llama2+activation=GELU", -L * D * F),  # no gate
        ("llama2+attention=GQA(n_kv_heads=8)", -2 * L * D * (32 - 8) * 128),
        ("llama2+wiring=parallel", -L * D),  # one norm a layer
        ("llama2+biases=all", L * (5 * D + 2 * F)),  # of q, k, v, o and down; of gate and up
        ("llama2+tied=true", -32_000 * D),
        ("llama2+experts=MoE(router=Router(n_experts=8,top_k=2))", L * (7 * 3 * D * F + 8 * D)),
        ("llama2+positions=learned", 4096 * D),
    ],
)
def test_parameters_by_hand(name: str, more: int) -> None:
    assert parameters(af.load_spec(name)).total - parameters(LLAMA).total == more


class TestVary:
    def test_values_are_texts_numbers_parts_and_architectures(self) -> None:
        norm = LayerNormSpec(eps=1e-5)
        for value in ("LayerNorm", "gpt2", norm, af.preset("gpt2"), GPT2):
            assert af.vary("llama2", norm=value) == with_norm(LLAMA, norm)
        assert af.vary(LLAMA, d_ff=2048, qk_norm=RMSNormSpec()) == af.load_spec("llama2+d_ff=2048+qk-norm=RMSNorm")
        assert af.vary(UNCAPPED, softcap=None) == UNCAPPED
        assert af.vary("llama2+norm=LayerNorm", d_ff=2048) == af.load_spec("llama2+norm=LayerNorm+d_ff=2048")

    def test_a_value_of_another_type_is_refused(self) -> None:
        with pytest.raises(SpecError, match=r"^norm=GELU: .*'GELU' is no kind of Norm"):
            af.vary("llama2", norm=GELU())
        with pytest.raises(SpecError, match=r"^d_ff=true: GatedFeedForward.d_ff = True must be of type int"):
            af.vary("llama2", d_ff=True)


def test_a_file_can_be_a_base_and_a_value(tmp_path: Path) -> None:
    mine = tmp_path / "mine+norm=odd.yaml"  # which lies there by this name
    mine.write_text(af.dumps(GPT2), encoding="utf-8")
    assert af.load_spec(str(mine)) == GPT2
    assert af.load_spec(f"{mine}+norm=RMSNorm") == af.load_spec("gpt2+norm=RMSNorm")
    plain = tmp_path / "plain.yaml"
    plain.write_text(af.dumps(GPT2), encoding="utf-8")
    assert af.load_spec(f"llama2+norm={plain}") == af.load_spec("llama2+norm=gpt2")
    assert split_variant(f"{mine}+norm=RMSNorm") == (str(mine), ("norm=RMSNorm",))
    assert label(f"{mine}+norm={plain}+d_ff=8") == "mine+norm=odd+norm=plain+d_ff=8"


def test_labels_are_without_directories() -> None:
    assert label("llama2+positions=./a/bloom.yaml") == "llama2+positions=bloom"
    assert label("./a/mine.yaml+norm=LayerNorm(eps=1e-5)") == "mine+norm=LayerNorm(eps=1e-5)"
    assert label("llama2") == "llama2"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("llama2+nrom=LayerNorm", ("nrom=LayerNorm: it is no row of diff", "did you mean 'norm'?", "the rows are")),
        ("llama2+stacks=lama2", ("'lama2' is no model", "did you mean 'llama2'?")),
        ("llama2+n_layers=2.5", ("n_layers = 2.5 must be of type int",)),
        ("llama2+biases=some", ("'some' is none of all, none",)),
        ("llama2+experts=MoE", ("MoE needs router",)),
        ("llama2+d_fff=2", ("d_fff=2: ", "did you mean 'd_ff'?")),
        ("llama2+norm=LayerNrm", ("norm=LayerNrm: ", "'LayerNrm' is no kind of Norm (did you mean 'LayerNorm'?)")),
        ("llama2+positions=blom", ("positions=blom: 'blom' is no kind of positions", "did you mean 'bloom'?")),
        ("llama2+placement=before", ("'before' is none of pre, post, sandwich, after, none",)),
        ("llama2+norm=3", ("norm=3: ", "must be a Norm")),
        ("llama2+feed-forward=none", ("feed-forward=none: ", "None is no kind of Expert")),
        ("llama2+norm=LayerNorm(epsilon=1)", ("LayerNorm has no field 'epsilon' (did you mean 'eps'?)",)),
        ("llama2+norm=LayerNorm(eps=", ("norm=LayerNorm(eps=: 'LayerNorm(eps=' cannot be read",)),
        ("llama2+norm=", ("norm=: '' cannot be read",)),
        ("llama2+d_ff=wide", ("d_ff=wide: GatedFeedForward.d_ff = 'wide' must be of type int",)),
        ("llama2+d_ff=12.5", ("12.5 must be of type int",)),
        ("llama2+d_ff=0", ("GatedFeedForward.d_ff = 0 must be at least 1",)),
        ("llama2+theta=1e999", ("Rotary.theta = inf must be a finite number",)),
        ("llama2+n_layers=1000000000", ("n_layers = 1000000000 must be at most 10,000",)),
        ("gemma3-27b+n_layers=3", ("the pattern of 62 layers can be cut to 6, not to 3",)),
        ("llama2+mixer=[]", ("mixer=[]: the list is empty; name what mixes tokens",)),
        (
            "llama2+mixer=[GatedDeltaNet,Attention(projection=GQA(n_heads=2))]",
            ("attention stays as it is; say attention, and mask, positions and heads by their own keys",),
        ),
        ("llama2+mixer=[5]", ("mixer=[5]: ", "must be a Mixer")),
        ("llama2+mixer=Fuorier", ("'Fuorier' is no kind of Mixer (did you mean 'Fourier'?)",)),
        (
            "llama2+mixer=FeedForward(d_ff=8,activation=ReLU)",
            ("FeedForward, counted as feed-forward, mixes no tokens; say attention for that",),
        ),
        ("falcon-h1-0.5b+mixer=SSD", ("there is no place for it: that needs one mixer of tokens in a layer",)),
        ("mamba-130m+mixer=attention", ("there is no attention in any layer to stay; name a model",)),
        ("mamba-130m+mask=SlidingWindow(size=8)", ("there is no place for it: that needs attention in both",)),
        ("llama2+softcap=50", ("several kinds of parts have it; say which: Attention.softcap, Head.softcap",)),
        ("llama2+MLA.kv_rank=64", ("MLA.kv_rank=64: there is none in the model",)),
        ("llama2+stacks=t5", ("there is no place for it: that needs an encoder",)),
        ("deepseek-v3+positions=alibi", ("there is no place for it: that needs features that rotate",)),
        ("llama2+scores=5", ("scores=5: 5 is no model; it takes one",)),
        ("llama2+theta=gpt2", ("theta=gpt2: a model's theta is not taken by itself",)),
        ("llama2+d_model=100", ("d_model=100: GQA.n_heads = 32 does not divide d_model = 100",)),
        ("llama2+n_kv_heads=5", ("n_kv_heads=5: GQA.n_heads = 32 must be a multiple of n_kv_heads = 5",)),
        ("llama2+attention=GQA(head_dim=7)", ("GQA takes n_kv_heads here; say head_dim as a change of its own",)),
        ("llama2+norm=LayerNorm+norm=RMSNorm", ("norm=RMSNorm: norm=LayerNorm is said before it",)),
        ("llama2+norm", ("llama2+norm: a change is +ROW=VALUE, as in llama2+norm=…",)),
        ("llama2+", ("llama2+: a change is +ROW=VALUE, as in llama2+norm=…",)),
        ("llama9+norm=LayerNorm", ("there is no preset 'llama9' (did you mean 'llama'?)",)),
        ("llama2+norm=./nowhere.yaml", ("there is nothing at nowhere.yaml",)),
        ("llama2+norm=" + "(" * 5000, ("cannot be read",)),
        ("llama2+d_ff=" + "9" * 5000, ("cannot be read",)),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(name: str, says: tuple[str, ...]) -> None:
    with pytest.raises(AnyformerError) as refused:
        af.load_spec(name)
    assert refused.value.exit_status == 2
    assert "\n" not in str(refused.value)
    assert all(words in str(refused.value) for words in says), refused.value
    assert ("did you mean" in str(refused.value)) == ("did you mean" in " ".join(says)), "of an unknown name alone"


def test_latent_attention_turns_its_shared_features_as_the_heads_before_it_did() -> None:
    base = af.load_spec("gpt-neox-20b")
    turned = af.load_spec("gpt-neox-20b+attention=MLA(kv_rank=512,head_dim=96,rotary_dim=32)")
    (before,), (after,) = ({v for v in each.nested() if isinstance(v, RotarySpec)} for each in (base, turned))
    assert after == before.but(fraction=1.0)
    for options in ("rotary_dim=32,rotary=none", "query_rank=8"):
        still = af.load_spec(f"llama2+attention=MLA(kv_rank=512,head_dim=96,{options})")
        assert not any(isinstance(value, RotarySpec) for value in still.nested())


def test_a_model_without_the_part_has_no_place_for_it() -> None:
    block = GPT2.stack.blocks[0]
    feeds = GPT2.but(stack=GPT2.stack.but(blocks=(block.but(sublayers=block.sublayers[1:]),)))  # no attention
    with pytest.raises(SpecError, match=r"^Attention.softcap=50: there is none in the model; it has "):
        af.vary(feeds, **{"Attention.softcap": 50})
    with pytest.raises(SpecError, match=r"^positions=alibi: there is no place for it: that needs attention in both"):
        af.vary(feeds, positions="alibi")
    bare = af.vary(GPT2, placement="none")
    with pytest.raises(SpecError, match=r"^norm=RMSNorm: there is no place for it: that needs norms of the stream"):
        af.vary(bare, norm="RMSNorm")


def test_a_state_has_the_widths_of_attention() -> None:
    """Of MLA, whose queries are wider than its values; SSD's groups are its heads of keys."""
    latent = af.load_spec("deepseek-v3+mixer=[GatedDeltaNet,attention]")
    state = next(latent.nested(GatedDeltaNetSpec))
    assert (state.n_heads, state.n_key_heads, state.key_dim, state.value_dim) == (128, 128, 192, 128)
    mamba = next(af.load_spec("deepseek-v3+mixer=SSD").nested(SSDSpec))
    assert (mamba.n_heads, mamba.head_dim, mamba.state_dim) == (128, 128, 192)


def test_a_mixer_is_the_decoders_own() -> None:
    """What reads the encoder stays, and so does the encoder, whose tokens see what comes after them."""
    base, made = (af.load_spec(name) for name in ("t5-small", "t5-small+mixer=GatedDeltaNet"))
    assert made.encoder == base.encoder
    kinds = [[mixer.kind for mixer in block.mixers] for block in made.stack.blocks]
    assert kinds == [["GatedDeltaNet", "Attention", "FeedForward"]] * base.n_layers
    assert {
        mixer.reads for block in made.stack.blocks for mixer in block.mixers if isinstance(mixer, AttentionSpec)
    } == {"memory"}
