"""Classes of transformers as data: settings and tensors of each, by tables that go both ways."""

from __future__ import annotations

from anyformer.families.hf.mapping import Family
from anyformer.families.lineage import modules

# Where several classes compute a model, the first is written: plain ones before those that can do more. A file that is not
# named follows, by name.
# fmt: off
FILES = (
    "gpt2", "openai_gpt", "gpt_neo", "gptj", "gpt_neox", "opt", "bloom", "falcon", "llama", "experts",
    "gpt_oss", "qwen2", "deepseek", "gemma", "olmo", "phi", "cohere", "nemotron", "bert",
    "albert", "electra", "deberta", "xlnet", "longformer", "bigbird", "t5", "bart",
)
# fmt: on
FAMILIES: dict[str, Family] = {
    value.hf_type: value
    for module in modules(__name__, __path__, FILES)
    for name, value in vars(module).items()
    if isinstance(value, Family) and not name.startswith("_")
}

__all__ = ["FAMILIES", "Family"]
