"""What is published about how models were trained beside what their recipes hold, and what their sources leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anyformer.families.preset import Preset
from anyformer.families.training_encoders import FACTS as OF_ENCODERS
from anyformer.families.training_encoders import Facts
from anyformer.recipe import RECIPES

_GPT3 = {
    "source": "Brown et al. 2020, arXiv:2005.14165, table 2.1 and appendix B",
    "batch": "grows from 32k tokens to its full size over the first 4–12B tokens; the recipe has the full size throughout",
    "precision": "half precision (appendix B names no dtype); the recipe has bf16",
}
_OPT = {
    "source": "Zhang et al. 2022, arXiv:2205.01068, section 2.2 and table 1",
    "precision": "float16 weights with a dynamic loss scale; the recipe has bf16",
    "optimiser state": "float32, sharded",
    "eps": "not said; 1e-8 in the recipe",
    "changes on the way": "the 175B's learning rate and clipping (1.0, later 0.3) were changed by hand where it diverged",
}
_NEOX = {
    "source": "Black et al. 2022, arXiv:2204.06745, appendix B; Biderman et al. 2023, arXiv:2304.01373 (from memory)",
    "precision": "float16 with a dynamic loss scale; the recipe has bf16",
    "optimiser state": "ZeRO stage 1",
}
_BLOOM = {
    "source": "Le Scao et al. 2022, arXiv:2211.05100, table 3 and section 3.3 (from memory)",
    "precision": "bfloat16 mixed",
    "gradient reduction": "float32",
    "optimiser state": "float32, ZeRO stage 1",
}
_GOPHER = {
    "source": "Rae et al. 2021, arXiv:2112.11446, section 3.2 and table 1",
    "precision": "bfloat16 parameters and activations",
    "betas, eps": "not said; Adam's own in the recipe",
}
_CHINCHILLA = {
    "source": "Hoffmann et al. 2022, arXiv:2203.15556, table 4 and section 4.1",
    "batch": "1.5M tokens, doubled to 3M midway; the recipe has 3M throughout",
    "optimiser state": "a float32 copy of the weights beside bfloat16 ones",
    "betas, eps, decay, warm-up, clipping": "not said; AdamW's own, Gopher's warm-up and 1.0 in the recipe",
}
_LLAMA = {
    "source": "Touvron et al. 2023, arXiv:2302.13971, section 2.3 and table 2",
    "batch": "printed as 4M tokens; 4 · 2^20 in the recipe",
    "eps": "not said; 1e-8 in the recipe",
}
_LLAMA_2 = {
    "source": "Touvron et al. 2023, arXiv:2307.09288, section 2.2 and table 1",
    "batch": "printed as 4M tokens; 4 · 2^20 in the recipe",
}
_OLMO = {
    "source": "Groeneveld et al. 2024, arXiv:2402.00838, section 3.2 and table 5 (from memory)",
    "gradient reduction": "float32",
    "optimiser state": "float32",
}
_DEEPSEEK = {
    "source": "DeepSeek-AI 2024, arXiv:2401.02954, section 2.3 and table 2",
    "precision": "bfloat16",
    "gradient reduction": "float32",
    "eps": "not said; 1e-8 in the recipe",
}
_DEEPSEEK_V2 = {
    "source": "DeepSeek-AI 2024, arXiv:2405.04434, sections 2.2.3 and 3.1.2; the Lite: appendix B",
    "eps": "not said; 1e-8 in the recipe",
}
_BERT = {
    "source": "Devlin et al. 2018, arXiv:1810.04805, appendix A.2",
    "objective": "15 % of the tokens, of which 80 % masked, 10 % random, 10 % kept; and the next sentence",
    "batch": "256 sequences of 512 tokens, 1,000,000 steps; 90 % of the steps at 128 tokens",
    "optimiser": "Adam, betas 0.9 and 0.999, decay 0.01, dropout 0.1",
    "schedule": "linear over 10,000 steps to 1e-4, then linear to 0",
}
_T5 = {
    "source": "Raffel et al. 2019, arXiv:1910.10683, sections 3.1.2 and 3.7",
    "objective": "spans of 3 tokens on average, 15 % of the tokens, put out in order",
    "optimiser": "Adafactor",
    "schedule": "1/√max(step, 10,000)",
    "batch": "2,048 sequences of 512 tokens, 1,000,000 steps: about 1T tokens",
}
_PALM = {
    "source": "Chowdhery et al. 2022, arXiv:2204.02311, section 5",
    "optimiser": "Adafactor without factorisation: beta1 0.9, beta2 1 - step^-0.8, decay lr², clipping 1.0; no dropout",
    "schedule": "1e-2 for 10,000 steps, then 1/√step",
    "batch": "512 sequences of 2,048 tokens, 1,024 from step 50,000, 2,048 from step 115,000 (the 540B), 255,000 steps",
    "z-loss": "1e-4",
    "pretraining tokens": "780B",
}
_FALCON = {
    "source": "Almazrouei et al. 2023, arXiv:2311.16867, and the model cards (from memory)",
    "optimiser": "AdamW, decay 0.1",
    "z-loss": "1e-4",
}


def _more(facts: Facts, **rows: str) -> Facts:
    return {**facts, **{name.replace("_", " "): text for name, text in rows.items()}}


_RAMP = "grows from {} to {} sequences over the first {} tokens; the recipe has the full size throughout"
_MANY: tuple[tuple[Facts, tuple[str, ...]], ...] = (
    (_GPT3, ("gpt3-125m", "gpt3-350m", "gpt3-760m", "gpt3-1.3b", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b")),
    (_OPT, ("opt-125m", "opt-350m", "opt-1.3b", "opt-2.7b", "opt-6.7b", "opt-13b", "opt-30b", "opt-66b", "opt-175b")),
    (_NEOX, ("gpt-neox-20b", "pythia-70m", "pythia-160m", "pythia-410m", "pythia-1b", "pythia-1.4b")),
    (_NEOX, ("pythia-2.8b", "pythia-6.9b", "pythia-12b")),
    (_BLOOM, ("bloom-7b1", "bloom-176b")),
    (_GOPHER, ("gopher-44m", "gopher-117m", "gopher-417m", "gopher-1.4b", "gopher-7.1b")),
    (_LLAMA, ("llama-7b", "llama-13b", "llama-33b", "llama-65b")),
    (_LLAMA_2, ("llama2-7b", "llama2-13b", "llama2-70b")),
    (_OLMO, ("olmo-1b", "olmo-7b")),
    (_DEEPSEEK, ("deepseek-7b", "deepseek-67b")),
    (_T5, ("t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b")),
    (_PALM, ("palm-540b",)),
    (_CHINCHILLA, ("chinchilla-70b",)),
    (_DEEPSEEK_V2, ("deepseek-v2-lite",)),
)
TRAINING: Mapping[str, Facts] = {
    **OF_ENCODERS,
    **{name: facts for facts, names in _MANY for name in names},
    "bert-base": _BERT,
    "bert-large": _BERT,
    "gpt": {
        "source": "Radford et al. 2018, section 4.1",
        "optimiser": "Adam, decay 0.01 of all but biases and gains, dropout 0.1",
        "schedule": "linear over 2,000 steps to 2.5e-4, then a cosine to 0",
        "batch": "64 sequences of 512 tokens, 100 passes over BooksCorpus",
    },
    "gopher-280b": _more(_GOPHER, batch="3M tokens, doubled to 6M on the way; the recipe has 6M throughout"),
    "llama3.1-405b": {
        "source": "Grattafiori et al. 2024, arXiv:2407.21783, sections 3.4.1 to 3.4.3",
        "batch": "4M tokens of 4,096, 8M of 8,192 after 252M tokens, 16M after 2.87T; the recipe has 16M throughout, so it "
        "takes fewer than the 1,200,000 steps of the schedule",
        "annealing": "over the last 40M tokens linearly to 0, at 128k of context; before it 800B tokens of longer contexts",
        "betas, eps, decay, clipping": "not said; LLaMA 2's in the recipe",
        "gradient reduction": "float32 (section 3.3.2)",
    },
    "olmo2-7b": {
        "source": "Walsh et al. 2024, arXiv:2501.00656, section 2 and appendix (from memory)",
        "z-loss": "1e-5",
        "schedule": "linear over 2,000 steps to 3e-4, a cosine to a tenth planned for 5T tokens and cut at 4T",
        "annealing": "50B tokens linearly to 0, three times with other data, weights averaged",
        "batch": "1,024 sequences of 4,096 tokens",
    },
    "olmo2-13b": {
        "source": "Walsh et al. 2024, arXiv:2501.00656, section 2 and appendix (from memory)",
        "z-loss": "1e-5",
        "schedule": "linear over 2,000 steps to 9e-4, a cosine to a tenth over 5T tokens",
        "annealing": "100B tokens linearly to 0, three times with other data, and once 300B; weights averaged",
        "batch": "2,048 sequences of 4,096 tokens",
    },
    "deepseek-v2": _more(
        _DEEPSEEK_V2,
        batch=_RAMP.format("2,304", "9,216", "225B"),
        auxiliary_losses="beside the experts' 0.003 those of devices 0.05 and of communication 0.02, which the recipe lacks",
    ),
    "deepseek-v3": {
        "source": "DeepSeek-AI 2024, arXiv:2412.19437, sections 3.3 and 4.2",
        "batch": _RAMP.format("3,072", "15,360", "469B"),
        "precision": "float8 products, bfloat16 elsewhere; the recipe has bf16",
        "optimiser state": "bfloat16 moments, float32 weights",
        "gradient reduction": "float32 accumulation",
        "correction": "moved by 0.001 for 14.3T tokens, then kept; the recipe goes on",
        "auxiliary losses": "one token further, weight 0.3 for 10T tokens, then 0.1: the preset deepseek-v3-mtp",
        "eps": "not said; 1e-8 in the recipe",
    },
    "falcon-40b": _more(
        _FALCON,
        schedule="over 4B tokens to 1.85e-4, then a cosine to a tenth",
        batch="1,152 sequences of 2,048 tokens, grown over 100B tokens",
        pretraining_tokens="1T",
    ),
    "falcon-180b": _more(
        _FALCON,
        schedule="over 4B tokens to 1.25e-4, then a cosine to a tenth",
        batch="2,048 sequences of 2,048 tokens, grown over 100B tokens",
        pretraining_tokens="3.5T",
    ),
}


def trained(preset: Preset) -> Preset:
    """The preset with its recipe and with what else is published of its training."""
    recipe = preset.recipe or RECIPES.get(preset.name)
    return replace(preset, recipe=recipe, training=preset.training or TRAINING.get(preset.name))
