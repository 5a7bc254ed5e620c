"""Models as ONNX graphs, which run without PyTorch: a text's vectors and what the heads say of them, in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.disk.atomic import write_named
from anyformer.errors import SpecError, of_extra
from anyformer.layers import LSHAttentionSpec, MoESpec, NystromAttentionSpec
from anyformer.layers.embedding import n_segments
from anyformer.layers.recurrence import RecurrentSpec
from anyformer.model import Transformer
from anyformer.screen import silent
from anyformer.spec import ModelSpec

SUFFIX = ".onnx"
LEAST = 16, 2  # tokens (or the context, if it is shorter) and rows that the graph is traced with
REMEDY = "give a directory to write to, which holds any model"
MOST_NBYTES = 2**31 - 2**20  # of one file, which is a message of protobuf


class SavedGraph(NamedTuple):
    """An ONNX file that was written: what it asks for and what it answers, each [batch, token, …]."""

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path} is an ONNX graph: {', '.join(self.inputs)} → {', '.join(self.outputs)}"


class _Graph(nn.Module):
    """A model's pass as tensors in and tensors out."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """What the last norm gives [batch, token, width], then each head's answer."""
        out = self.model(input_ids, attention_mask, token_type_ids=token_type_ids)
        return (out.last_hidden_state, *out.outputs.values())


def refuse_graph(spec: ModelSpec) -> None:
    """Raise SpecError for a model whose pass is no graph of open batch and length."""
    if spec.encoder is not None:
        raise SpecError(
            "an ONNX graph is one pass over one text, and this model has an encoder and a decoder; convert an encoder"
        )
    lengths = next(spec.nested(RecurrentSpec, MoESpec, LSHAttentionSpec, NystromAttentionSpec), None)
    if lengths is not None:
        raise SpecError(
            f"a pass of {lengths.kind} depends on the number of tokens, so no ONNX graph holds it for any; {REMEDY}"
        )


def write_onnx(model: Transformer, target: Path) -> SavedGraph:
    """Write a model's whole pass as one file, in float32, which appears when it is whole; batch and length stay open.

    It asks for `input_ids`, an `attention_mask` of ones and zeros and, of a model with segments, `token_type_ids`, all int64
    [batch, token]; it answers `last_hidden_state`, then each head but those that are asked by name alone, `logits` where
    there is one. No cache. Raises SpecError for a model whose pass is no such graph, UsageError without the packages,
    RunFailed where writing fails.
    """
    spec = model.spec
    refuse_graph(spec)
    nbytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    if nbytes > MOST_NBYTES:
        raise SpecError(
            f"an ONNX file holds 2 GB at most, and the weights are {nbytes / 1e9:.1f} GB in float32; take a smaller model"
        )
    with of_extra("onnx", f"{target}: writing ONNX", "packages onnx and onnxscript"):
        import onnx  # noqa: F401  # pyright: ignore[reportMissingImports]
        import onnxscript  # noqa: F401  # pyright: ignore[reportMissingImports]
    from torch.export import Dim  # slow to import

    tokens, rows = min(LEAST[0], spec.context or LEAST[0]), LEAST[1]
    names = ["input_ids", "attention_mask"]
    if n_segments(spec) > 1:
        names.append("token_type_ids")
    answering = [head.name for head in spec.heads if not head.by_name]
    heads = ["logits"] if len(answering) == 1 else answering
    example = torch.ones(rows, tokens, dtype=torch.long)
    given = tuple(example.clone() for _ in names)
    shape: dict[int, Any] = {0: Dim("batch"), 1: Dim("token", max=spec.context) if spec.context else Dim("token")}
    with silent(), torch.no_grad():
        try:
            graph = torch.export.export(_Graph(model.float().eval()), given, dynamic_shapes=tuple(shape for _ in names))
            graph = graph.run_decompositions(
                {torch.ops.aten.cummax.default: _running_maximum, torch.ops.aten.argsort.stable: _order}
            )
            program = torch.onnx.export(
                graph, given, input_names=names, output_names=["last_hidden_state", *heads], dynamo=True
            )
        except Exception as error:  # whatever it is, it is the exporter's
            said = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise SpecError(f"PyTorch cannot make an ONNX graph of this model: {said}; {REMEDY}") from error
    assert program is not None
    sizes = [size for value in program.model_proto.graph.input for size in value.type.tensor_type.shape.dim]
    if not all(size.dim_param for size in sizes):
        raise SpecError(f"PyTorch makes an ONNX graph of this model for one batch and length alone; {REMEDY}")
    write_named(target, program.model_proto.SerializeToString())
    return SavedGraph(target, tuple(names), ("last_hidden_state", *heads))


def _running_maximum(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """`torch.cummax` of [row, token] for tokens, for which ONNX has no operator, without saying where each maximum is."""
    earlier = torch.ones(x.shape[dim], x.shape[dim], dtype=torch.bool, device=x.device).tril()
    return torch.where(earlier, x[:, None], torch.iinfo(x.dtype).min).amax(-1), torch.zeros_like(x)


def _order(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    """`torch.argsort` as the TopK of all, which ONNX has: it puts the earlier of equal numbers first, as a stable order does."""
    return x.topk(x.shape[dim], dim, largest=descending).indices
