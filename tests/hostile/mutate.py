"""Damages texts, bytes, files by what their suffix says they are, and files as names in a directory."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import yaml

from tests.hostile.trees import MARKUP, NOTHING, NUMBERS, TEXTS, YAML_RAW, Lexicon, mutate_tree, written

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?")
_WORD = re.compile(rb"[A-Za-z_]+")


def mutate_text(content: bytes, random: Random, lexicon: Lexicon = NOTHING) -> tuple[bytes, str]:
    """A text with one number, word or line changed."""
    match random.choice(("number", "number", "word", "line", "bytes")):
        case "number" if found := list(_NUMBER.finditer(content)):
            at, new = random.choice(found), written(random.choice(NUMBERS)).encode()
        case "word" if found := list(_WORD.finditer(content)):
            at = random.choice(found)
            new = written(random.choice((*TEXTS, *lexicon.words, *YAML_RAW))).encode()
        case "line":
            lines = content.split(b"\n")
            i, j = random.randrange(len(lines)), random.randrange(len(lines))
            match random.choice(("delete", "double", "exchange", "indent", "cut")):
                case "delete":
                    del lines[i]
                case "double":
                    lines.insert(j, lines[i])
                case "exchange":
                    lines[i], lines[j] = lines[j], lines[i]
                case "indent":
                    lines[i] = random.choice((b"  ", b"\t", b"- ")) + lines[i]
                case _:
                    lines[i] = lines[i][: random.randrange(len(lines[i]) + 1)]
            return b"\n".join(lines), f"line {i + 1} changed, {j + 1}"
        case _:
            return mutate_bytes(content, random)
    return content[: at.start()] + new + content[at.end() :], f"{at[0][:40]!r} at {at.start()} := {new[:60]!r}"


_WORDS = tuple(
    n.to_bytes(8, "little", signed=n < 0) for n in (0, 1, -1, 2**31, 2**32, 2**62, 2**63 - 1, 100, 10**9, 10**12)
)
_BITS = (
    b"\xff",
    b"\x00",
    b"\x80",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\x1b[31m",
    b"\r\n",
    b"\xef\xbb\xbf",
    b"[red]" + MARKUP.encode(),
)


def mutate_bytes(content: bytes, random: Random) -> tuple[bytes, str]:
    """Bytes flipped, cut, doubled, inserted, zeroed, or written over as numbers; those at the start more often."""
    size = len(content)
    if size == 0:
        new = random.choice((*_BITS, *_WORDS, b"x" * 100_000))
        return new, f"empty := {new[:20]!r}"
    at = random.randrange(min(size, random.choice((16, 200, 2_000, size))))
    length = min(size - at, random.choice((1, 2, 4, 8, 100, 4_096)))
    match random.choice(
        ("flip", "flip", "set", "cut", "end", "delete", "double", "insert", "zero", "number", "move", "random")
    ):
        case "flip":
            bit = 1 << random.randrange(8)
            return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :], f"bit {bit} flipped at {at}"
        case "set":
            new = random.choice(_BITS)
            return content[:at] + new + content[at + len(new) :], f"{new!r} at {at}"
        case "cut":
            return content[:at], f"cut at {at} of {size}"
        case "end":
            at = size - min(size, random.choice((1, 2, 8, 100)))
            return content[:at], f"cut at {at} of {size}"
        case "delete":
            return content[:at] + content[at + length :], f"{length} bytes deleted at {at}"
        case "double":
            return content[: at + length] + content[at:], f"{length} bytes twice at {at}"
        case "insert":
            new = random.choice((*_BITS, *_WORDS, random.randbytes(length)))
            return content[:at] + new + content[at:], f"{new[:20]!r} inserted at {at}"
        case "zero":
            return content[:at] + bytes(length) + content[at + length :], f"{length} zeros at {at}"
        case "number":
            new = random.choice(_WORDS)[: random.choice((1, 2, 4, 8))]
            return content[:at] + new + content[at + len(new) :], f"{new!r} at {at}"
        case "move":
            to = random.randrange(size)
            taken = content[at : at + length]
            return content[:to] + taken + content[to + length :], f"{length} bytes at {to} := those at {at}"
        case _:
            new = random.randbytes(length)
            return content[:at] + new + content[at + length :], f"{length} random bytes at {at}"


def mutate_file(path: Path, random: Random, lexicon: Lexicon = NOTHING) -> str:
    """Damage a file by what its suffix says it is, or as bytes; returns what was done."""
    content = path.read_bytes()
    said = f"{path.name}: "
    if random.random() < 0.75 and (change := _STRUCTURED.get(path.suffix)):
        try:
            if b"*a0" in content:
                raise ValueError("aliases of aliases are not to be written out here")
            content, words_of_it = change(content, random, lexicon)
        except Exception:  # damaged before: a second change of the same file
            content, words_of_it = mutate_bytes(content, random)
    elif path.suffix in _TEXTS_BY_SUFFIX and random.random() < 0.6:
        content, words_of_it = mutate_text(content, random, lexicon)
    else:
        content, words_of_it = mutate_bytes(content, random)
    path.write_bytes(content)
    return said + words_of_it


def _json(content: bytes, random: Random, lexicon: Lexicon) -> tuple[bytes, str]:
    tree, said = mutate_tree(json.loads(content), random, False, lexicon)
    return written(tree).encode("utf-8", "surrogatepass"), said


def _yaml(content: bytes, random: Random, lexicon: Lexicon) -> tuple[bytes, str]:
    tree, said = mutate_tree(yaml.safe_load(content), random, True, lexicon)
    return written(tree, True).encode("utf-8", "surrogatepass"), said


def _json_lines(content: bytes, random: Random, lexicon: Lexicon) -> tuple[bytes, str]:
    lines = content.split(b"\n")
    i = random.randrange(len(lines))
    if not lines[i]:
        raise ValueError
    lines[i], said = _json(lines[i], random, lexicon)
    return b"\n".join(lines), f"line {i + 1}: {said}"


def _safetensors(content: bytes, random: Random, lexicon: Lexicon) -> tuple[bytes, str]:
    """The header changed as a tree; what it says of its length follows, or does not."""
    size = int.from_bytes(content[:8], "little")
    header, said = _json(content[8 : 8 + size], random, lexicon)
    header = header.ljust(size) if len(header) < size and random.random() < 0.5 else header
    return len(header).to_bytes(8, "little") + header + content[8 + size :], f"header: {said}"


def _gzip(content: bytes, random: Random, lexicon: Lexicon) -> tuple[bytes, str]:
    inner, said = mutate_text(gzip.decompress(content), random, lexicon)
    return gzip.compress(inner, 1, mtime=0), f"unpacked: {said}"


_STRUCTURED: dict[str, Callable[[bytes, Random, Lexicon], tuple[bytes, str]]] = {
    ".json": _json,
    ".yaml": _yaml,
    ".jsonl": _json_lines,
    ".safetensors": _safetensors,
    ".gz": _gzip,
}
_TEXTS_BY_SUFFIX = {".json", ".yaml", ".jsonl", ".txt", ".csv", ".md", ".py"}


def mutate_entry(path: Path, random: Random) -> str:
    """Damage a file as a name in its directory: gone, a directory, a link to nothing, to itself, to another."""
    others = sorted(other for other in path.parent.iterdir() if other != path)
    match random.choice(("gone", "empty", "directory", "dangling", "loop", "away", "other", "exchange", "link")):
        case "gone":
            path.unlink()
            return f"{path.name} deleted"
        case "empty":
            path.write_bytes(b"")
            return f"{path.name} emptied"
        case "directory":
            path.unlink()
            path.mkdir()
            return f"{path.name} is a directory"
        case "dangling":
            path.unlink()
            path.symlink_to("nowhere")
            return f"{path.name} is a link to nothing"
        case "loop":
            path.unlink()
            path.symlink_to(path.name)
            return f"{path.name} is a link to itself"
        case "away":
            path.unlink()
            path.symlink_to("/etc/passwd")
            return f"{path.name} is a link to /etc/passwd"
        case "exchange" if others and (other := random.choice(others)).is_file():
            aside = path.with_name("aside")
            path.rename(aside)
            other.rename(path)
            aside.rename(other)
            return f"{path.name} and {other.name} exchanged"
        case "link":
            moved = path.with_name("moved-" + path.name)
            path.rename(moved)
            path.symlink_to(moved.name)
            return f"{path.name} is a link to where it now lies"
        case _ if others:
            other = random.choice(others)
            path.unlink()
            if other.is_file():
                shutil.copyfile(other, path)
            else:
                path.symlink_to(other.name)
            return f"{path.name} := {other.name}"
        case _:
            path.unlink()
            return f"{path.name} deleted"


def files_below(folder: Path) -> list[Path]:
    """Every regular file below a folder, by name."""
    found = [Path(where, name) for where, _, names in os.walk(folder) for name in names]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())
