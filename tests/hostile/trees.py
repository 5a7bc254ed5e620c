"""Damages trees of plain data, JSON's and YAML's, where it means something; says what was done in words."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

MARKUP = "zq7"  # what follows "[red]" in hostile names: wherever it is printed, so is the "[red]" before it
LONG = "w" * 100_000


class Lexicon(NamedTuple):
    """What stands in valid files of a kind: names, and the values of each key."""

    words: Sequence[str] = ()
    values: Mapping[str, Sequence[Any]] = {}

    @classmethod
    def of(cls, trees: Iterable[Any], words: Sequence[str] = ()) -> Lexicon:
        """All keys and their values in some trees, with more words."""
        values: dict[str, list[Any]] = {}

        def walk(tree: Any) -> None:
            for key, value in tree.items() if isinstance(tree, dict) else ():
                values.setdefault(str(key), []).append(value)
            for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
                walk(value)

        for tree in trees:
            walk(tree)
        return cls(sorted({*words, *values}), {key: _distinct(found) for key, found in sorted(values.items())})


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list({repr(value): value for value in values}.values())


NOTHING = Lexicon()


class Raw(str):
    """Text that is written as it stands."""

    __slots__ = ()


class Pairs(list[tuple[Any, Any]]):
    """A mapping with its keys in order, of any kind, several times the same if need be."""


NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, -3072, 10**6, 10**9, 2**31, 2**31 - 1, 2**32, 2**63 - 1, 2**63, 10**18, 10**30, -(10**18)),
    *(0.0, -0.0, 0.5, -0.5, 1e-300, 1e300, -1e300, 1e-5, 1.5),
    *map(Raw, ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5_000, "-" + "9" * 5_000, "0." + "3" * 5_000)),
)
TEXTS: tuple[Any, ...] = (
    *("", " ", "\n", "a", "null", "none", "true", "0", "-1", "1e5", "nan", "inf", "..", ".", "/", "~", "-", "--help"),
    *("../../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "C:\\x", "a/b", "a" * 300, LONG, "\x00", "a\x00b"),
    *(
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07",
        "\x9b31m",
        "\r\x08\x08over",
        "\x7f",
        "\u202eevil",
        "\ufeff",
        "é",
        "日本",
        "😀",
    ),
    *(
        f"[red]{MARKUP}",
        f"[red]{MARKUP}[/red]",
        "[/red]",
        "[link=http://x]y[/link]",
        "[bold",
        "{{ 7 * 7 }}",
    ),
    *("%s%n", "{0.__class__}", "$(id)", "; rm -rf", "<script>", "__class__", "__init__", "kind", "𝟙", "٣"),
)
ODD: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, [1, 2, 3], {"kind": "x"}, {"kind": ["a"]})

JSON_RAW = tuple(
    map(Raw, ("", "{", "]", '"', "'a'", "tru", '"\\ud800"', '"\\u0000"', "01", "+1", "0x10", "/**/", "[1,]"))
)
YAML_RAW = tuple(
    map(
        Raw,
        (
            *(
                "&a [*a]",
                "*nothing",
                "&a {k: *a}",
                "!!python/object/apply:os.system ['true']",
                "!!python/name:os.system",
            ),
            *(
                "!mine x",
                "!!binary x",
                "!!binary '====='",
                "!!int abc",
                "!!float x",
                "!!timestamp x",
                "!!set {a, b}",
                "!!null x",
            ),
            *(
                "2020-13-45",
                "2020-01-01",
                "2020-02-30T25:61:61Z",
                "1:60:60",
                "0b102",
                "0o9",
                "0x",
                ".nan",
                ".inf",
                "-.inf",
            ),
            *(
                "? [a, b] : c",
                "{? [a]: b}",
                "{? {a: b}: c}",
                "{1: 2}",
                "{null: 1}",
                "{1.5: 1}",
                "{true: 1}",
                "{2020-01-01: 1}",
            ),
            *(
                "<<: *x",
                "{<<: 3}",
                "{<<: {kind: x}}",
                "|\n  a",
                "---",
                "...",
                "%YAML 9.9",
                "\t",
                "@a",
                "`a`",
                "~",
                "=",
                "<<",
            ),
            *(
                "!!map [1]",
                "!!seq {a: 1}",
                "!!str [1]",
                "!!omap [a: 1, b: 2]",
                "!!pairs [a: 1]",
                "!!bool maybe",
                "!<tag:x> y",
            ),
        ),
    )
)


def bombs(yaml: bool) -> Sequence[Raw]:
    """Little text that says much: nesting, and in YAML aliases of aliases."""
    deep = [Raw("[" * n + "]" * n) for n in (50, 400, 3_000, 100_000)] + [
        Raw('{"a":' * n + "1" + "}" * n) for n in (400, 3_000)
    ]
    if not yaml:
        return deep
    aliases = "[&a0 [x,x,x,x,x,x,x,x,x],"
    aliases += ",".join(f"&a{i} [" + ",".join([f"*a{i - 1}"] * 9) + "]" for i in range(1, 9))
    return [*deep, Raw(aliases + "]"), Raw("{? " * 300 + "a" + "}" * 300), Raw("- " * 2_000 + "a")]


def written(tree: Any, yaml: bool = False) -> str:
    """JSON, or YAML in flow style, which may hold what neither can say rightly."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, Pairs):
        return "{" + ", ".join(f"{_key(k, yaml)}: {written(v, yaml)}" for k, v in tree) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(written(v, yaml) for v in tree) + "]"
    if isinstance(tree, dict):
        return written(Pairs(tree.items()), yaml)
    if isinstance(tree, float) and yaml:
        return repr(tree).replace("nan", ".nan").replace("inf", ".inf")
    return json.dumps(tree, ensure_ascii=yaml and isinstance(tree, str), default=str)


def _key(key: Any, yaml: bool) -> str:
    return written(key, yaml) if isinstance(key, str) or yaml else written(str(key))


def pairs(tree: Any) -> Any:
    """Plain data with its mappings as `Pairs`, to be changed in place."""
    if isinstance(tree, dict):
        return Pairs((key, pairs(value)) for key, value in tree.items())
    return [pairs(value) for value in tree] if isinstance(tree, list) else tree


def _places(tree: Any, path: str = "") -> Iterator[tuple[Any, int, str]]:
    """(mapping or list, index in it, path) of every value below."""
    for i, each in enumerate(tree if isinstance(tree, list) else ()):
        key, value = each if isinstance(tree, Pairs) else (f"[{i}]", each)
        here = f"{path}.{str(key)[:40]}" if path or isinstance(tree, Pairs) else str(key)
        yield tree, i, here
        yield from _places(value, here)


def _at(holder: Any, i: int) -> Any:
    return holder[i][1] if isinstance(holder, Pairs) else holder[i]


def mutate_tree(tree: Any, random: Random, yaml: bool = False, lexicon: Lexicon = NOTHING) -> tuple[Any, str]:
    """The tree changed in one place, and how in words; `lexicon` has what stands elsewhere in such trees."""
    tree = pairs(copy.deepcopy(tree))
    places = list(_places(tree))
    if not places or random.random() < 0.02:
        value = _value(random, yaml, lexicon)
        return value, f"all := {_shown(value)}"
    leaves = [each for each in places if not isinstance(_at(*each[:2]), list)]
    holder, i, path = random.choice(leaves if leaves and random.random() < 0.5 else places)
    before = _at(holder, i)

    def put(value: Any) -> None:
        holder[i] = (holder[i][0], value) if isinstance(holder, Pairs) else value

    # Half of all damage keeps each value's type: what only a wrong type betrays is refused before anything is made of it.
    match random.choice(
        (
            *["kin"] * 6,
            *["graft"] * 8,
            *["add"] * 4,
            *["value"] * 3,
            "number",
            "wrap",
            "delete",
            "double",
            "key",
            "swap",
            "more",
            "empty",
        )
    ):
        case "kin":
            put(value := _kin(before, random, lexicon))
        case "graft" if isinstance(holder, Pairs) and (found := lexicon.values.get(str(holder[i][0]))):
            put(pairs(value := copy.deepcopy(random.choice(found))))
        case "add" if isinstance(holder, Pairs) and lexicon.values:
            name = random.choice(list(lexicon.values))
            value = copy.deepcopy(random.choice(lexicon.values[name]))
            holder[:] = [*(pair for pair in holder if pair[0] != name), (name, pairs(value))]
            return tree, f"{name} beside {path} := {_shown(value)}"
        case "number" if isinstance(before, int | float):
            around = (
                -before,
                before * 2,
                before + 1,
                before - 1,
                before // 2,
                before * 1_000_003,
                float(before),
                str(before),
            )
            put(value := random.choice((*around, *NUMBERS, *NUMBERS)))
        case "wrap":
            put(value := random.choice(([before], Pairs([("kind", before)]), [before, before], str(before)[:50])))
        case "delete":
            del holder[i]
            return tree, f"{path} deleted"
        case "double":
            holder.insert(random.randrange(len(holder) + 1), holder[i])
            return tree, f"{path} twice"
        case "key" if isinstance(holder, Pairs):
            odd = (
                *TEXTS,
                *lexicon.words,
                *(NUMBERS[:20] if yaml else ()),
                *((None, True, [1], Raw("[a]"), Raw("{a: b}")) if yaml else ()),
            )
            holder[i] = (key := random.choice(odd), before)
            return tree, f"{path} is now called {_shown(key)}"
        case "swap":
            other, j, there = random.choice(places)
            put(copy.deepcopy(_at(other, j)))
            return tree, f"{path} := that of {there}"
        case "more" if isinstance(before, list) and before:
            before.extend(copy.deepcopy(before[0]) for _ in range(random.choice((1, 2, 10, 2_000))))
            return tree, f"{path} longer: {len(before)}"
        case "empty" if isinstance(before, list):
            before.clear()
            return tree, f"{path} emptied"
        case _:
            put(value := _value(random, yaml, lexicon))
    return tree, f"{path} := {_shown(value)}"


def _kin(before: Any, random: Random, lexicon: Lexicon) -> Any:
    """Another value of the same type, most of them small."""
    match before:
        case bool():
            return not before
        case int():
            around = (-before, before * 2, before + 1, before - 1, before // 2, before * 1_000_003)
            return random.choice((*around, *range(-1, 9), *range(-1, 9), *(n for n in NUMBERS if isinstance(n, int))))
        case float():
            around = (-before, before * 2, before / 2, before + 1, 1 / before if before else 1.0)
            return random.choice(
                (*around, *around, *(n for n in NUMBERS if isinstance(n, float)), 0.1, 1.0, 2.0, float("nan"))
            )
        case str():
            return random.choice(random.choice((lexicon.words or TEXTS, lexicon.words or TEXTS, TEXTS)))
        case Pairs():
            return Pairs(before[1:]) if len(before) > 1 else Pairs()
        case list() if len(before) > 1 and random.random() < 0.5:
            return [*before[1:], before[0]]
        case list():
            return random.choice(([*before, *before], before[:1], []))
        case None:
            return random.choice((1, 0.5, "", [], Pairs()))
    return before


def _value(random: Random, yaml: bool, lexicon: Lexicon) -> Any:
    groups: tuple[Sequence[Any], ...] = (NUMBERS, TEXTS, ODD, lexicon.words or TEXTS, YAML_RAW if yaml else JSON_RAW)
    return pairs(random.choice(random.choice(groups))) if random.random() > 0.06 else random.choice(bombs(yaml))


def _shown(value: Any) -> str:
    text = written(value, True)
    return text if len(text) <= 80 else f"{text[:60]} … ({len(text):,} characters)"
