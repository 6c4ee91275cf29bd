"""PyTorch's DataLoader as a candidate: each workload in several forms, of which the fastest counts."""
import glob
import os
import struct
import time

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset
from torch.utils.data import get_worker_info

from data import BYTES, TOKENS
from measuring import arguments, private, run, slow_step

what, form, workers, folder, seconds = arguments()
torch.set_num_threads(1)
if form == "main":
    workers = 0
several = {"num_workers": workers, "prefetch_factor": 2 if workers else None, "persistent_workers": workers > 0}


class Images(IterableDataset):
    """PyTorch reads no TFRecords: frames without checksums, and the one feature found by its length.

    That is less than the others do, and as fast as Python gets.
    """

    def __iter__(self):
        info = get_worker_info()
        number, count = (info.id, info.num_workers) if info else (0, 1)
        while True:
            for path in sorted(glob.glob(os.path.join(folder, "image-*")))[number::count]:
                with open(path, "rb") as file:
                    while header := file.read(12):
                        record = file.read(struct.unpack("<Q", header[:8])[0] + 4)
                        # A list of bytes with one value of this length.
                        start = record.index(b"\x0a\x80\x98\x09") + 4
                        image = torch.frombuffer(bytearray(record[start:start + BYTES]), dtype=torch.uint8)
                        yield (image.float() / 255 - 0.45) / 0.225


class Windows(Dataset):
    def __init__(self):
        self.tokens = np.memmap(os.path.join(folder, "tokens.u16.bin"), np.uint16, "r")

    def __len__(self):
        return 1 << 40

    def __getitem__(self, number):
        start = np.random.randint(0, TOKENS - 513)
        window = torch.from_numpy(self.tokens[start:start + 513].astype(np.int64))
        return window[:-1], window[1:]


class WindowsAtOnce(Windows):
    def __getitems__(self, numbers):
        starts = np.random.randint(0, TOKENS - 513, len(numbers))
        places = starts[:, None] + np.arange(513)[None]
        window = torch.from_numpy(self.tokens[places].astype(np.int64))
        return [(window[:, :-1], window[:, 1:])]


class Slow(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, number):
        time.sleep(0.02)
        return number


def one(batch):
    return batch[0]


def rows():
    held = TensorDataset(torch.from_numpy(np.load(os.path.join(folder, "rows.npy"))))
    if form == "items":
        return DataLoader(held, batch_size=256, shuffle=True, **several)
    # The sampler returns lists of numbers, so the whole batch is one index operation.
    sampler = BatchSampler(RandomSampler(held), 256, drop_last=False)
    return DataLoader(held, sampler=sampler, batch_size=None, **several)


def windows():
    if form == "items":
        return DataLoader(Windows(), batch_size=32, **several)
    return DataLoader(WindowsAtOnce(), batch_size=32, collate_fn=one, **several)


make = {
    "d2": lambda: DataLoader(Images(), batch_size=32, **several),
    "d3": rows,
    "d4": windows,
}
first = lambda batch: float(batch[0][0][0] if what in ("d3", "d4") else batch[0][0])
count = lambda batch: (batch[0] if what in ("d3", "d4") else batch).shape[0]


def endless():
    loader = make[what]()
    while True:
        yield from loader


def of_workers():
    children = open("/proc/self/task/%d/children" % os.getpid()).read().split()
    return sum(private(int(child)) for child in children)


if what == "d5":
    slow_step(lambda: DataLoader(Slow(), batch_size=1, **several), 0.03, int(seconds * 20))
else:
    run(endless, count, seconds, first, of_workers)
