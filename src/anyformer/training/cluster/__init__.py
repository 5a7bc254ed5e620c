"""One run in several processes, on PyTorch's engine: torchrun starts them, its process groups and FSDP2 join their work."""
