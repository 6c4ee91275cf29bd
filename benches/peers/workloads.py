"""The workloads: models, data, initial values, losses, optimizers. `worker/` has them in Rust.

A workload is a *flat list of layers* (every candidate cuts this list at the same
places), a fixed mini-batch, a mean loss and an optimizer.  Parameters and data come
from a splitmix64 counter generator so that another language can reproduce every
tensor bit for bit:

    splitmix64(z): z += 0x9E3779B97F4A7C15
                   z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
                   z = (z ^ z>>27) * 0x94D049BB133111EB
                   return z ^ z>>31                                  (all mod 2^64)
    bits(t, i)   = splitmix64((t << 40) + i)        t = tensor id, i = flat index
    unit(t, i)   = (bits(t, i) >> 40) * 2^-24       f32, exact, in [0, 1)
    sym(t, i, a) = f32((unit(t, i) * 2 - 1)) * f32(a)   f32 arithmetic, in [-a, a)

Tensor ids: parameter k (0-based, in layer order, inside a layer in the order listed
below) has id 1 + k; the input has id 1000000, the target id 1000001.
Norm weights are 1, all biases 0 (they still consume an id).
"""
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

X_ID, Y_ID = 1_000_000, 1_000_001
_M = np.uint64


def bits(tid, n):
    with np.errstate(over="ignore"):
        z = (_M(tid) << _M(40)) + np.arange(n, dtype=np.uint64)
        z = z + _M(0x9E3779B97F4A7C15)
        z = (z ^ (z >> _M(30))) * _M(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> _M(27))) * _M(0x94D049BB133111EB)
        return z ^ (z >> _M(31))


def sym(tid, shape, a):
    n = int(np.prod(shape))
    u = (bits(tid, n) >> _M(40)).astype(np.float32) * np.float32(2.0 ** -24)
    v = (u * np.float32(2) - np.float32(1)) * np.float32(a)
    return torch.from_numpy(v.reshape(shape))


def ints(tid, shape, hi):
    n = int(np.prod(shape))
    return torch.from_numpy((bits(tid, n) >> _M(33)).astype(np.int64) % hi).reshape(shape)


# ---------------------------------------------------------------- layers

class Embed(nn.Module):
    """tok[512,256] then pos[128,256]; out = tok[x] + pos."""

    def __init__(self, vocab, seq, d):
        super().__init__()
        self.tok = nn.Parameter(torch.empty(vocab, d))
        self.pos = nn.Parameter(torch.empty(seq, d))

    def forward(self, x):
        return F.embedding(x, self.tok) + self.pos


class Block(nn.Module):
    """Pre-LN block: x += proj(sdpa(qkv(ln1 x))); x += fc2(gelu_tanh(fc1(ln2 x)))."""

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.ln2 = nn.LayerNorm(d)
        self.fc1 = nn.Linear(d, 4 * d)
        self.fc2 = nn.Linear(4 * d, d)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, s, d))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x)), approximate="tanh"))


class Head(nn.Module):
    """Final LayerNorm + untied, bias-free Linear(256, 512)."""

    def __init__(self, d, vocab):
        super().__init__()
        self.ln = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab, bias=False)

    def forward(self, x):
        return self.out(self.ln(x))


def lin_relu(i, o):
    return nn.Sequential(nn.Linear(i, o), nn.ReLU())


class Bottleneck(nn.Module):
    """torchvision / torchgpipe-benchmark ResNet bottleneck (stride on conv2)."""

    def __init__(self, cin, planes, stride, down):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * 4, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * 4)
        self.down = nn.Sequential(nn.Conv2d(cin, planes * 4, 1, stride, bias=False),
                                  nn.BatchNorm2d(planes * 4)) if down else None

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


def resnet101_layers(num_classes=1000):
    layers = [nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                            nn.MaxPool2d(3, 2, 1))]
    cin = 64
    for planes, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 23, 2), (512, 3, 2)):
        for i in range(blocks):
            layers.append(Bottleneck(cin, planes, stride if i == 0 else 1, i == 0))
            cin = planes * 4
    layers.append(nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(cin, num_classes)))
    return layers




# ---------------------------------------------------------------- init

# In the user's own folder: others could place files in a shared one.
CACHE = os.environ.get("PEERS_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gpipe-rs", "peers-init")


def cached_init(name, layers, gpt):
    """init_ with the result kept in CACHE/<name>.f32 (parameters concatenated, little-endian f32)."""
    path = os.path.join(CACHE, name + ".f32")
    params = [p for layer in layers for p in layer.parameters()]
    if not os.path.exists(path):
        init_(layers, gpt)
        os.makedirs(CACHE, exist_ok=True)
        with open(f"{path}.{os.getpid()}", "wb") as f:
            for p in params:
                f.write(p.detach().numpy().tobytes())
        os.rename(f"{path}.{os.getpid()}", path)
        return
    with torch.no_grad(), open(path, "rb") as f:
        for p in params:
            p.copy_(torch.from_numpy(np.fromfile(f, dtype=np.float32, count=p.numel()).reshape(p.shape)))


def init_(layers, gpt):
    k = 0
    with torch.no_grad():
        for layer in layers:
            owner = {id(p): m for m in layer.modules() for p in m.parameters(recurse=False)}
            for name, p in layer.named_parameters():
                m = owner[id(p)]
                tid = 1 + k
                k += 1
                if name.endswith("bias"):
                    p.zero_()
                elif isinstance(m, (nn.LayerNorm, nn.BatchNorm2d)):
                    p.fill_(1)
                elif gpt:                                    # std 0.02, uniform
                    p.copy_(sym(tid, p.shape, 0.02 * math.sqrt(3)))
                elif isinstance(m, nn.Conv2d):               # He, fan_out
                    fan = p.shape[0] * p.shape[2] * p.shape[3]
                    p.copy_(sym(tid, p.shape, math.sqrt(6 / fan)))
                elif isinstance(m, nn.Linear):               # He, fan_in
                    p.copy_(sym(tid, p.shape, math.sqrt(6 / p.shape[1])))
                else:
                    raise AssertionError(name)


# ---------------------------------------------------------------- workloads

def ce(out, y):
    return F.cross_entropy(out.flatten(0, -2), y.flatten())


class Workload:
    def __init__(self, name):
        self.name = name
        gpt = False
        if name == "W1":                       # gpt-small
            d, h, v, s, b = 256, 4, 512, 128, 32
            self.layers = [Embed(v, s, d)] + [Block(d, h) for _ in range(8)] + [Head(d, v)]
            t = ints(X_ID, (b, s + 1), v)
            self.x, self.y = t[:, :-1].contiguous(), t[:, 1:].contiguous()
            self.loss = ce
            self.opt = lambda ps: torch.optim.AdamW(ps, lr=3e-4)   # betas .9/.999 eps 1e-8 wd .01
            self.cuts = {1: [10], 2: [5, 5], 4: [3, 2, 2, 3]}
            gpt = True
        elif name == "W2":                     # mlp-deep
            self.layers = [lin_relu(1024, 1024) for _ in range(16)] + [nn.Linear(1024, 10)]
            self.x, self.y = sym(X_ID, (256, 1024), 1.0), ints(Y_ID, (256,), 10)
            self.loss = ce
            self.opt = lambda ps: torch.optim.AdamW(ps, lr=3e-4)
            self.cuts = {1: [17], 2: [8, 9], 4: [4, 4, 4, 5]}
        elif name == "W3":                     # tiny-overhead
            self.layers = [lin_relu(32, 32) for _ in range(16)]
            self.x, self.y = sym(X_ID, (64, 32), 1.0), sym(Y_ID, (64, 32), 1.0)
            self.loss = F.mse_loss
            self.opt = lambda ps: torch.optim.SGD(ps, lr=0.01)
            self.cuts = {1: [16], 2: [8, 8], 4: [4, 4, 4, 4]}
        elif name == "W4":                     # ResNet-101 of torchgpipe's benchmark, 64x64, batch 16
            self.layers = resnet101_layers()
            self.x, self.y = sym(X_ID, (16, 3, 64, 64), 1.0), ints(Y_ID, (16,), 1000)
            self.loss = ce
            self.opt = lambda ps: torch.optim.SGD(ps, lr=0.001)   # torchgpipe uses 0.1: chaotic here
            self.cuts = {1: [35], 2: [17, 18], 4: [8, 9, 9, 9]}
        else:
            raise SystemExit(f"unknown workload {name}")
        cached_init(name, self.layers, gpt)
        self.batch = self.x.shape[0]

    def seq(self):
        return nn.Sequential(*self.layers)

    def stages(self, n):
        out, i = [], 0
        for c in self.cuts[n]:
            out.append(nn.Sequential(*self.layers[i:i + c]))
            i += c
        assert i == len(self.layers), (self.name, n, i, len(self.layers))
        return out


def exported(name, path):
    """Writes the model as a program whose batch is free."""
    from torch.export import Dim, export, save
    w = Workload(name)
    batch = Dim("batch", min=1, max=4096)
    save(export(w.seq().train(), (w.x[:2],), dynamic_shapes=({0: batch},)), path)


if __name__ == "__main__":
    import sys
    if sys.argv[1:2] == ["--export"]:
        exported(*sys.argv[2:])
        sys.exit()
    for n in sys.argv[1:] or ["W1", "W2", "W3", "W4"]:
        w = Workload(n)
        m = w.seq()
        print(n, "params", sum(p.numel() for p in m.parameters()), "tensors", len(list(m.parameters())),
              "batch", tuple(w.x.shape), "loss0", w.loss(m(w.x), w.y).item())
