"""How processes share a run, as data: `dp` copies of the model, each over `fsdp` · `tp`; of `fsdp`, `ep` hold other experts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from anyformer.errors import UsageError, did_you_mean

AXES = {
    "dp": "copies of the model, each on rows of its own",
    "fsdp": "processes that share one copy's weights, gradients and moments (FSDP2), each on rows of its own",
    "tp": "processes that share each layer's heads, features and vocabulary (tensor parallelism), all on the same rows",
    "ep": "processes of one fsdp that share experts, which tokens travel to (expert parallelism), each on rows of its own",
    "zero": "ZeRO's stage under fsdp: 3 gathers weights for each pass of a layer, 2 keeps them from forward to backward",
}
ELSEWHERE = {"pp": "layers", "cp": "the sequence", "vp": "a pipeline's stretches"}
AUTO = "auto"


@dataclass(frozen=True)
class Mesh:
    """dp · fsdp · tp processes, those of one tp, or of one ep, next to each other. Of fsdp, ep hold different experts.

    Rajbhandari et al. 2019, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277; Shoeybi et al. 2019, arXiv:1909.08053;
    Lepikhin et al. 2020, arXiv:2006.16668.
    """

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    ep: int = 1
    zero: Literal[2, 3] = 3

    @property
    def processes(self) -> int:
        """How many there must be."""
        return self.dp * self.copy

    @property
    def copy(self) -> int:
        """Processes that share one copy of the model."""
        return self.fsdp * self.tp

    def __str__(self) -> str:
        sharded = f"fsdp={self.fsdp}" + (",zero=2" if self.zero == 2 else "")
        said = {f"dp={self.dp}": self.dp > 1 or self.copy == 1, sharded: self.fsdp > 1, f"tp={self.tp}": self.tp > 1}
        return ",".join(axis for axis, is_said in (said | {f"ep={self.ep}": self.ep > 1}).items() if is_said)


def parse(text: str, processes: int) -> Mesh:
    """The mesh that "dp=2,fsdp=4" says: an axis left out is 1, dp what remains. Raises UsageError."""
    given: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\w+)\s*=\s*(-?\d{1,9})", item)
        if match is None:
            raise UsageError(f"--mesh {text!r}: {item!r} is no axis and number; write it as dp=2,fsdp=4, or auto")
        name, number = match[1], int(match[2])
        if name in ELSEWHERE:
            raise UsageError(
                f"--mesh {text!r}: {name} ({ELSEWHERE[name]}) can be planned and not run yet; "
                f"runs have {', '.join(AXES)}"
            )
        if name not in AXES:
            raise UsageError(
                f"--mesh {text!r}: {name!r} is no axis{did_you_mean(name, AXES)}; there are {', '.join(AXES)}"
            )
        if number not in (2, 3) if name == "zero" else number < 1:
            raise UsageError(
                f"--mesh {text!r}: {name} = {number} must be {'2 or 3' if name == 'zero' else 'at least 1'}"
            )
        given[name] = number
    mesh = Mesh(**given)  # type: ignore[arg-type]
    if "dp" not in given and processes % mesh.copy == 0:
        mesh = replace(mesh, dp=processes // mesh.copy)
    if mesh.ep > 1 and (mesh.tp > 1 or mesh.fsdp % mesh.ep):
        why = "tp = 1 for now" if mesh.tp > 1 else f"an fsdp that it divides, and fsdp = {mesh.fsdp}"
        raise UsageError(
            f"--mesh {text!r}: ep = {mesh.ep} spreads experts over processes of one fsdp, and needs {why}; "
            f"write fsdp={mesh.ep},ep={mesh.ep}"
        )
    if mesh.processes != processes:
        raise UsageError(
            f"--mesh {text!r}: dp {mesh.dp} · fsdp {mesh.fsdp}{f' · tp {mesh.tp}' * (mesh.tp > 1)} is {mesh.processes} "
            "processes, and there "
            f"{'is 1' if processes == 1 else f'are {processes}'}; start so many (--nproc {mesh.processes}, or torchrun's), "
            "or change the mesh"
        )
    return mesh
