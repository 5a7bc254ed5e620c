"""What a server counts, in the text form that Prometheus reads (version 0.0.4)."""

from __future__ import annotations

import bisect
from collections import Counter

BUCKETS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # seconds


class ServerMetrics:
    """Counts of one server; all are kept in the thread of its event loop."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.tokens: Counter[str] = (
            Counter()
        )  # "prompt", "completion"; "cached": those of prompts that were read with an earlier one
        self.hung_up = 0
        self._within = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests[path, status] += 1
        self._within[bisect.bisect_left(BUCKETS, seconds)] += 1
        self._seconds += seconds

    def text(self, growing: int, waiting: int) -> str:
        """All counts, and how many texts grow and wait now."""
        total, lines = 0, list[str]()

        def of(name: str, kind: str, what: str, *values: tuple[str, float]) -> None:
            lines.extend((f"# HELP anyformer_{name} {what}", f"# TYPE anyformer_{name} {kind}"))
            lines.extend(f"anyformer_{name}{labels} {value}" for labels, value in values)

        by = [(f'{{path="{path}",status="{status}"}}', n) for (path, status), n in sorted(self.requests.items())]
        of("requests_total", "counter", "Requests answered.", *by)
        of("hung_up_total", "counter", "Requests whose client was gone before the answer.", ("", self.hung_up))
        of(
            "tokens_total",
            "counter",
            "Tokens.",
            *((f'{{kind="{kind}"}}', self.tokens[kind]) for kind in ("prompt", "cached", "completion")),
        )
        of("growing", "gauge", "Texts in the batch.", ("", growing))
        of("waiting", "gauge", "Texts in the queue.", ("", waiting))
        buckets = []
        for limit, n in zip((*map(str, BUCKETS), "+Inf"), self._within, strict=True):
            total += n
            buckets.append((f'_bucket{{le="{limit}"}}', total))
        of(
            "request_seconds",
            "histogram",
            "Seconds to the end of an answer.",
            *buckets,
            ("_sum", self._seconds),
            ("_count", total),
        )
        return "\n".join(lines) + "\n"
