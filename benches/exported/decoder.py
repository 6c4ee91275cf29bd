"""Writes an exported decoder of any size, without holding its weights: they are pages of a file.

    python decoder.py FILE.pt2 [--width 2048] [--blocks 29] [--vocabulary 16384] [--length 16]
"""
import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export, save


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed, self.positions = nn.Embedding(a.vocabulary, a.width), nn.Embedding(a.length, a.width)
        self.blocks = nn.ModuleList(Block(a.width) for _ in range(a.blocks))
        self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(a.width, a.vocabulary, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def fill(model, folder):
    """Small random numbers, which are pages of files: a storage each, as parameters usually have."""
    every = [(m, n) for m in model.modules() for n, p in m._parameters.items() if p is not None]
    for number, (module, name) in enumerate(every):
        shape, path = module._parameters[name].shape, os.path.join(folder, str(number))
        own = torch.from_file(path, shared=True, size=shape.numel(), dtype=torch.float32).view(shape)
        os.remove(path)
        if isinstance(module, nn.LayerNorm):
            own.fill_(1.0 if name == "weight" else 0.0)
        elif name == "bias":
            own.zero_()
        else:
            own.normal_(0.0, 0.02)
        module._parameters[name] = nn.Parameter(own)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("file")
    for name, number in (("width", 2048), ("blocks", 29), ("vocabulary", 16384), ("length", 16)):
        a.add_argument(f"--{name}", type=int, default=number)
    a = a.parse_args()
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Decoder(a).train()
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(a.file))) as folder:
        fill(model, folder)
        ids = torch.randint(0, a.vocabulary, (2, a.length))
        program = export(model, (ids,), dynamic_shapes=({0: Dim("batch", min=1, max=4096)},))
        save(program, a.file)
    print(sum(p.numel() for p in model.parameters()), "parameters,", os.path.getsize(a.file), "bytes")


main()
