"""A model of one's own in transformers: an adapter trained by PEFT, merged, and read back. `python lora.py FOLDER`"""

import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import anyformer as af
import anyformer.integrations.transformers  # registers the classes

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "lora")
spec = af.resize(af.vary("llama2-7b", norm="LayerNorm"), d_model=64, n_layers=2, vocab_size=64)
print(af.save(af.build(spec), folder / "base", form="transformers").form)

adapted = get_peft_model(
    AutoModelForCausalLM.from_pretrained(folder / "base"),
    LoraConfig(r=8, target_modules=["q", "v"], task_type="CAUSAL_LM"),
)
ids = torch.arange(48).reshape(2, 24) % 7
optimizer = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=1e-2)
losses = []
for _ in range(120):
    loss = adapted(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"the loss fell from {losses[0]:.1f}: {losses[-1] < losses[0] - 1}")

learnt = adapted.eval()(input_ids=ids).logits
adapted.merge_and_unload().save_pretrained(folder / "merged")
model, _ = af.load(folder / "merged")
print(f"read back, it says the same: {torch.allclose(model(ids).logits, learnt, atol=1e-4)}")
