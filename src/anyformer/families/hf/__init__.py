"""Classes of transformers as data: settings and tensors of each, by tables that go both ways."""

from __future__ import annotations

from anyformer.families.hf.either_way import either_way
from anyformer.families.hf.headings import bare
from anyformer.families.hf.mapping import Family
from anyformer.families.lineage import modules

# Where several classes compute a model, the first is written: plain ones before those that can do more. A file that is not
# named follows, by name.
# fmt: off
FILES = (
    "gpt2", "gpt_neo", "gpt_neox", "opt", "falcon", "llama", "experts",
    "gpt_oss", "qwen2", "deepseek", "gemma", "phi", "cohere", "bert",
    "albert", "deberta", "xlnet", "longformer", "bigbird", "t5", "bart", "llama_like",
)
# fmt: on


def in_all_shapes(family: Family) -> Family:
    """The family with its class without a head too, and with masks to both sides."""
    return bare(either_way(family))


FAMILIES: dict[str, Family] = {
    value.hf_type: in_all_shapes(value)
    for module in modules(__name__, __path__, FILES)
    for value in vars(module).values()
    if isinstance(value, Family)
}

__all__ = ["FAMILIES", "Family", "in_all_shapes"]
