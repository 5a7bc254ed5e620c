"""Multi-head latent attention as a user would add it: data that counts and says what decoding keeps, no module yet."""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.layers import LinearSpec, ProjectionSpec, RMSNormSpec, RotarySpec
from anyformer.spec import Count, MapSpec, Placed, Site, Sizes, Width


class LatentSpec(ProjectionSpec):
    """Keys and values from one narrow vector a token: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1."""

    n_heads: Count
    query_rank: Width | None
    rank: Width
    plain_dim: Width  # of each head's query and key, without positions
    rotary_dim: Width  # of each head's query, and of the one key that all heads share
    value_dim: Width
    rotary: RotarySpec
    norm: MapSpec = RMSNormSpec(eps=1e-6)

    def sizes(self, site: Site) -> tuple[int, int, int]:
        return self.n_heads, self.plain_dim + self.rotary_dim, self.value_dim

    def parts(self, site: Site) -> Mapping[str, Placed]:
        n_heads, width, value = self.sizes(site)
        query = LinearSpec(d_out=Width(n_heads * width))
        narrow = self.query_rank
        return {
            "q_down": (LinearSpec(d_out=narrow), site) if narrow else None,
            "q_norm": (self.norm, site.at(narrow)) if narrow else None,
            "q": (query, site.at(narrow) if narrow else site),
            "kv_down": (LinearSpec(d_out=Width(self.rank + self.rotary_dim)), site),
            "kv_norm": (self.norm, site.at(self.rank)),
            "kv": (LinearSpec(d_out=Width(n_heads * (self.plain_dim + value))), site.at(self.rank)),
            "o": (LinearSpec(role="output"), site.at(n_heads * value)),
        }

    def cache_shapes(self, site: Site) -> Mapping[str, tuple[int, ...]]:
        return {"latent": (self.rank,), "key": (self.rotary_dim,)}

    def resized(self, to: Sizes) -> LatentSpec:
        n_heads, _, _ = to.heads(self.n_heads, self.n_heads, self.plain_dim)
        return super().resized(to).but(n_heads=Count(n_heads))
