"""How processes share a run, as data: copies of the model, each over some processes, and rows, each over some.

Of those that share weights, `ep` hold different experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from anyformer.axes import axes_of
from anyformer.errors import UsageError

AXES = {
    "dp": "copies of the model, each on rows of its own",
    "fsdp": "processes that share one copy's weights, gradients and moments (FSDP2), each on rows of its own",
    "tp": "processes that share each layer's heads, features and vocabulary (tensor parallelism), all on the same rows",
    "ep": "processes of one fsdp · cp that share experts, which tokens travel to (expert parallelism)",
    "cp": "processes that share rows, each a stretch of the tokens (context parallelism), and weights as under fsdp",
    "pp": "stages of a pipeline, each of some of the layers; a batch goes through in parts (--micro-tokens)",
    "zero": "ZeRO's stage under fsdp: 3 gathers weights for each pass of a layer, 2 keeps them from forward to backward",
}
ELSEWHERE = {"vp": "a pipeline's stretches"}
AUTO = "auto"


@dataclass(frozen=True)
class Mesh:
    """pp · dp · fsdp · tp · cp processes, those of one tp, one ep or one cp next to each other, those of one stage too.

    Of fsdp · cp, ep hold different experts. Those of one cp share the weights out as those of one fsdp do.

    Rajbhandari et al. 2019, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277; Shoeybi et al. 2019, arXiv:1909.08053;
    Lepikhin et al. 2020, arXiv:2006.16668; Llama 3, arXiv:2407.21783, section 3.3.2; Huang et al. 2019, arXiv:1811.06965.
    """

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    ep: int = 1
    cp: int = 1
    zero: Literal[2, 3] = 3
    pp: int = 1

    @property
    def processes(self) -> int:
        """How many there must be."""
        return self.pp * self.dp * self.fsdp * self.tp * self.cp

    @property
    def shards(self) -> int:
        """Processes that FSDP2 shares weights out over, those with a stretch of the same rows among them."""
        return self.fsdp * self.cp

    @property
    def copy(self) -> int:
        """Processes that share one copy of the model."""
        return self.pp * self.shards * self.tp

    def __str__(self) -> str:
        said = [f"{axis}={n}" for axis in ("dp", "fsdp", "tp", "ep", "cp", "pp") if (n := getattr(self, axis)) > 1]
        return ",".join((said or ["dp=1"]) + ["zero=2"] * (self.zero == 2 and self.shards > 1))


def parse(text: str, processes: int) -> Mesh:
    """The mesh that "dp=2,fsdp=4" says: an axis left out is 1, dp what remains. Raises UsageError."""
    for name in ELSEWHERE.keys() & {item.partition("=")[0].strip() for item in text.split(",")}:
        raise UsageError(
            f"--mesh {text!r}: {name} ({ELSEWHERE[name]}) can be planned and not run yet; runs have {', '.join(AXES)}"
        )
    given = axes_of(text, AXES, (2, 3), "dp=2,fsdp=4, or auto")
    mesh = Mesh(**given)  # type: ignore[arg-type]
    if "dp" not in given and processes % mesh.processes == 0:
        mesh = replace(mesh, dp=processes // mesh.processes)
    if mesh.ep > 1 and (mesh.tp > 1 or mesh.shards % mesh.ep):
        why = "tp = 1 for now" if mesh.tp > 1 else f"an fsdp · cp that it divides, and that is {mesh.shards}"
        raise UsageError(
            f"--mesh {text!r}: ep = {mesh.ep} spreads experts over processes that share weights, and needs {why}; "
            f"write fsdp={mesh.ep},ep={mesh.ep}"
        )
    if mesh.processes != processes:
        more = "".join(f" · {axis} {n}" for axis in ("tp", "cp", "pp") if (n := getattr(mesh, axis)) > 1)
        raise UsageError(
            f"--mesh {text!r}: dp {mesh.dp} · fsdp {mesh.fsdp}{more} is {mesh.processes} processes, and there "
            f"{'is 1' if processes == 1 else f'are {processes}'}; start so many (--nproc {mesh.processes}, or torchrun's), "
            "or change the mesh"
        )
    return mesh
