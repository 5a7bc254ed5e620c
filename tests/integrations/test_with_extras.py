"""TRL, lm-eval and sentence-transformers over our models, as their users drive them; skipped where they are not installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import anyformer as af
from anyformer.errors import InputError, TextError
from anyformer.hub import load, save
from anyformer.integrations.transformers import AnyformerForCausalLM
from anyformer.resizing import resize
from anyformer.text import Tokenizer
from tests.cli.running import answer, refused, run
from tests.hub.edits import say
from tests.integrations.models import OWN, WINDOWS, spec_of
from tests.laws.tolerance import close

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what four large packages say of each other
TEXTS = [
    f"the {a} sat on the {b} and saw a {a}." for a in ("cat", "dog", "hen") for b in ("mat", "hill", "roof", "tree")
]


def needed(package: str) -> Any:
    return pytest.importorskip(package, reason=f"{package} is of the extra `ecosystem`", exc_type=ImportError)


@pytest.fixture(scope="module", params=[OWN, WINDOWS])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.train(TEXTS * 4, 280)
    model = af.build(resize(spec_of(request.param), vocab_size=tokenizer.vocab_size), seed=1)
    path = tmp_path_factory.mktemp("extras") / "model"
    save(model, path, tokenizer, form="transformers")
    return path


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_sft_of_trl(directory: Path, packing: bool, tmp_path: Path) -> None:
    """It computes the head by itself, by table, cap and scale: its first loss is ours."""
    needed("trl")
    datasets = needed("datasets")
    from trl import SFTConfig, SFTTrainer  # pyright: ignore[reportMissingImports]

    options = SFTConfig(
        output_dir=str(tmp_path),
        max_steps=12,
        per_device_train_batch_size=4,
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        packing=packing,
        max_length=48,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
    )
    model, words = AnyformerForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    data = datasets.Dataset.from_list([{"text": text} for text in TEXTS])
    trainer = SFTTrainer(model=model, args=options, train_dataset=data, processing_class=words)
    (first, *_) = trainer.get_train_dataloader()
    ours, _ = load(directory)
    mask, positions = first.get("attention_mask"), first.get("position_ids")
    with torch.no_grad():
        expected = ours(first["input_ids"], mask, None if mask is not None else positions, labels=first["labels"]).loss
        said = model.eval()(**first).loss
        close(said, expected)
    trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    assert losses[-1] < losses[0] - 0.5
    assert abs(losses[0] - float(expected)) < 0.2


@pytest.mark.parametrize("by_path", [False, True], ids=["model", "path"])
def test_grpo_of_trl(directory: Path, by_path: bool, tmp_path: Path) -> None:
    """Several samples a prompt, prompts padded on the left: its log-probabilities are ours, a letter that pays comes more often.

    By a path with the divergence from the model that it began as.
    """
    needed("trl")
    datasets = needed("datasets")
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    options = GRPOConfig(
        output_dir=str(tmp_path / "run"),
        max_steps=10,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=16,
        learning_rate=2e-2,
        lr_scheduler_type="constant",
        beta=0.01 if by_path else 0.0,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
    )

    def letters(completions: list[str], **_: Any) -> list[float]:
        return [float(each.count("a")) for each in completions]

    prompts = ["the cat", "the hen sat on the", "a dog", "the mat and"]
    words = AutoTokenizer.from_pretrained(directory)
    trainer = GRPOTrainer(
        model=str(directory) if by_path else AnyformerForCausalLM.from_pretrained(directory),
        reward_funcs=letters,
        args=options,
        train_dataset=datasets.Dataset.from_list([{"prompt": prompt} for prompt in prompts * 8]),
        processing_class=words,
    )
    ours, _ = load(directory)
    words.padding_side = "left"
    given = words(prompts, return_tensors="pt", padding=True)
    ids, mask, n = given["input_ids"], given["attention_mask"], 2
    with torch.no_grad():
        logs = trainer._get_per_token_logps_and_entropies(trainer.model.eval(), ids, mask, logits_to_keep=n)[0]
        expected = ours(ids, mask).logits.log_softmax(-1)[:, -n - 1 : -1].gather(-1, ids[:, -n:, None])[..., 0]
    close(logs, expected)
    trainer.train()
    rewards = [each["reward"] for each in trainer.state.log_history if "reward" in each]
    assert len(rewards) == 10
    assert sum(map(float, rewards[-3:])) > sum(map(float, rewards[:3])) + 1
    trainer.save_model(str(tmp_path / "end"))
    with torch.no_grad():
        close(load(tmp_path / "end")[0](ids, mask).logits, trainer.model.eval()(ids, mask).logits)


def test_hflm_of_lm_eval(directory: Path, tmp_path: Path) -> None:
    """Likelihoods of a local task are those that our own model gives."""
    lm_eval = needed("lm_eval")
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    rows = [
        {"question": "the cat sat on the", "choices": [" mat", " hill", " tree"], "answer": i % 3} for i in range(6)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "task.yaml").write_text(
        "task: sat\ndataset_path: json\n"
        f"dataset_kwargs:\n  data_files:\n    test: {tmp_path / 'rows.jsonl'}\n"
        "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{question}}'\ntarget_delimiter: ''\n"
        "doc_to_choice: choices\ndoc_to_target: answer\nmetric_list:\n  - metric: acc\n"
    )
    model, words = AnyformerForCausalLM.from_pretrained(directory).eval(), AutoTokenizer.from_pretrained(directory)
    result = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=words, device="cpu", batch_size=2),
        tasks=["sat"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    ours, tokenizer = load(directory)
    assert tokenizer is not None
    start = tokenizer.encode("the cat sat on the")
    with torch.no_grad():
        scores = []
        for choice in rows[0]["choices"]:
            end = tokenizer.encode(choice)
            logs = ours(torch.tensor([[*start, *end]])).logits.log_softmax(-1)[0]
            scores.append(sum(float(logs[len(start) + i - 1, token]) for i, token in enumerate(end)))
    told = [[float(each[0][0]) for each in sample["resps"]] for sample in result["samples"]["sat"]]
    assert told[0] == pytest.approx(scores, abs=1e-4)
    assert result["results"]["sat"]["acc,none"] == pytest.approx(
        sum(r["answer"] == scores.index(max(scores)) for r in rows) / 6
    )


def test_tasks_have_the_figures_of_lm_eval(directory: Path, tmp_path: Path) -> None:
    """Accuracies and their errors: ours of JSON Lines, ours through lm-eval, and lm-eval's own of its own class."""
    lm_eval = needed("lm_eval")
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    from anyformer.integrations.lm_evaluation import AnyformerLM

    choices = ["mat", "hill and saw a dog", "tree", "roof"]
    rows = [
        {"question": f"the {a} {b} on the", "choices": choices, "answer": (i + k) % 4}
        for i, a in enumerate(("cat", "dog", "hen", "mat"))
        for k, b in enumerate(("sat", "saw", "and the hen sat"))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # transformers has no rules of a tokenizer that is trained here, and puts nothing before a text: nor should ours.
    say(directory / "tokenizer_config.json", add_bos_token=False)
    head = (
        f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path / 'rows.jsonl'}\ntest_split: test\n"
    )
    (tmp_path / "task.yaml").write_text(
        f"task: sat\n{head}output_type: multiple_choice\ndoc_to_text: '{{{{question}}}}'\ndoc_to_choice: choices\n"
        "doc_to_target: answer\nmetric_list:\n  - metric: acc\n  - metric: acc_norm\n"
    )
    (tmp_path / "rolling.yaml").write_text(
        f"task: whole\n{head}output_type: loglikelihood_rolling\ndoc_to_text: ''\n"
        "doc_to_target: '{{question}} {{choices[1]}}'\nmetric_list:\n  - metric: byte_perplexity\n"
    )
    (tmp_path / "writes.yaml").write_text(
        f"task: writes\n{head}output_type: generate_until\ndoc_to_text: '{{{{question}}}}'\ndoc_to_target: '{{{{choices[0]}}}}'\n"
        "generation_kwargs:\n  until: ['.']\n  max_gen_toks: 6\nmetric_list:\n  - metric: exact_match\n"
    )
    model, words = AnyformerForCausalLM.from_pretrained(directory).eval(), AutoTokenizer.from_pretrained(directory)
    files = ("task.yaml", "rolling.yaml", "writes.yaml")
    manager = TaskManager(include_defaults=False)
    tasks = [task for file in files for task in manager.load([str(tmp_path / file)])["tasks"].values()]
    asked = {"tasks": tasks, "bootstrap_iters": 100}
    theirs = lm_eval.simple_evaluate(model=HFLM(pretrained=model, tokenizer=words, device="cpu", batch_size=2), **asked)
    named = lm_eval.simple_evaluate(model="anyformer", model_args={"pretrained": str(directory)}, device="cpu", **asked)
    for ours, other in zip(named["samples"].values(), theirs["samples"].values(), strict=True):
        for mine, its in zip(ours, other, strict=True):
            assert mine["doc_id"] == its["doc_id"]
            if isinstance(mine["resps"][0][0], str):
                assert mine["resps"] == its["resps"]
                continue
            values = [each[0][0] if isinstance(each[0], tuple | list) else each[0] for each in mine["resps"]]
            assert values == pytest.approx(
                [each[0][0] if isinstance(each[0], tuple | list) else each[0] for each in its["resps"]], abs=1e-3
            )
    of_theirs = theirs["results"]["sat"]
    (told,) = answer("evaluate", directory, "--tasks", tmp_path / "rows.jsonl", "--device", "cpu")["tasks"]
    (by_yaml,) = answer("evaluate", directory, "--tasks", tmp_path / "task.yaml", "--device", "cpu")["tasks"]
    for name, metric in (("accuracy", "acc"), ("normalised_accuracy", "acc_norm")):
        assert told["figures"][name] == pytest.approx(of_theirs[f"{metric},none"])
        assert told["standard_errors"][name] == pytest.approx(of_theirs[f"{metric}_stderr,none"])
        assert by_yaml["figures"][metric] == pytest.approx(of_theirs[f"{metric},none"])
        assert by_yaml["standard_errors"][metric] == pytest.approx(of_theirs[f"{metric}_stderr,none"])
    assert (by_yaml["task"], by_yaml["kind"], by_yaml["examples"]) == ("sat", "multiple choice", 12)
    assert AnyformerLM(str(directory), device="cpu").n_cut == 0


def test_what_follows_is_written_as_lm_eval_s_own_class_writes_it(directory: Path, tmp_path: Path) -> None:
    """Prompts that leave no room lose their beginning; what would change a text and is not done is refused by name."""
    needed("lm_eval")
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    from anyformer.integrations.lm_evaluation import AnyformerLM

    folder = Path(shutil.copytree(directory, tmp_path / "model"))
    say(folder / "tokenizer_config.json", add_bos_token=False)
    model, words = AnyformerForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    context = model.config.max_position_embeddings
    theirs = HFLM(pretrained=model, tokenizer=words, device="cpu", batch_size=1, max_length=context)
    ours = AnyformerLM(str(folder), seq_len=context, device="cpu")

    def asked(text: str, **options: object) -> list[Any]:
        arguments = (text, {"until": ["zzz"], "max_gen_toks": 9, **options})
        return [Instance(request_type="generate_until", doc={}, arguments=arguments, idx=0)]

    searched = {"num_beams": 3, "length_penalty": -1.0, "early_stopping": True, "no_repeat_ngram_size": 2}
    for options in (
        {},
        {"repetition_penalty": 1.7},
        {"num_beams": 3},
        searched,
        {"suppress_tokens": list(range(99, 140))},
    ):
        for text, n_cut in (("the cat sat", 0), ("the cat and the hen saw the dog on the hill " * context, 1)):
            ours.n_cut = 0
            expected = theirs.generate_until(asked(text, **options), disable_tqdm=True)
            assert ours.generate_until(asked(text, **options)) == expected, options
            assert ours.n_cut == n_cut
    with pytest.raises(InputError, match="generation_kwargs has banana = 5, which is not done here"):
        ours.generate_until(asked("a", banana=5))
    with pytest.raises(TextError, match=r"typical_p = 0\.5 is not done here"):
        ours.generate_until(asked("a", typical_p=0.5))


def test_what_lm_eval_cannot_read_is_one_line(directory: Path, tmp_path: Path) -> None:
    needed("lm_eval")
    (tmp_path / "task.yaml").write_text("task: [")
    refused(run("evaluate", directory, "--tasks", tmp_path / "task.yaml", "--device", "cpu"), "lm-eval cannot read")


def test_sentences_are_embedded_and_come_back(directory: Path, tmp_path: Path) -> None:
    needed("sentence_transformers")
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # pyright: ignore[reportMissingImports]

    reader = Transformer(str(directory))
    embedder = SentenceTransformer(modules=[reader, Pooling(reader.get_embedding_dimension())], device="cpu")
    vectors = torch.tensor(embedder.encode(TEXTS[:3]))
    ours, tokenizer = load(directory)
    assert tokenizer is not None
    with torch.no_grad():
        alone = [ours(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0].mean(0) for text in TEXTS[:3]]
    close(vectors, torch.stack(alone))
    embedder.save(str(tmp_path / "embedder"))
    again = SentenceTransformer(str(tmp_path / "embedder"), device="cpu")
    assert torch.equal(torch.tensor(again.encode(TEXTS[:3])), vectors)
