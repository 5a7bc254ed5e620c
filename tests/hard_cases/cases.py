"""All hard cases."""

from tests.hard_cases import (
    gpt_oss,
    longformer,
    reformer,
    xlnet,
)

CASES = (
    gpt_oss.CASE,
    xlnet.CASE,
    longformer.CASE,
    reformer.CASE,
)
