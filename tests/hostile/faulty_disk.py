"""A disk that counts every call below a folder, fails at one of them, and knows what a power cut would leave of the rest."""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn
from unittest import mock

from safetensors import SafetensorError

from anyformer.training.checkpoint import checkpoints

Mode = Literal["no space", "input/output error", "short"]
CODES = {"no space": errno.ENOSPC, "input/output error": errno.EIO}
_READING = ("read", "load")


def no_space_left(*_: object, **__: object) -> NoReturn:
    """What any call does on a full disk, in its place."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass
class Disk:
    """The calls below `root`: each is an event, (what, path, bytes written or the new name)."""

    root: Path
    at: int | None = None  # the call that fails
    mode: Mode = "input/output error"
    events: list[tuple[str, str, Any]] = field(default_factory=list)
    metrics: list[int] = field(default_factory=list)  # the calls that write a line of them
    calls: int = 0
    _names: dict[int, str] = field(default_factory=dict)

    def due(self, what: str) -> bool:
        """Count a call; whether it is the one that ends short. Raises OSError where it fails."""
        self.calls += 1
        if self.calls - 1 != self.at:
            return False
        if self.mode == "short":
            return True
        code = CODES["input/output error" if what in _READING else self.mode]
        raise OSError(code, os.strerror(code))

    def below(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The path from the root; None for one elsewhere."""
        if isinstance(path, int):
            place = Path(os.readlink(f"/proc/self/fd/{path}"))
        else:
            place = Path(os.fsdecode(path))
            place = place if dir_fd is None else Path(os.readlink(f"/proc/self/fd/{dir_fd}")) / place
        return place.relative_to(self.root).as_posix() if place.is_relative_to(self.root) else None

    @contextmanager
    def entered(self) -> Iterator[Disk]:
        """Let every call pass through this one."""
        calls: dict[str, Any] = {name: self._named(name, getattr(os, name)) for name in ("mkdir", "unlink", "rmdir")}
        calls |= {"open": self._open(os.open), "write": self._write(os.write), "rename": self._rename(os.rename)}
        calls["fsync"] = self._named("fsync", lambda descriptor: None)  # a real one takes long, and nothing is cut here
        library: dict[str, Any] = {"save_file": self._save(checkpoints.save_file)}
        library["load_file"] = self._load(checkpoints.load_file)
        opened = self._opened(io.open)
        with (
            mock.patch.multiple(os, **calls),
            mock.patch.multiple(checkpoints, **library),
            mock.patch.object(io, "open", opened),
            mock.patch.object(builtins, "open", opened),
        ):
            yield self

    def _open(self, call: Callable[..., int]) -> Callable[..., int]:
        def opening(path: Any, flags: int, *rest: Any, dir_fd: int | None = None, **options: Any) -> int:
            name = self.below(path, dir_fd)
            if name is not None:
                self.due("open")
                if flags & os.O_CREAT and not os.path.lexists(path):
                    self.events.append(("create", name, None))
            return call(path, flags, *rest, dir_fd=dir_fd, **options)

        return opening

    def _write(self, call: Callable[..., int]) -> Callable[..., int]:
        def writing(descriptor: int, content: Any) -> int:
            name = self.below(descriptor)
            if name is not None and name.endswith("run/metrics.jsonl"):
                self.metrics.append(self.calls)
            if name is not None and self.due("write"):
                content = content[: len(content) // 2]
            n = call(descriptor, content)
            if name is not None:
                self.events.append(("write", name, bytes(content[:n])))
            return n

        return writing

    def _named(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(path: Any, *rest: Any, dir_fd: int | None = None, **options: Any) -> Any:
            name = self.below(path, dir_fd)
            if name is not None:
                self.due(what)
            if dir_fd is not None:
                options["dir_fd"] = dir_fd
            result = call(path, *rest, **options)
            if name is not None:
                self.events.append((what, name, None))
            return result

        return calling

    def _rename(self, call: Callable[..., None]) -> Callable[..., None]:
        def renaming(source: Any, target: Any) -> None:
            name, new = self.below(source), self.below(target)
            if name is not None:
                self.due("rename")
            call(source, target)
            if name is not None:
                self.events.append(("rename", name, new))

        return renaming

    def _save(self, call: Callable[..., None]) -> Callable[..., None]:
        """The library's own writing: half of a file, then its error."""

        def saving(tensors: Any, path: Path) -> None:
            name = self.below(path)
            try:
                short = self.due("write")
            except OSError as error:
                raise SafetensorError(f"Error while serializing: I/O error: {error.strerror} (os error)") from None
            call(tensors, path)
            content = path.read_bytes()
            self.events += [("create", name or "", None), ("write", name or "", content)]
            if short:
                os.truncate(path, len(content) // 2)
                raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

        return saving

    def _load(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def loading(path: Path, *rest: Any, **options: Any) -> Any:
            if self.due("load"):
                raise SafetensorError("Error while deserializing header: incomplete metadata, file not fully covered")
            return call(path, *rest, **options)

        return loading

    def _opened(self, call: Callable[..., Any]) -> Callable[..., Any]:
        disk = self

        class Raw(io.FileIO):
            def readinto(self, buffer: Any) -> int | None:
                short = disk.due("read")
                return super().readinto(memoryview(buffer)[: max(1, len(buffer) // 2)] if short else buffer)

            def readall(self) -> bytes:
                disk.due("read")
                return super().readall()

            def write(self, content: Any) -> int | None:
                if disk.due("write"):
                    content = bytes(content)[: max(1, len(content) // 2)]
                n = super().write(content)
                disk.events.append(("write", disk.below(self.fileno()) or "", bytes(content[:n])))
                return n

        def opening(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
            name = None if isinstance(file, int) else self.below(file)
            if name is None:
                return call(file, mode, buffering, *rest, **options)
            self.due("open")
            if "w" in mode or "x" in mode:
                self.events.append(("create", name, None))
            raw = Raw(file, mode.replace("b", "").replace("t", ""))
            buffered = io.BufferedReader(raw) if mode[0] == "r" else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **options)

        return opening


@dataclass
class Node:
    """A file or a directory: what the disk surely has of it, and what was done since it was synced."""

    is_directory: bool
    content: bytes = b""
    synced: bytes = b""
    entries: dict[str, Node] = field(default_factory=dict)
    kept: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[str | None, str | None, Node]] = field(default_factory=list)  # (name gone, name new, what)


def standing(run: Path) -> Node:
    """The tree of a folder that holds what the folder of a run holds, all of it synced."""

    def node(path: Path) -> Node:
        if path.is_file():
            return Node(False, path.read_bytes(), path.read_bytes())
        entries = {each.name: node(each) for each in path.iterdir()}
        return Node(True, entries=entries, kept=dict(entries))

    return Node(True, entries={run.name: (inner := node(run))}, kept={run.name: inner})


def done(events: list[tuple[str, str, Any]], root: Node | None = None) -> Node:
    """The tree after these events, from an empty folder."""
    root = root or Node(True)

    def place(path: str) -> tuple[Node, str]:
        *above, name = path.split("/")
        node = root
        for part in above:
            node = node.entries[part]
        return node, name

    for what, path, more in events:
        if path == "." and what == "fsync":
            root.kept, root.pending = dict(root.entries), []
            continue
        parent, name = place(path)
        if what in ("create", "mkdir"):
            parent.entries[name] = Node(what == "mkdir")
            parent.pending.append((None, name, parent.entries[name]))
        elif what == "write":
            parent.entries[name].content += more
        elif what == "fsync":
            node = parent.entries[name]
            node.synced, node.kept, node.pending = node.content, dict(node.entries), []
        elif what == "rename":
            node, new = parent.entries.pop(name), place(more)[1]
            assert place(more)[0] is parent, "moved between directories"
            parent.entries[new] = node
            parent.pending.append((name, new, node))
        else:
            parent.pending.append((name, None, parent.entries.pop(name)))
    return root


def cut(node: Node, path: Path, draw: random.Random) -> None:
    """Write what a power cut may leave: of each directory the first of its changes, of each file whatever it likes."""
    if not node.is_directory:
        rest = node.content[len(node.synced) :]
        n = draw.randint(0, len(rest))
        fates = (rest, b"", rest[:n], bytes(len(rest)), rest[:n] + bytes(len(rest) - n))
        path.write_bytes(node.synced + draw.choice(fates))
        return
    path.mkdir(exist_ok=True)
    names = dict(node.kept)
    for gone, new, what in node.pending[: draw.randint(0, len(node.pending))]:
        if gone is not None:
            names.pop(gone, None)
        if new is not None:
            names[new] = what
    for name, inner in names.items():
        cut(inner, path / name, draw)


def held(node: Node, path: Path, draw: random.Random) -> None:
    """Write every name, and of each file what a power cut may leave."""
    if not node.is_directory:
        cut(node, path, draw)
        return
    path.mkdir(exist_ok=True)
    for name, inner in node.entries.items():
        held(inner, path / name, draw)
