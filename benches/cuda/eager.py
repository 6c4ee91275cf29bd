"""GPT-2 in PyTorch eager, bf16, as `gpt2.rs` has it: one JSON object on the output."""

import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, CONTEXT, WIDTH, HEADS, BLOCKS, BATCH = 50257, 1024, 768, 12, 12, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.c_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, time_, width = x.shape
        qkv = self.c_attn(self.ln_1(x)).view(batch, time_, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(batch, time_, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.ln_f = nn.LayerNorm(WIDTH)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def timed(model, optimizer, micro_batches):
    """Steps of this many micro-batches, whose gradients are accumulated; all of it in ms."""
    device = next(model.parameters()).device
    x = (torch.arange(BATCH * CONTEXT, device=device) * 7919 % VOCAB).view(BATCH, CONTEXT)
    y = x.roll(-1, 1)

    def step():
        losses = []
        for part, target in zip(x.chunk(micro_batches), y.chunk(micro_batches)):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(part).view(-1, VOCAB), target.reshape(-1))
            (loss / micro_batches).backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).mean().item()

    times = []
    for run in range(25):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if run >= 5:
            times.append((time.perf_counter() - begin) * 1e3)
    times.sort()
    return {
        "median_ms": times[len(times) // 2],
        "least_ms": times[0],
        "most_ms": times[-1],
        "runs": len(times),
    }


def main():
    if not torch.cuda.is_available():
        print(json.dumps({"skipped": "PyTorch sees no CUDA device"}))
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    model = Gpt2().to("cuda:0")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    print(json.dumps({
        **timed(model, optimizer, 1),
        "four_micro_batches": timed(model, optimizer, 4),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0),
    }))


if __name__ == "__main__":
    sys.exit(main())
