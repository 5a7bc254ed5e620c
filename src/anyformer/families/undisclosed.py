"""Models whose architecture is not public: what is known of them, and what building them would have to invent."""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.errors import SpecError


@dataclass(frozen=True)
class Undisclosed:
    """One model that cannot be built or costed, because its source leaves out what a specification must say."""

    name: str
    family: str
    source: str  # authors, year, arXiv id, section
    public: tuple[str, ...]  # what the source says
    missing: str  # what it does not

    def refusal(self) -> SpecError:
        """The error for building or costing it."""
        return SpecError(
            f"{self.name} cannot be built or costed: its authors have not published {self.missing}; "
            f"`anyformer show {self.name}` says what is public"
        )


_MODELS = (
    Undisclosed(
        "anthropic-lm-2021",
        "anthropic-lm",
        "Askell et al. 2021, arXiv:2112.00861, section 2 and appendix A (from memory)",
        (
            "decoder-only language models of 13M to 52B parameters, embeddings not counted",
            "d_model grows in a fixed proportion to the number of layers",
            "context of 8,192 tokens, a vocabulary of 2^16 byte-pair tokens",
            "trained on 400B tokens of filtered web text, books and code",
        ),
        "its norms, positions, feed-forward, numbers of heads and what is tied",
    ),
    Undisclosed(
        "gpt-4",
        "gpt-4",
        "OpenAI 2023, arXiv:2303.08774, section 2",
        (
            "a Transformer pre-trained to predict the next token, then fine-tuned with human feedback",
            "reads text and images, writes text",
            "offered with contexts of 8,192 and 32,768 tokens",
            'the report says that it "contains no further details about the architecture (including model size)"',
        ),
        "its size, its layers, their parts, or how it was trained",
    ),
)
UNDISCLOSED: dict[str, Undisclosed] = {model.name: model for model in _MODELS}
