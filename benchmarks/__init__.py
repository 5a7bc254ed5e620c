"""Speed and memory beside transformers' Llama of the same shape and the same weights."""
