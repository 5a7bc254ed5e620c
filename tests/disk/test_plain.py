"""Plain data from files of ours: what no file of ours holds is refused in one line, soon, and in little memory."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from anyformer.disk import plain
from anyformer.errors import SpecError, UsageError

LETTERS = "abcdefghi"
ALIASES = "\n".join(
    ["a: &a [x,x,x,x,x,x,x,x,x]"] + [f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in pairwise(LETTERS)]
)
HOSTILE = {
    "aliases": (ALIASES, "holds more than 262,144 values"),
    "aliases of a long text": (f"a: &a '{'x' * 9999}'\nb: [{'*a,' * 5000}]", "holds more than"),
    "an alias of itself": ("a: &a [*a]", "nested more than 64 deep"),
    "many aliases of itself": (f"&a [{'*a,' * 80_000}]", "holds more than"),
    "aliases as a key": (f"{ALIASES}\n? *i\n: 1", "a list or mapping as a key"),
    "nested YAML": ("[" * 9999, "nested more than 64 deep"),
    "nested blocks": ("".join(f"{' ' * i}a:\n" for i in range(100)), "nested more than 64 deep"),
    "nested JSON": ('{"a":' * 9999 + "1" + "}" * 9999, "nested more than 64 deep"),
    "JSON nested less": ('{"a":' * 80 + "1" + "}" * 80, "nested more than 64 deep"),
    "digits": ("a: " + "1" * 5000, "a number of 5,000 characters"),
    "digits in JSON": ('{"a": ' + "1" * 5000 + "}", "a number of 5,000 characters"),
    "octal": ("a: 017", "the number '017' in line 1; write it in decimal digits"),
    "sixties": ("a: 1:30", "the number '1:30'"),
    "a key twice": ("a: 1\nb: 2\na: 2", "the key 'a' twice in the mapping in line 1"),
    "a key twice in JSON": ('{"a": 1, "a": 2}', "the key 'a' twice"),
    "a number as a key": ("1: 2", "the key 1"),
    "a word that is a truth as a key": ("a: {on: 2}", "the key True"),
    "a date": ("a: 2001-01-01", "the timestamp '2001-01-01' in line 1; write it in quotes"),
    "a date that is none": ("a: 2001-99-99", "the timestamp '2001-99-99'"),
    "a tag": ("a: !!python/object/apply:os.system [x]", "has the tag"),
    "a tag that does not fit": ("a: !!bool x", "has the tag"),
    "a merge": ("<<: {a: 1}", "the merge '<<'"),
    "two documents": ("--- 1\n--- 2", "neither JSON nor YAML"),
    "broken JSON that YAML reads": ('{"a": 1 2}', "neither JSON nor YAML (Expecting ',' delimiter"),
    "half a pair": ('{"a": "\\ud800"}', "no Unicode"),
    "a control character": ("a: \0", "neither JSON nor YAML"),
    "much": ("a" * 300_000, "is larger than 262,144 bytes"),
}


@pytest.mark.parametrize(("text", "said"), HOSTILE.values(), ids=list(HOSTILE))
def test_what_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        plain.loads(text, "my.yaml")
    assert str(error.value).startswith("my.yaml ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"my\.yaml"):
        plain.read(tmp_path / "my.yaml", "device", UsageError)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a: \xff")
    for path, said in ((tmp_path, "Is a directory"), (tmp_path / "b", "No such file"), (tmp_path / "a", "no* UTF-8")):
        with pytest.raises(UsageError, match=f"cannot read the device .*({said})|not UTF-8"):
            plain.read(path, "device", UsageError)
    with pytest.raises(UsageError, match="larger than"):
        plain.read("/dev/zero", "device", UsageError)


def test_what_is_plain() -> None:
    text = "a: [1, 1_000, -2, 1.5e+3, .5, yes, null, ~, 'x', 1e5, {b: [], c: {}}]\nd: &d {e: f}\ng: [*d, *d]"
    assert plain.loads(text) == yaml.safe_load(text)
    assert plain.loads('{"a": [1, 1e5, true, null, "\\u00e9"]}') == {"a": [1, 1e5, True, None, "é"]}
    assert plain.loads("{a: 1}") == {"a": 1}  # YAML's flow
    assert plain.loads("") is None


def test_without_the_parser_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    plain._loader.cache_clear()
    try:
        for text, said in HOSTILE.values():
            with pytest.raises(SpecError) as error:
                plain.loads(text)
            assert said in str(error.value)
    finally:
        monkeypatch.undo()
        plain._loader.cache_clear()
