"""Ways to train deep stacks: ReZero (arXiv:2003.04887), Fixup (arXiv:1901.09321), DeepNorm (arXiv:2203.00555)."""

from __future__ import annotations

from anyformer.layers import AddByDepthSpec, ByRole, ChainSpec, GainSpec, Normal, ShiftSpec, Xavier
from anyformer.spec import BranchSpec, MixerSpec, SublayerSpec


def rezero(*mixers: MixerSpec) -> SublayerSpec:
    """X + Σ α mixer(x), without norms; each α is one learned number that starts from 0, so that x passes unchanged."""
    return SublayerSpec(branches=tuple(BranchSpec(mixer=mixer, norm_out=GainSpec(start=0.0)) for mixer in mixers))


def fixup(mixer: MixerSpec) -> SublayerSpec:
    """X + gain · mixer(x + shift) + shift', without norms; gain starts from 1, shifts from 0 (its rule 3).

    A mixer's own biases stand for the shifts between its matrices. Start the model from `fixup_start`.
    """
    after = ChainSpec(maps=(GainSpec(), ShiftSpec()))
    return SublayerSpec(branches=(BranchSpec(mixer=mixer, norm_in=ShiftSpec(), norm_out=after),))


def fixup_start(scale: float = 0.02) -> ByRole:
    """Its rules 1 and 2: branches end in zeros, the matrix before is divided by √(number of branches).

    The rule divides by n^(1 / (2 m - 2)) for m matrices a branch: attention's values and output, a feed-forward's two.
    """
    start = Normal(scale=scale)
    return ByRole(table=start, matrix=start, inner=Normal(scale=scale, depth_power=-0.5), output=Normal(scale=0.0))


def deep_norm() -> AddByDepthSpec:
    """The residual of a post-norm stack of attention and feed-forward: norm(α x + mixer(x)), α = (2 n_layers)^(1/4).

    The depth is that of the stack, whatever it is resized to.
    """
    return AddByDepthSpec(power=0.25)


def deep_norm_start() -> ByRole:
    """Xavier's distribution, times β = (8 n_layers)^(-1/4) for values, outputs and feed-forwards (figure 2)."""
    scaled = Xavier(gain=4**-0.25, depth_power=-0.25)  # two branches a layer
    return ByRole(matrix=Xavier(), inner=scaled, output=scaled)
