"""Classes of transformers as data: settings and tensors of each, by tables that go both ways."""

from __future__ import annotations

from anyformer.families.hf.albert import ALBERT
from anyformer.families.hf.bart import BART, MARIAN
from anyformer.families.hf.bert import BERT
from anyformer.families.hf.bigbird import BIGBIRD
from anyformer.families.hf.bloom import BLOOM
from anyformer.families.hf.cohere import COHERE, COHERE2
from anyformer.families.hf.deberta import DEBERTA
from anyformer.families.hf.deberta_v2 import DEBERTA_V2
from anyformer.families.hf.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from anyformer.families.hf.distilbert import DISTILBERT
from anyformer.families.hf.electra import ELECTRA
from anyformer.families.hf.falcon import FALCON
from anyformer.families.hf.gemma import GEMMA, GEMMA2, GEMMA3
from anyformer.families.hf.gpt2 import GPT2
from anyformer.families.hf.gpt_neo import GPT_NEO
from anyformer.families.hf.gpt_neox import GPT_NEOX
from anyformer.families.hf.gpt_oss import GPT_OSS
from anyformer.families.hf.gptj import GPTJ
from anyformer.families.hf.led import LED
from anyformer.families.hf.llama import LLAMA
from anyformer.families.hf.longformer import LONGFORMER
from anyformer.families.hf.mapping import Family
from anyformer.families.hf.mistral import MISTRAL
from anyformer.families.hf.mixtral import MIXTRAL
from anyformer.families.hf.nemotron import NEMOTRON
from anyformer.families.hf.olmo import OLMO, OLMO2
from anyformer.families.hf.openai_gpt import OPENAI_GPT
from anyformer.families.hf.opt import OPT
from anyformer.families.hf.phi import PHI, PHI3
from anyformer.families.hf.phi_moe import PHI_MOE
from anyformer.families.hf.qwen2 import QWEN2
from anyformer.families.hf.qwen_moe import QWEN_MOE
from anyformer.families.hf.roberta import ROBERTA
from anyformer.families.hf.switch import SWITCH
from anyformer.families.hf.t5 import MT5, T5
from anyformer.families.hf.xlnet import XLNET

CLASSES = (  # those of transformers; where several compute a model, the first is written
    GPT2,
    OPENAI_GPT,
    GPT_NEO,
    GPTJ,
    GPT_NEOX,
    OPT,
    BLOOM,
    FALCON,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN_MOE,
    PHI_MOE,
    GPT_OSS,
    QWEN2,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GEMMA,
    GEMMA2,
    GEMMA3,
    OLMO,
    OLMO2,
    PHI,
    PHI3,
    COHERE,
    COHERE2,
    NEMOTRON,
    BERT,
    ROBERTA,
    DISTILBERT,
    ALBERT,
    ELECTRA,
    DEBERTA,
    DEBERTA_V2,
    XLNET,
    LONGFORMER,
    BIGBIRD,
    T5,
    MT5,
    SWITCH,
    BART,
    MARIAN,
    LED,
)
FAMILIES: dict[str, Family] = {family.hf_type: family for family in CLASSES}

__all__ = ["CLASSES", "FAMILIES", "Family"]
