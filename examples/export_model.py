"""A PyTorch model as a file for gpipe-rs, and its trained weights back in Python:

    python examples/export_model.py model.pt2
    gpipe-rs train --model model.pt2 --loss cross-entropy --out runs/mine
    gpipe-rs export --run runs/mine -o weights.safetensors
    python examples/export_model.py model.pt2 weights.safetensors
"""
import sys
import torch
from torch import nn
from torch.export import Dim, export, save


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


model, ids = Model().train(), torch.zeros(2, 64, dtype=torch.int64)
if len(sys.argv) == 2:
    # As many samples as a micro-batch may have.
    batch = Dim("batch", min=1, max=4096)
    save(export(model, (ids,), dynamic_shapes=({0: batch},)), sys.argv[1])
else:
    from safetensors.torch import load_file

    model.load_state_dict(load_file(sys.argv[2]), strict=True)
    print(model.eval()(ids).shape)
