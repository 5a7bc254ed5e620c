"""What the tests of surgery do to models in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec
from anyformer.surgery import Anatomy, CarriedTensor, Layer, Operation, as_they_stand, rows_in_order


def operated(
    spec: ModelSpec, donor: Transformer, layers: Sequence[Layer | None] | None = None
) -> tuple[Transformer, Mapping[str, CarriedTensor]]:
    """Return a model that begins with another's weights, and what is carried over."""
    model, given = build(spec, seed=1), donor.spec.vocab_size
    chosen = as_they_stand(spec.n_layers, donor.spec.n_layers) if layers is None else layers
    rows = rows_in_order(spec.vocab_size, given) if spec.vocab_size != given else None
    state = model.state_dict()
    done = Operation(Anatomy(spec), Anatomy(donor.spec), state, donor.state_dict(), {"stack": chosen}, rows).done()
    model.load_state_dict({name: each.tensor for name, each in done.items()}, strict=False)
    return model, done
