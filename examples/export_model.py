"""A PyTorch model as a file for gpipe-rs, and its trained weights back in Python:

    python examples/export_model.py model.pt2
    gpipe-rs train --model model.pt2 --loss cross-entropy --out runs/mine
    gpipe-rs export --run runs/mine -o weights.safetensors
    python examples/export_model.py model.pt2 weights.safetensors

`check_gradients` is for any model: copy it.
"""
import copy
import sys
import torch
from torch import nn
from torch.export import Dim, export, save
from torch.utils._pytree import tree_leaves


class Model(nn.Module):
    """Tells the next token of a text; any other module will do."""

    def __init__(self, vocabulary=128, width=64, context=64):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(4)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embed(ids) + self.positions.weight
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(x)


def gradients(module, inputs):
    """The gradients of a random sum of the outputs, by parameter; the module stays as it was."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    kept = [(p, p.grad) for p in parameters.values()]
    buffers = [(b, b.clone()) for b in module.buffers()]
    torch.manual_seed(0)
    for p, _ in kept:
        p.grad = None
    outputs = [x for x in tree_leaves(module(*inputs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    torch.manual_seed(1)
    sum((x * torch.randn_like(x)).sum() for x in outputs).backward()
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
    with torch.no_grad():
        for p, grad in kept:
            p.grad = grad
        for buffer, before in buffers:
            buffer.copy_(before)
    return found


def check_gradients(program, model, inputs, tolerance=1e-3):
    """Compares one backward pass of an exported program with the model's own.

    torch.export records the forward alone: the backward of a torch.autograd.Function, tensor hooks and
    backward hooks of modules are not in the file, and it would train with other gradients.
    """
    wanted = gradients(model, inputs)
    # A copy has no hooks on its parameters.
    found = gradients(copy.deepcopy(program.module()), inputs)
    norms = {name: grad.norm().item() for name, grad in wanted.items()}
    # A gradient that is zero up to rounding is compared with the others.
    least = 1e-3 * max(norms.values(), default=0.0)
    other = [name for name, norm in norms.items()
             if not (found[name] - wanted[name]).norm().item() <= tolerance * max(norm, least)]
    if other:
        raise RuntimeError(
            "the exported program has other gradients than the model for " + ", ".join(other) + ": "
            "torch.export records the forward alone, not the backward of a torch.autograd.Function nor "
            "hooks; write it with PyTorch's operators, such as x + (x.round() - x).detach() for a rounding "
            "whose gradient passes straight through"
        )


def main():
    model, ids = Model().train(), torch.zeros(2, 64, dtype=torch.int64)
    if len(sys.argv) == 2:
        # Micro-batches of two samples or more.
        program = export(model, (ids,), dynamic_shapes=({0: Dim.AUTO},))
        check_gradients(program, model, (ids,))
        save(program, sys.argv[1])
    else:
        from safetensors.torch import load_file

        model.load_state_dict(load_file(sys.argv[2]), strict=True)
        print(model.eval()(ids).shape)


if __name__ == "__main__":
    main()
