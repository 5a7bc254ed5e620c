"""The next token of texts whose middle may stand last. Bavarian et al. 2022, arXiv:2207.14255."""

from __future__ import annotations

from typing import ClassVar

from anyformer.spec import Share, SomeShare
from anyformer.training.objectives.specification import ObjectiveSpec


class FillInTheMiddle(ObjectiveSpec):
    """The next token, in a share of the texts of one whose middle stands last, so that a decoder learns to write it.

    Bavarian et al. 2022, arXiv:2207.14255, section 3. A text is cut in three between characters, at two places drawn evenly,
    and each part, encoded by itself, stands behind its mark: prefix, suffix, middle (PSM), or, for both to be learnt
    together, `<prefix> <suffix> suffix <middle> prefix middle` (SPM, variant 2 of appendix D): PSM with nothing before the
    gap. Marks are predicted too. What a row holds of a document is a text (the paper's context level); what ends a text ends
    a middle, be there more of the document or not.
    """

    rate: SomeShare = 0.5  # of texts; the others stay as they are
    spm: Share = 0.5  # of these are written suffix, prefix, middle

    # A tokenizer that is trained for it has these; which others serve, `text.filling` says.
    specials: ClassVar[tuple[str, ...]] = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
