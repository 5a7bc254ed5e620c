"""The report's words: nothing of the template is left in it, and one is not several."""

import re
from dataclasses import replace

from anyformer.study.report import render_report
from anyformer.study.statistics import analyse
from tests.study.studies import one_seed, three_seeds


def test_nothing_of_the_template_is_left() -> None:
    for study in (one_seed(), three_seeds()):
        for documents in ("documents", "examples"):
            page = render_report(replace(study, documents=documents), analyse(study))
            assert not re.search(r"\{\{|\}\}|\{%|%\}", page.split("<script")[0].split("</style>")[1])
            assert "study." not in re.sub(r"<[^>]*>", "", page.split("</style>")[1].split("<script")[0])


def test_one_is_not_several() -> None:
    study = one_seed()
    page = render_report(replace(study, data=replace(study.data, validation_documents=1)), analyse(study))
    assert "; 1 document, " in page
    assert not re.search(r"\b1 (documents|seeds|runs|threads)\b", page)
