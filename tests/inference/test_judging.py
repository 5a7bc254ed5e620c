"""What a model is judged by: as it was trained where the data are of that kind, or said why not, with what would do."""

from pathlib import Path

import pytest

import anyformer as af
from anyformer.errors import UsageError
from anyformer.inference.judging import goal_of
from anyformer.inference.opened import Opened
from anyformer.recipe import DPO, ORPO, CausalLM, Contrastive, ObjectiveSpec, Recipe, Seq2Seq, SpanCorruption
from anyformer.text import Tokenizer
from anyformer.training.objectives.objective import with_head_for
from anyformer.training.prepare import Sources

TEXT, PAIRS = Sources(Path("a.txt")), Sources(source=Path("a.txt"), target=Path("b.txt"))


def run(name: str, learnt: ObjectiveSpec, *specials: str) -> Opened:
    tokenizer = Tokenizer.train(["a text"], 257).with_specials(specials)
    spec = with_head_for(af.resize(af.shrink(af.preset(name)), vocab_size=tokenizer.vocab_size), learnt)
    return Opened(af.build(spec), tokenizer, Recipe(objective=learnt))


@pytest.mark.parametrize(
    ("name", "learnt", "given", "says"),
    [
        ("bert-base", Contrastive(), TEXT, "this run learnt by Contrastive, from pairs; give --source and --target"),
        ("t5-small", Seq2Seq(), TEXT, "this run learnt by Seq2Seq, from pairs; give --source and --target"),
        ("llama2", CausalLM(), PAIRS, "this run learnt by CausalLM, not from pairs; give --data"),
        ("llama2", DPO(), TEXT, r"learnt from preferences \(DPO\).*; say what to judge these data by: --objective sft"),
        ("llama2", ORPO(), TEXT, r"learnt from preferences \(ORPO\)"),
    ],
)
def test_a_run_says_what_it_learnt_from(name: str, learnt: ObjectiveSpec, given: Sources, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        goal_of(run(name, learnt), given)


def test_a_run_is_judged_otherwise_where_that_can_be() -> None:
    specials = tuple(f"<extra_id_{i}>" for i in range(100))
    assert goal_of(run("t5-small", Seq2Seq(), *specials), TEXT) == SpanCorruption()
    assert goal_of(run("t5-small", SpanCorruption(), *specials), PAIRS) == Seq2Seq()
    assert goal_of(run("llama2", DPO()), TEXT, "sft").kind == "SFT"
