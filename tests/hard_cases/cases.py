"""All hard cases."""

from tests.hard_cases import gpt_oss, reformer

CASES = (
    gpt_oss.CASE,
    reformer.CASE,
)
