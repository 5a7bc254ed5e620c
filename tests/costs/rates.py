"""Rates of a machine that nobody has: every product at 100 GFLOP/s, everything else by round numbers."""

from anyformer.costs.hardware.rates import Grid, Rates

NANO = 1e-9
RATES = Rates(
    products={"float32": Grid((1, 1024), (1024,), (1024,), (1e-10, 1e-11))},
    attention={"float32": {"forward": {"64": ((1.0, 2e-11),)}, "backward": {"64": ((1.0, 3e-11),)}}},
    others=dict.fromkeys(("mul", "_softmax", "clone"), ((1.0, NANO / 4),)),
    reading=((1e6, 2e10), (1e9, 1e10)),
    copying=((1e6, 2e10), (1e9, 1e10)),
    update_seconds=3 * NANO,
    one_query=((64.0, NANO),),
    overhead_seconds={"forward": 1e-5, "training": 4e-5},
    pass_seconds={"forward": 1e-4, "training": 4e-4},
    asynchronous=False,
)
