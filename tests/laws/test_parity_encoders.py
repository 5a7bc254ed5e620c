"""Law 6 for encoders: every class of every family, token types, losses, and the fields that distinguish them."""

from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional as F

from anyformer.errors import CheckpointError, InputError, SpecError
from anyformer.families import FAMILIES, Family, preset
from anyformer.families.compose import changed
from anyformer.families.hf import (
    albert,
    bert,
    bigbird,
    deberta,
    esm,
    longformer,
    mobilebert,
    mpnet,
    nomic,
    nystromformer,
    prenorm_bert,
    xlm,
    xlnet,
)
from anyformer.families.hf.headings import HeadNames
from anyformer.families.hf.mapping import class_of, fitting, spec_of
from anyformer.families.longformer import first_marked
from anyformer.hub import load, save
from anyformer.layers import (
    GELU,
    AttentionSpec,
    Causal,
    ContentToPositionSpec,
    ConvolutionSpec,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    PositionToContentSpec,
    RelativeBucketsSpec,
    RelativeTableSpec,
    ReLU,
    RMSNormSpec,
    RotarySpec,
    SiLU,
    SymmetricWindow,
    Tanh,
    TokenDropoutSpec,
    TokensSpec,
)
from anyformer.model import build
from anyformer.resizing import shrink
from anyformer.spec import Count, EmbeddingSpec, Length, ModelSpec, ScaleSpec, Window
from tests.laws.inputs import inputs_for
from tests.laws.models import ids_for
from tests.laws.mutations import Mutation, check_mutation, each_mutation
from tests.laws.parity import InDouble, differences, pair, rounding
from tests.laws.tolerance import FLOAT32, close
from tests.laws.weights import filled, telling

ENCODERS: dict[str, HeadNames] = {
    "bert-base": bert.HEADS,
    "roberta-base": bert.roberta_heads("Roberta"),
    "rembert": bert.REMBERT_HEADS,
    "distilbert-base": bert.DISTILBERT_HEADS,
    "albert-base": albert.HEADS,
    "electra-small": bert.ELECTRA_HEADS,
    "electra-base-generator": bert.ELECTRA_HEADS,
    "deberta-base": deberta.heads("Deberta"),
    "deberta-v2-xlarge": deberta.heads("DebertaV2"),
    "deberta-v3-base": deberta.heads("DebertaV2"),
    "longformer-base-4096": longformer.HEADS,
    "bigbird-base": bigbird.HEADS,
    "xlnet-base": xlnet.HEADS,
    "roformer-base": bert.ROFORMER_HEADS,
    "nomic-embed-text-v1": nomic.NOMIC_HEADS,
    "gte-multilingual-base": nomic.GTE_HEADS,
    "jina-embeddings-v3": nomic.JINA_HEADS,
    "eurobert-210m": nomic.EUROBERT_HEADS,
    "mpnet-base": mpnet.HEADS,
    "nystromformer-512": nystromformer.HEADS,
    "mobilebert-uncased": mobilebert.HEADS,
    "esm2-650m": esm.HEADS,
    "esm1b-650m": esm.HEADS,
    "megatron-bert-345m": prenorm_bert.MEGATRON_HEADS,
    "xlm-roberta-xl": prenorm_bert.XL_HEADS,
    "efficient-mlm-m0.40": prenorm_bert.PRENORM_HEADS,
    "bert-generation-large-decoder": bert.GENERATION_HEADS,
    "xlm-mlm-xnli15-1024": xlm.heads("XLM"),
    "flaubert-large-cased": xlm.heads("Flaubert"),
}
# trained on other words, or the next one, or not on padded rows as theirs
OTHERWISE = (
    "bert-generation-large-decoder",
    "electra-small",
    "xlnet-base",
    "bigbird-base",
    "nystromformer-512",
    "mobilebert-uncased",
)
# Where attention is all but decided with the first seed, its small gradients are little more than their rounding, or nearly even.
SEEDS = {"nomic-embed-text-v1": 1, "gte-multilingual-base": 1}
SEGMENTED = ("bert-base", "albert-base", "electra-small", "roformer-base", "nomic-embed-text-v1")
CLASSES = [(name, kind) for name, heads in ENCODERS.items() for kind in heads.classes]
each_class = pytest.mark.parametrize(("name", "architecture"), CLASSES)


def smallest(name: str) -> ModelSpec:
    """Return a shrunk preset, but with MPNet's buckets, which its class takes from nowhere."""
    full = {"n_buckets": Count(32), "max_distance": Window(128)} if name == "mpnet-base" else {}
    return changed(shrink(preset(name).spec), RelativeBucketsSpec, **full)


def headed(name: str, architecture: str, n_labels: int = 3) -> ModelSpec:
    """Return a shrunk preset with the heads of a class."""
    spec, heads = smallest(name).but(heads=()), ENCODERS[name]
    spec = first_marked(spec) if architecture == longformer.OF_TEXTS else spec
    return spec.but(heads=tuple(heads.headings[head].make(spec, n_labels) for head in heads.classes[architecture]))


def family_of(name: str) -> Family:
    return fitting(FAMILIES.values(), preset(name).spec)[0]


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["plain", "right"])
@each_class
def test_every_class_computes_the_same(name: str, architecture: str, kind: str, monkeypatch: Any) -> None:
    """Of a class without a head, the last hidden state; of one with a pooler, its vector too."""
    spec = headed(name, architecture)
    family, settings = fitting(FAMILIES.values(), spec)
    assert family is family_of(name)
    assert class_of(family, settings) == architecture
    both = pair(spec, "eager", seed=SEEDS.get(name, 0))
    given = inputs_for(kind, spec).fit_for(both.theirs, spec)
    if given.comparable(spec):
        found = differences(both, given)
        assert max(found.logits, found.hidden, found.gradients) < FLOAT32
        return
    with torch.no_grad():
        ours = given.run(both.ours).last_hidden_state
        theirs = given.assembled(list(given.references(both.theirs.base_model)), lambda part: part.last_hidden_state)
    close(ours[given.real], theirs[given.real])


@pytest.mark.in_turn
@each_class
def test_every_class_goes_both_ways(name: str, architecture: str, tmp_path: Any) -> None:
    """Transformers loads what we save as the class that fits the heads, and we what it saves, with the same heads."""
    spec = headed(name, architecture, n_labels=4)
    model, ids = filled(spec, telling(spec)), ids_for(spec, 2, 9).clamp(min=3)
    assert save(model, tmp_path / "ours").form == "hf"
    theirs, report = getattr(transformers, architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    theirs.save_pretrained(tmp_path / "theirs")
    back, _ = load(tmp_path / "theirs")
    assert [head.name for head in back.spec.heads] == [head.name for head in spec.heads]
    with torch.no_grad():
        before, after = model(ids), back(ids)
        first = (torch.arange(ids.shape[1]) == 0).long().expand_as(ids)
        marked = {"global_attention_mask": first} if architecture == longformer.OF_TEXTS else {}
        close(before.last_hidden_state, theirs.base_model(ids, **marked).last_hidden_state)
    for head, answer in before.outputs.items():
        close(after.outputs[head], answer)  # a product with one row rounds by where it lies in memory


@pytest.mark.parametrize("name", SEGMENTED)
def test_token_types(name: str) -> None:
    spec = shrink(preset(name).spec)
    both, given = pair(spec), inputs_for("right", spec)
    types = torch.randint(0, 2, given.input_ids.shape, generator=torch.Generator().manual_seed(5))
    plain = given.run(both.ours).logits
    given.ours["token_type_ids"] = given.theirs["token_type_ids"] = types
    found = differences(both, given)
    assert max(found.logits, found.hidden, found.gradients) < FLOAT32
    assert (given.run(both.ours).logits - plain).abs().max() > 0.01, "the types should matter"


@pytest.mark.parametrize("name", ["xlm-mlm-xnli15-1024", "xlm-clm-enfr-1024"])
def test_languages(name: str) -> None:
    """Of tokens of several languages, of which a row has two."""
    spec = shrink(preset(name).spec)
    both, given = pair(spec), inputs_for("right", spec)
    given = given.fit_for(both.theirs, spec)
    plain = given.run(both.ours).logits
    languages = (torch.arange(given.input_ids.shape[1]) % 2).expand(given.input_ids.shape)
    given.ours["facts"], given.theirs["langs"] = {"language": languages}, languages
    found = differences(both, given)
    assert max(found.logits, found.hidden, found.gradients) < FLOAT32
    assert (given.run(both.ours).logits - plain).abs().max() > 0.01, "the languages should matter"


def test_a_language_without_a_vector_is_refused() -> None:
    model, ids = build(shrink(preset("xlm-clm-enfr-1024").spec)), torch.tensor([[3, 4]])
    with pytest.raises(InputError, match="there is no language 2; this model has those from 0 to 1"):
        model(ids, facts={"language": torch.tensor([[1, 2]])})
    with pytest.raises(InputError, match="there is no segment 2; this model has those from 0 to 1"):
        build(shrink(preset("bert-base").spec))(ids, token_type_ids=torch.tensor([[0, 2]]))


@pytest.mark.parametrize("name", [n for n in ENCODERS if n not in OTHERWISE])
def test_the_loss_of_masked_words_is_theirs(name: str) -> None:
    spec = smallest(name)
    both, given = pair(spec), inputs_for("right", spec)
    given = given.fit_for(both.theirs, spec)
    hidden = (torch.arange(given.input_ids.numel()).view_as(given.input_ids) % 5 == 0) & given.real
    labels = given.input_ids.masked_fill(~hidden, -100)
    with torch.no_grad():
        logits = given.run(both.ours).outputs[spec.heads[0].name]
        expected = both.theirs(given.input_ids, labels=labels, **given.theirs)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    if expected.loss is None:  # a class of two heads asks for both labels
        second = {"bert": "next_sentence_label", "albert": "sentence_order_label"}[both.family.hf_type]
        order = torch.tensor([1, 0])
        with torch.no_grad():
            expected = both.theirs(given.input_ids, labels=labels, **{second: order}, **given.theirs)
            loss = loss + F.cross_entropy(given.run(both.ours).outputs[spec.heads[1].name], order)
    close(loss, expected.loss)


def test_the_loss_of_replaced_words_is_theirs() -> None:
    spec = shrink(preset("electra-small").spec)
    both, given = pair(spec), inputs_for("right", spec)
    labels = (given.input_ids % 3 == 0).long()
    with torch.no_grad():
        expected = both.theirs(given.input_ids, labels=labels, **given.theirs).loss
        scores = given.run(both.ours).outputs["rtd"][..., 0]
    close(F.binary_cross_entropy_with_logits(scores[given.real], labels[given.real].float()), expected)


OF_CLASSES = [
    (name, kind) for name, kind in CLASSES if ENCODERS[name].classes[kind] in (("classes",), ("token_classes",))
]


@pytest.mark.parametrize(("name", "architecture"), OF_CLASSES)
def test_the_loss_of_classes_is_theirs(name: str, architecture: str) -> None:
    """Of a class a row, or a token; tokens labelled -100 and padding count for nothing."""
    spec = headed(name, architecture)
    both = pair(spec)
    given = inputs_for("plain", spec).fit_for(both.theirs, spec)
    head, shape = spec.heads[0], given.input_ids.shape
    labels = torch.arange(shape[0] if head.pool else shape.numel()) % 3
    if head.pool is None:
        labels = labels.view(shape).masked_fill(given.input_ids % 4 == 0, -100)
    with torch.no_grad():
        expected = both.theirs(given.input_ids, labels=labels, **given.theirs).loss
        answer = given.run(both.ours).outputs[head.name]
    close(F.cross_entropy(answer.flatten(0, -2), labels.flatten()), expected)


@pytest.mark.parametrize(("groups", "inner"), [(2, 1), (1, 2), (2, 2)])
def test_albert_repeats_groups_of_layers(groups: int, inner: int, tmp_path: Any) -> None:
    config = transformers.AlbertConfig(
        vocab_size=50, hidden_size=16, embedding_size=16, num_attention_heads=2, intermediate_size=24,
        num_hidden_layers=3, num_hidden_groups=groups, inner_group_num=inner, architectures=["AlbertForMaskedLM"],
    )  # fmt: skip
    theirs: Any = transformers.AlbertForMaskedLM(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    theirs.save_pretrained(tmp_path)
    model, _ = load(tmp_path)
    ids = torch.randint(0, 50, (2, 8))
    assert len({block.shared for block in model.spec.stack.blocks}) == groups * inner
    with torch.no_grad():
        close(model(ids).logits, theirs(ids).logits)


@pytest.mark.parametrize("change", [{"share_att_key": False}, {"norm_rel_ebd": "none"}, {"position_buckets": -1}])
def test_deberta_v2_with_other_settings(change: dict[str, Any]) -> None:
    spec = shrink(preset("deberta-v3-base").spec)
    family, settings = fitting(FAMILIES.values(), spec)
    _, other = spec_of(FAMILIES, {"model_type": family.hf_type, **settings, **change}, "config.json")
    assert other != spec
    found = differences(pair(other), inputs_for("right", other))
    assert max(found.logits, found.hidden, found.gradients) < FLOAT32


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "bert-base",
            {"architectures": ["BertForMultipleChoice"]},
            "architectures = .* has no class that is read here",
        ),
        ("bert-base", {"is_decoder": True}, "is_decoder = True is not computed here; only False is$"),
        ("bert-base", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ("bert-base", {"tie_word_embeddings": False}, "tie_word_embeddings = False"),
        ("bert-generation-large-decoder", {"add_cross_attention": True}, "add_cross_attention = True"),
        ("roberta-base", {"max_position_embeddings": 2}, "leaves no position after the first 2 rows"),
        ("albert-base", {"num_hidden_groups": 13}, "num_hidden_groups = 13"),
        ("mobilebert-uncased", {"normalization_type": "layer_norm"}, "normalization_type = 'layer_norm'"),
        ("mobilebert-uncased", {"key_query_shared_bottleneck": False}, "key_query_shared_bottleneck = False"),
        ("mobilebert-uncased", {"embedding_size": 512}, "embedding_size = 512 leaves the head no features"),
        ("mobilebert-uncased", {"num_attention_heads": 3}, "num_attention_heads = 3 does not divide intra_bottleneck"),
        ("mobilebert-uncased", {"true_hidden_size": 512}, "true_hidden_size = 512"),
        ("xlm-mlm-en-2048", {"asm": True}, "asm = True"),
        ("xlm-mlm-en-2048", {"is_encoder": False}, "is_encoder = False"),
        ("xlm-mlm-en-2048", {"n_heads": 3}, "n_heads = 3 does not divide emb_dim = 2048"),
        ("xlm-mlm-en-2048", {"summary_type": "last"}, "summary_type = 'last'"),
        ("flaubert-large-cased", {"summary_activation": "tanh"}, "summary_activation = 'tanh'"),
        ("deberta-base", {"pos_att_type": ["c2p"]}, r"pos_att_type = \['c2p'\]"),
        ("deberta-base", {"talking_head": True}, "talking_head = True"),
        ("deberta-v2-xlarge", {"conv_kernel_size": 4}, "conv_kernel_size = 4 must be odd"),
        ("deberta-v2-xlarge", {"relative_attention": False}, "relative_attention = False"),
    ],
)
def test_settings_that_are_not_computed_are_refused(name: str, change: dict[str, Any], said: str) -> None:
    family, settings = fitting(FAMILIES.values(), preset(name).spec)
    with pytest.raises(CheckpointError, match=said):
        spec_of(FAMILIES, {"model_type": family.hf_type, **settings, **change}, "config.json")


def test_a_configuration_as_released_is_its_preset() -> None:
    """With what the training was told, and the vocabulary by its old name."""
    sizes = {
        "n_words": 68_729,
        "emb_dim": 1024,
        "n_layers": 24,
        "n_heads": 16,
        "pre_norm": True,
        "layer_norm_eps": 1e-6,
    }
    of_training = {
        "amp": 1,
        "bptt": 512,
        "fp16": True,
        "lgs": "fr",
        "mlm_steps": [["fr", None]],
        "share_inout_emb": True,
    }
    of_texts = {"id2lang": {"0": "fr"}, "lang2id": {"fr": 0}, "n_langs": 1, "mask_index": 5, "layerdrop": 0.2}
    said = {"model_type": "flaubert", "use_lang_emb": True, **sizes, **of_training, **of_texts}
    _, spec = spec_of(FAMILIES, said, "config.json")
    assert spec == preset("flaubert-large-cased").spec


def test_heads_that_no_class_has_are_named() -> None:
    spec = shrink(preset("bert-base").spec)
    with pytest.raises(
        SpecError, match="no class of this family has the heads nsp and mlm; there are mlm and nsp; mlm"
    ):
        bert.HEADS.architecture(spec.but(heads=spec.heads[::-1]))


MUTATIONS: dict[str, list[Mutation]] = {
    "bert-base": [
        (LayerNormSpec, {"eps": 1e-5}),
        (GELU, {"form": "tanh"}),
        (AttentionSpec, {"mask": Causal()}),
        (AttentionSpec, {"mask": SymmetricWindow(radius=Window(38))}),
        (FeedForwardSpec, {"activation": ReLU()}),
    ],
    "mobilebert-uncased": [(FeedForwardSpec, {"activation": GELU()}), (AttentionSpec, {"mask": Causal()})],
    "albert-base": [(GELU, {"form": "erf"}), (FeedForwardSpec, {"activation": SiLU()})],
    "electra-small": [(LayerNormSpec, {"eps": 1e-5}), (GELU, {"form": "tanh"})],
    "roformer-base": [
        (RotarySpec, {"layout": "half"}),
        (RotarySpec, {"theta": 10_100.0}),
        (AttentionSpec, {"mask": Causal()}),
    ],
    "nomic-embed-text-v1": [(RotarySpec, {"theta": 1010.0}), (GatedFeedForwardSpec, {"activation": GELU()})],
    "gte-multilingual-base": [(RotarySpec, {"theta": 2e5}), (GELU, {"form": "tanh"}), (LayerNormSpec, {"eps": 1e-5})],
    "mpnet-base": [
        (RelativeBucketsSpec, {"bidirectional": False}),
        (RelativeBucketsSpec, {"max_distance": Window(12)}),
    ],
    "eurobert-210m": [(RMSNormSpec, {"eps": 1e-6}), (RotarySpec, {"theta": 2e5}), (AttentionSpec, {"mask": Causal()})],
    "esm2-650m": [
        (LayerNormSpec, {"eps": 1e-12}),
        (RotarySpec, {"theta": 10_100.0}),
    ],
    "esm1b-650m": [
        (TokensSpec, {"dropout": None}),
        (TokenDropoutSpec, {"share": 0.1}),
        (EmbeddingSpec, {"norm": None}),
    ],
    "deberta-base": [
        (AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
        (LayerNormSpec, {"eps": 1e-6}),
    ],
    "deberta-v2-xlarge": [(ConvolutionSpec, {"activation": Tanh()}), (ConvolutionSpec, {"reads": "self"})],
    "deberta-v3-base": [
        (RelativeTableSpec, {"farthest": Length(60)}),
        (RelativeTableSpec, {"norm": None}),
        (AttentionSpec, {"scale": ScaleSpec(factor=2**-0.5, power=-0.5)}),
    ],
}


@each_mutation(MUTATIONS)
def test_a_distinguishing_field_is_seen(name: str, part: Any, fields: dict[str, Any]) -> None:
    check_mutation(name, part, fields)


def test_distances_from_content_and_to_content_differ() -> None:
    """Neither summand is the other, and leaving one out is seen."""
    spec = shrink(preset("deberta-v3-base").spec)
    weights, ids = telling(spec), ids_for(spec, 1, 30)
    attention = next(v for v in spec.nested() if isinstance(v, AttentionSpec))
    first, second = attention.scores
    assert isinstance(first, ContentToPositionSpec)
    assert isinstance(second, PositionToContentSpec)

    with torch.no_grad():
        answers = [
            filled(changed(spec, AttentionSpec, scores=scores), weights)(ids).logits
            for scores in ((first, second), (first,), (second,), (first, first))
        ]
    for i, answer in enumerate(answers):
        assert all((answer - other).abs().max() > 0.05 for other in answers[:i])


@pytest.mark.parametrize("name", ["deberta-base", "deberta-v2-xlarge"])
def test_padding_enters_as_zero(name: str) -> None:
    spec = shrink(preset(name).spec)
    both, given = pair(spec), inputs_for("right", spec)
    with torch.no_grad():
        states = given.run(both.ours, output_hidden_states=True).hidden_states
        theirs = both.theirs(given.input_ids, output_hidden_states=True, **given.theirs).hidden_states
    assert states is not None
    close(states[0], theirs[0])
    assert states[0][~given.real].abs().max() == 0


@pytest.mark.parametrize("name", ["roberta-base", "longformer-base-4096", "mpnet-base", "esm1b-650m"])
def test_padding_that_is_seen_takes_no_position(name: str) -> None:
    """The classes count positions by the ids, so that padding without a mask has a row of its own and is counted for nothing."""
    both = pair(smallest(name), "eager")
    ids = ids_for(both.ours.spec, 2, 12).clamp(min=3)
    for places in ((0, slice(8, None)), (1, slice(0, 3)), (1, 6)):
        ids[places] = 1
    with torch.no_grad():
        close(both.ours(ids).last_hidden_state, both.theirs.base_model(ids).last_hidden_state)


@pytest.mark.parametrize("kind", ["plain", "right", "left", "packed"])
def test_mpnets_buckets_are_theirs_to_the_last(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a text beyond the last bucket's distance, and in float64."""
    monkeypatch.setattr("tests.laws.inputs.LENGTH", 150)
    spec = changed(smallest("mpnet-base"), LearnedPositionsSpec, n_positions=Length(200)).but(context=Length(200))
    with InDouble():
        both = pair(spec)
        both.ours.double()
        both.theirs.double()
        found = differences(both, inputs_for(kind, spec))
    assert max(found.logits, found.hidden, found.gradients) < rounding(spec)
