"""A small Llama on a text of yours, trained, judged, kept and heard: python train_tiny.py TEXT OUT N_PARAMS TOKENS PROMPT."""

import sys

import anyformer as af

if len(sys.argv) != 6:
    sys.exit(__doc__)
text, out, params, tokens, prompt = sys.argv[1:]
size = {"n_params": float(params), "tokens": float(tokens), "vocab_size": 320, "seq_len": 128, "batch_tokens": 2048}
print(af.train("llama2", text, out=out, lr=2e-3, **size))
print(prompt + af.generate(out, None, prompt, max_new_tokens=60, temperature=0.8, seed=1))
