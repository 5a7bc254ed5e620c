"""The tensors of a directory's safetensors files, read one by one, and written a file at a time.

Truncated files, pickles and misfits are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, reduce
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anyformer.disk.foreign import inside, named_in, read_json
from anyformer.errors import CheckpointError, UsageError
from anyformer.families.hf.mapping import TensorRow

if TYPE_CHECKING:
    from anyformer.hub.gguf import GGUF

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_NBYTES = 5_000_000_000
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
WHOLE = {"I64": torch.int64, "I32": torch.int32}  # of tables of whole numbers
Expected = Mapping[str, tuple[int, ...] | None]  # the shapes of tensors by name; None: any
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Weights:
    """What the safetensors files of a directory hold; nothing but headers is read until a tensor is asked for.

    `known_as` says what a tensor of the files is called here, or None for one that is passed over.
    """

    n_passed_over = 0

    def __init__(self, directory: Path, known_as: Callable[[str], str | None] = str) -> None:
        self.directory = directory
        self._opened = cache(opened)
        files, said = _files(directory)
        filed: dict[str, Path] = {}
        for file in files:
            for name in self._opened(file).keys():  # noqa: SIM118 — no dictionary
                if filed.setdefault(name, file) != file:
                    raise CheckpointError(
                        f"{file} and {filed[name].name} both hold {name!r}; remove the file that is not the model's"
                    )
        for name, file in said.items():
            if filed.get(name) != file:
                raise CheckpointError(
                    f"{directory / INDEX} says that {name!r} is in {file.name}, which lacks it; copy both again"
                )
        self._homes: dict[str, tuple[Path, str]] = {}  # the file that holds a tensor, and what that calls it
        for name, file in filed.items():
            if (known := known_as(name)) is not None and self._homes.setdefault(known, (file, name))[1] != name:
                raise CheckpointError(
                    f"{directory} holds both {self._homes[known][1]!r} and {name!r}; remove one of them"
                )
        self.n_passed_over = len(filed) - len(self._homes)

    def __contains__(self, name: str) -> bool:
        return name in self._homes

    def join(self, folder: Path, names: Mapping[str, str]) -> None:
        """Hold all that another folder's files hold, too: `names` are ours for it, and what it is called there.

        Raises CheckpointError where there is anything else.
        """
        other = Weights(folder)
        other.match(dict.fromkeys(names.values()), "its config.json")
        self._homes |= {name: other._homes[filed] for name, filed in names.items()}

    def listed(self) -> list[str]:
        """The names of all tensors."""
        return list(self._homes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor without reading it."""
        return tuple(self._slice(name).get_shape())

    def stored(self, name: str) -> str:
        """The type of a tensor as the format spells it."""
        return self._slice(name).get_dtype()

    def dtype(self, names: Iterable[str]) -> torch.dtype:
        """The dtype that holds all of these tensors. Raises CheckpointError for quantised ones."""
        stored = {name: self.stored(name) for name in names}
        for name, spelled in stored.items():
            if spelled not in DTYPES:
                raise CheckpointError(
                    f"{self.directory}: {name} is of type {spelled}, quantised or packed; "
                    f"give weights of {', '.join(DTYPES)}"
                )
        return reduce(torch.promote_types, {DTYPES[spelled] for spelled in stored.values()})

    def read(self, name: str) -> Tensor:
        """A tensor. It lies in a map of its file, which takes memory for what was read of it."""
        file, filed = self._homes[name]
        return self._opened(file).get_tensor(filed)

    def release(self) -> None:
        """Give back the memory of what was read, as far as no tensor lies in it any more."""
        self._opened.cache_clear()

    def _slice(self, name: str) -> Any:
        file, filed = self._homes[name]
        return self._opened(file).get_slice(filed)

    def match(self, expected: Expected, what: str, optional: Collection[str] = ()) -> None:
        """Refuse tensors as `refuse_misfits` does."""
        refuse_misfits(self, expected, what, optional)

    def spelling(self, rows: Iterable[TensorRow], prefix: str) -> Callable[[str], str]:
        """What a tensor that rows call by one name is called in these files.

        Files of a model without its head lack the prefix, and those of one with a head have it, whichever the rows are of;
        of tied tensors a file may hold only the duplicate.
        """
        plain = not any(name.startswith(prefix) for name in self.listed())
        twins = {row.theirs[0]: row.also for row in rows if row.theirs}

        def spelled(name: str) -> str:
            each = [one.removeprefix(prefix) if plain else one for one in (name, *twins.get(name, ()))]
            return next((one for one in (*each, *(prefix + one for one in each)) if one in self._homes), each[0])

        return spelled


def narrowed(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in a dtype. Raises CheckpointError where a number is infinite there, UsageError where none is read so."""
    if dtype not in DTYPES.values():
        raise UsageError(f"weights of {dtype} are not read; give {' or '.join(map(str, DTYPES.values()))}")
    found = tensor.to(dtype)
    narrower = torch.finfo(dtype).max < torch.finfo(tensor.dtype).max
    if narrower and bool(found.isinf().any()) and not bool(tensor.isinf().any()):
        most = float(tensor.abs().max())
        raise CheckpointError(
            f"{name} has numbers up to {most:g}, beyond {torch.finfo(dtype).max:g}; take another dtype"
        )
    return found


def refuse_misfits(weights: Weights | GGUF, expected: Expected, what: str, optional: Collection[str]) -> None:
    """Refuse missing, surplus and misshapen tensors; an `optional` name that ends with * is a beginning.

    Raises CheckpointError listing them.
    """
    missing = [name for name in expected if name not in weights]
    known, begun = {*expected, *optional}, tuple(name[:-1] for name in optional if name[-1] == "*")
    surplus = [name for name in weights.listed() if name not in known and not name.startswith(begun)]
    lists = (("missing", missing), ("surplus", surplus))
    named = "; ".join(f"{kind}: {listed(names)}" for kind, names in lists if names)
    if named:
        raise CheckpointError(f"{weights.directory} does not hold the tensors of {what}; {named}")
    sizes = ((name, weights.shape(name), shape) for name, shape in expected.items() if shape is not None)
    wrong = [f"{name} is {list(found)}, not {list(wanted)}" for name, found, wanted in sizes if found != tuple(wanted)]
    if wrong:
        raise CheckpointError(f"{weights.directory} does not fit {what}: {listed(wrong)}")


def _files(directory: Path) -> tuple[list[Path], dict[str, Path]]:
    """The files with tensors, and the one that an index names for each tensor."""
    if directory.is_file():
        return [directory], {}
    index = inside(directory / INDEX, CheckpointError)
    if index.is_file():
        data = read_json(index, CheckpointError)
        said = data.get("weight_map") if isinstance(data, dict) else None
        if not isinstance(said, dict) or not said:
            raise CheckpointError(f"{index} is no index of weights: it has no table weight_map; copy it again")
        known: dict[str, Path] = {}
        for name in said.values():
            if not isinstance(name, str) or name not in known:
                known[name] = named_in(directory, name, str(index), CheckpointError)
        absent = [name for name, file in known.items() if not file.is_file()]
        if absent:
            raise CheckpointError(f"{directory} lacks {listed(absent)}, which {INDEX} names; copy them again")
        if (directory / FILE).is_file() and FILE not in known:
            raise CheckpointError(
                f"{directory} holds {FILE} and an index of other files; remove what is not the model's"
            )
        return [known[name] for name in sorted(known)], {name: known[file] for name, file in said.items()}
    files = [inside(file, CheckpointError) for file in sorted(directory.glob("*.safetensors"))]
    files = [file for file in files if file.is_file()]
    if directory / FILE in files:
        return [directory / FILE], {}
    if files:
        return files, {}
    pickles = sorted(path.name for pattern in PICKLES for path in directory.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{directory} holds pickled weights only ({listed(pickles)}), which can run any code when opened; "
            "where you trust them, write them as safetensors with transformers' from_pretrained and save_pretrained"
        )
    raise CheckpointError(f"{directory} holds no weights: there is no {FILE}")


def holds_weights(directory: Path) -> bool:
    """Whether the files of a model's tensors are there, every one."""
    try:
        _files(directory)
    except CheckpointError:
        return False
    return True


def opened(file: Path) -> Any:
    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        with file.open("rb") as start:
            pointer = start.read(20).startswith(b"version https://git")
        remedy = "it is a pointer; fetch it with `git lfs pull`" if pointer else "copy it again"
        raise CheckpointError(f"{file} is truncated or no safetensors file ({error}); {remedy}") from None


def listed(names: Collection[str]) -> str:
    """Names for a message, the first ten of many."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(islice(names, 10)) + more


def write_tensors(
    directory: Path,
    tensors: Iterable[tuple[str, Tensor]],
    shard_nbytes: int = SHARD_NBYTES,
    written: Callable[[], None] = lambda: None,
) -> None:
    """Write tensors in files of at most `shard_nbytes`, or one tensor; `written` is called after each file."""
    shards: list[tuple[Path, list[str]]] = []
    total = 0
    for shard in _shards(tensors, shard_nbytes):
        file = directory / f"model-{len(shards) + 1:05d}.safetensors"
        save_file(shard, str(file), metadata={"format": "pt"})
        total += sum(tensor.nbytes for tensor in shard.values())
        shards.append((file, list(shard)))
        shard.clear()  # this loop still has it while the next is read
        written()
    if len(shards) == 1:
        shards[0][0].rename(directory / FILE)
        return
    weight_map: dict[str, str] = {}
    for i, (file, names) in enumerate(shards):
        final = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        file.rename(directory / final)
        weight_map |= dict.fromkeys(names, final)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(tensors: Iterable[tuple[str, Tensor]], shard_nbytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    nbytes = 0
    for name, tensor in tensors:
        if shard and nbytes + tensor.nbytes > shard_nbytes:
            yield shard
            shard, nbytes = {}, 0
        shard[name] = tensor.clone(memory_format=torch.contiguous_format) if _is_view(tensor) else tensor.contiguous()
        nbytes += tensor.nbytes
    yield shard


def _is_view(tensor: Tensor) -> bool:
    """Whether others lie in the same storage, as in a model that was laid out for decoding."""
    return tensor.untyped_storage().nbytes() != tensor.nbytes
