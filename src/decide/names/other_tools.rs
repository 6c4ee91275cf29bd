//! Verbs and flags of other tools (PyTorch, Hugging Face, DeepSpeed and Megatron), with what does
//! the same here. A flag that takes the same value is an alias of the flag here instead.

/// Verbs of other tools, and what to write here.
pub(super) const VERBS: [(&str, &str); 14] = [
    ("resume continue restart", "train --resume RUN"),
    ("fit run start pretrain finetune fine-tune learn", "train"),
    (
        "test validate val evaluate validation score",
        "eval --run RUN",
    ),
    (
        "classify infer inference label recognize recognise",
        "predict --run RUN PATH, or `generate --run RUN --prompt TEXT` for a text",
    ),
    ("complete sample chat", "generate --run RUN --prompt TEXT"),
    (
        "serve deploy convert save",
        "export --run RUN -o weights.safetensors, which servers and other programs read",
    ),
    ("bench benchmark measure time", "profile --model NAME"),
    ("list ls zoo model", "models"),
    ("devices gpus info doctor check status", "env"),
    (
        "torchrun distributed spawn accelerate deepspeed",
        "launch --processes N -- train",
    ),
    (
        "optimize optimise tune autotune partition balance search",
        "plan --profile FILE --devices N",
    ),
    (
        "chart curves graph tensorboard draw inspect show history runs",
        "plot RUN",
    ),
    (
        "timeline simulation sim",
        "simulate --schedule NAME --devices N --micro M",
    ),
    ("version", "--version"),
];

/// Flags of other tools, and what to write here. A tip that begins with a flag is for verbs that
/// have this flag.
pub(super) const FLAGS: [(&str, &str); 9] = [
    ("fp16 half", "--precision fp16"),
    ("bf16 amp", "--precision bf16"),
    (
        "gradient-checkpointing activation-checkpointing recompute-activations",
        "--recompute always",
    ),
    (
        "gradient-accumulation-steps accumulate-grad-batches num-microbatches",
        "--micro M: a mini-batch is that many micro-batches",
    ),
    (
        "micro-batch-size per-device-train-batch-size",
        "--micro M: --batch over it are the samples of a micro-batch",
    ),
    (
        "gpus num-gpus device",
        "--devices LIST, such as cuda:0-3 or cpu*2",
    ),
    (
        "pp pipeline-parallel-size pipeline-model-parallel-size",
        "--devices N, a stage each",
    ),
    (
        "zero-stage fsdp use-distributed-optimizer",
        "--shard-optimizer, which shards optimizer states only, as ZeRO-1 does",
    ),
    (
        "nproc-per-node nnodes world-size",
        "`launch --processes N -- VERB …`",
    ),
];
