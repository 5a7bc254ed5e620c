"""Classes of transformers as data: settings and tensors of each, by tables that go both ways."""

from __future__ import annotations

from types import ModuleType

from anyformer.families.files import Shelf, file_of, modules
from anyformer.families.hf.either_way import either_way
from anyformer.families.hf.headings import bare
from anyformer.families.hf.labelled import labelling
from anyformer.families.hf.mapping import Family

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
    """The family with its class without a head too, those that label, and with masks to both sides."""
    return bare(either_way(labelling(family)))


def families_in(file: ModuleType | None) -> dict[str, Family]:
    """Those of one file, by model_type."""
    found = [] if file is None else [value for value in vars(file).values() if isinstance(value, Family)]
    return {family.hf_type: in_all_shapes(family) for family in found}


FAMILIES = Shelf(
    lambda: {
        hf_type: family for file in modules(__name__, __path__, FILES) for hf_type, family in families_in(file).items()
    },
    near=lambda hf_type: families_in(file_of(hf_type, "families", __name__)),
)

__all__ = ["FAMILIES", "Family", "families_in", "in_all_shapes"]
