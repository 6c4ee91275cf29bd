"""Writes the CSVs in this folder with PyTorch's own pipelining (torch 2.11.0).

Run with `python make.py` in an environment with the full `torch` package; no
process group is needed, for the schedules are decided without one.
"""

from pathlib import Path
from types import SimpleNamespace

from torch.distributed.pipelining import schedules as s

HERE = Path(__file__).parent


def stages(devices, chunks, schedule):
    """Stand-ins with the attributes that schedules look at."""
    count = devices * chunks
    mapping = s.get_schedule_class(schedule)
    return [
        SimpleNamespace(
            group_size=devices,
            group_rank=0,
            num_stages=count,
            stage_index=index * devices,
            is_first=index == 0,
            is_last=index == chunks - 1,
            has_backward=True,
            submod=None,
        )
        for index in range(chunks)
    ], mapping


CASES = [
    ("Interleaved1F1B", 2, 2, 4),
    ("Interleaved1F1B", 4, 2, 8),
    ("LoopedBFS", 4, 2, 4),
    ("InterleavedZeroBubble", 2, 2, 4),
    ("InterleavedZeroBubble", 4, 2, 8),
    ("ZBVZeroBubble", 2, 2, 4),
    ("ZBVZeroBubble", 4, 2, 8),
    ("DualPipeV", 2, 2, 4),
    ("DualPipeV", 4, 2, 8),
]

for name, devices, chunks, micro in CASES:
    own, cls = stages(devices, chunks, name)
    schedule = cls(own, micro, loss_fn=lambda out, target: out.sum())
    for form in ("compute_only", "compute_comms"):
        if form == "compute_comms" and schedule.pipeline_order_with_comms is None:
            schedule._prepare_schedule_with_comms(schedule.pipeline_order)
        file = HERE / f"{name}-p{devices}-m{micro}-{form}.csv"
        schedule._dump_csv(str(file), form)
        print(file.name)
