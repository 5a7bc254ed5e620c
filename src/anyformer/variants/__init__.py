"""Architectures as changes of others: `llama2+norm=LayerNorm`. Each change is a row of a diff, transplanted, or a field."""
