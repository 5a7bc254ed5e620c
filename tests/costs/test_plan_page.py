"""The tables of docs/plan.md are what `plan` says today, those of docs/profile.md what was measured last."""

import pytest

from benchmarks import roofline
from tests.costs.plan_table import PAGE, written


def test_the_tables_are_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page, ("tables",)), "write them again with `PYTHONPATH=src python -m tests.costs.plan_table`"


@pytest.mark.slow
def test_all_tables_are_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "write them again with `PYTHONPATH=src python -m tests.costs.plan_table`"


@pytest.mark.skipif(not (roofline.RESULTS / "roofline.json").is_file(), reason="benchmarks/roofline.py was not run yet")
def test_measured_times_are_those_of_the_result() -> None:
    page = roofline.PAGE.read_text(encoding="utf-8")
    assert page == roofline.page(page), "write them again with `python -m benchmarks.roofline`"
    assert page.count("| training, ") == page.count("| decoding, ") == len(roofline.SHAPES)
