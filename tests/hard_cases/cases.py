"""All hard cases."""

from tests.hard_cases import (
    albert,
    bart,
    deberta_v3,
    gpt_oss,
    longformer,
    reformer,
    switch,
    t5,
    xlnet,
)

CASES = (
    t5.CASE,
    bart.CASE,
    albert.CASE,
    gpt_oss.CASE,
    xlnet.CASE,
    deberta_v3.CASE,
    longformer.CASE,
    reformer.CASE,
    switch.CASE,
)
