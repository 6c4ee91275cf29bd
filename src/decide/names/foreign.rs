//! Verbs and flags of other tools (PyTorch, Lightning, Hugging Face, DeepSpeed and Megatron), with
//! their equivalents here.

/// Replacement for a flag.
#[derive(Clone, Copy, Debug)]
pub(super) enum Instead {
    /// A flag, for verbs that have it; the text begins with its name.
    Flag(&'static str),
    /// Another verb around `train`.
    Launch(&'static str),
    /// No equivalent, with the reason.
    Words(&'static str),
}

use Instead::{Flag, Launch, Words};

/// Verbs of other tools: their names, and the equivalent here.
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

/// Flags of other tools: their names, and the replacement. Of several entries with the same name, the
/// first that fits the verb is used.
pub(super) const FLAGS: [(&str, Instead); 73] = [
    (
        "checkpoint",
        Flag(
            "--recompute always, where activations are meant; --resume RUN goes on from the newest one",
        ),
    ),
    (
        "svg png",
        Flag("--output FILE.svg, where this verb draws a picture"),
    ),
    (
        "step at-step",
        Flag("--checkpoint RUN/checkpoints/step-00000100, with the number of the step"),
    ),
    (
        "report html",
        Flag("--output FILE.html, where this verb draws a page"),
    ),
    (
        "learning-rate max-lr base-lr init-lr peak-lr learning-rate-init",
        Flag("--lr RATE"),
    ),
    (
        "label target-column label-column y-column",
        Flag("--target NAME"),
    ),
    (
        "model",
        Flag(
            "--model-shape NAME, such as gpt2 or llama2-7b, with the cards in --cluster; other models \
             are measured: `profile --model NAME`, then --profile FILE here",
        ),
    ),
    (
        "lr-scheduler lr-scheduler-type lr-decay-style scheduler lr-decay decay-lr",
        Flag("--lr-schedule NAME"),
    ),
    (
        "warmup-steps warmup-iters lr-warmup-iters num-warmup-steps num-warmup",
        Flag("--warmup N"),
    ),
    (
        "warmup-ratio lr-warmup-fraction",
        Flag("--warmup N, where N are steps: of 400 steps, 40 are a ratio of 0.1"),
    ),
    ("min-lr", Flag("--set lr.end=RATE")),
    ("max-new-tokens max-tokens", Flag("--tokens N")),
    (
        "max-steps num-steps max-iters train-iters iterations total-steps \
         fast-dev-run limit-train-batches num-iterations n-iters n-steps \
         exit-interval",
        Flag("--steps N"),
    ),
    (
        "num-epochs num-train-epochs max-epochs epoch n-epochs train-epochs",
        Flag("--epochs E"),
    ),
    (
        "global-batch-size local-batch-size train-batch-size per-device-train-batch-size bs",
        Flag("--batch N"),
    ),
    (
        "micro-batch-size train-micro-batch-size micro-batch-size-per-gpu \
         train-micro-batch-size-per-gpu",
        Flag("--micro M: --batch over it are the samples of a micro-batch"),
    ),
    (
        "gradient-accumulation-steps grad-accum accumulate-grad-batches \
         num-microbatches n-microbatches microbatches",
        Flag("--micro M: a mini-batch is that many micro-batches"),
    ),
    (
        "grad-clip gradient-clip gradient-clip-val max-grad-norm clip-grad \
         clip-grad-norm max-norm",
        Flag("--clip NORM"),
    ),
    (
        "gradient-checkpointing activation-checkpointing checkpoint-activations \
         recompute-activations activation-checkpoint",
        Flag("--recompute always"),
    ),
    ("fp16 half", Flag("--precision fp16")),
    (
        "bf16 bfloat16 amp mixed-precision",
        Flag("--precision bf16"),
    ),
    ("fp32 float32", Flag("--precision f32")),
    ("dtype", Flag("--precision NAME")),
    ("mkldnn onednn", Flag("--kernels onednn")),
    (
        "log-interval log-every-n-steps logging-steps log-freq log-steps print-freq print-every",
        Flag("--log-every N; each step is a line of metrics.jsonl in the run folder"),
    ),
    (
        "threads thread num-threads n-threads nthreads intra-op-threads omp-num-threads \
         torch-num-threads cpu-threads",
        Flag("--threads-per-stage N"),
    ),
    (
        "num-workers dataloader-num-workers n-workers",
        Flag("--workers N"),
    ),
    (
        "device gpu gpus num-gpus n-gpus accelerator ngpus n-gpu num-devices use-cuda \
         use-gpu use-gpus no-cuda",
        Flag("--devices LIST, such as cuda:0-3 or cpu*2"),
    ),
    (
        "pp pipeline-parallel-size pipeline-model-parallel-size stages num-stages \
         pp-size pipeline-parallelism pipe-parallel-size pipeline-parallel \
         pipeline-parallel-degree",
        Flag("--devices N, a stage each"),
    ),
    (
        "virtual-stages num-virtual-stages num-layers-per-virtual-pipeline-stage \
         model-chunks vpp num-model-chunks",
        Flag("--chunks V: stages of each device"),
    ),
    (
        "dp data-parallel data-parallel-size ddp dp-size num-replicas strategy \
         data-parallel-replicate-degree",
        Flag("--replicas D"),
    ),
    (
        "zero zero1 zero-stage use-distributed-optimizer fsdp zero2 zero3 \
         data-parallel-shard-degree",
        Flag("--shard-optimizer, which shards optimizer states only, as ZeRO-1 does"),
    ),
    ("cpu-offload offload-activations", Flag("--offload STAGES")),
    (
        "nproc-per-node world-size num-processes nnodes num-nodes node-rank \
         master-addr master-port rdzv-endpoint local-rank nproc distributed",
        Launch("`launch --processes N -- VERB …`"),
    ),
    ("n np", Flag("--processes N")),
    (
        "eval-interval eval-steps eval-freq val-every val-check-interval \
         validate-every evaluation-strategy",
        Flag("--eval-every N"),
    ),
    (
        "val-data validation-data valid-data eval-file validation-file val test-data",
        Flag("--eval-data PATH"),
    ),
    (
        "early-stopping-patience early-stop early-stopping-rounds",
        Flag("--early-stopping N"),
    ),
    (
        "val-split validation-split test-size val-ratio split",
        Flag("--held-out SHARE"),
    ),
    ("eval-iters limit-val-batches", Flag("--held-out-batches N")),
    (
        "save-every save-steps save-interval checkpoint-interval ckpt-every",
        Flag("--checkpoint-every N"),
    ),
    (
        "save-total-limit save-top-k keep-last",
        Flag("--checkpoint-keep K"),
    ),
    (
        "output-dir out-dir run-dir save-dir log-dir logdir save exp-dir \
         default-root-dir checkpoint-dir ckpt-dir workdir work-dir experiment-name name run-name",
        Flag("--out DIR"),
    ),
    (
        "resume-from-checkpoint resume-from ckpt ckpt-path load continue-from auto-resume \
         restart-from load-checkpoint from-checkpoint",
        Flag("--resume RUN"),
    ),
    (
        "from-pretrained pretrained init-from model-name-or-path checkpoint-path",
        Flag("--weights PATH"),
    ),
    (
        "dataset train-data train-file data-path data-dir data-root",
        Flag("--data PATH"),
    ),
    (
        "block-size seq-len seq-length max-seq-len context-length max-length",
        Flag("--context N"),
    ),
    (
        "n-layer n-layers num-layers num-hidden-layers",
        Flag("--layers N"),
    ),
    ("n-embd hidden-size embedding-dim", Flag("--d-model N")),
    (
        "n-head n-heads num-heads num-attention-heads",
        Flag("--heads N"),
    ),
    (
        "momentum nesterov beta1 beta2 betas eps adam-epsilon",
        Flag("--set optimizer.KEY=VALUE: momentum, nesterov, beta1, beta2, eps"),
    ),
    (
        "seed-everything random-seed manual-seed data-seed",
        Flag("--seed N"),
    ),
    (
        "tokenizer-model tokenizer-name tokenizer-name-or-path vocab-file \
         tokenizer-path",
        Flag("--tokenizer FILE"),
    ),
    (
        "config-file config-path",
        Flag("--config FILE, such as another run's config.toml"),
    ),
    ("wd weight-decay-rate l2", Flag("--weight-decay DECAY")),
    ("optim optimizer-type", Flag("--optimizer NAME")),
    (
        "pipeline-schedule pipeline-parallel-schedule pp-schedule schedule-type",
        Flag("--schedule NAME"),
    ),
    ("loss-fn criterion loss-function", Flag("--loss NAME")),
    (
        "arch model-type model-name net network",
        Flag("--model NAME"),
    ),
    (
        "compile torch-compile enable-cuda-graph",
        Flag("--cuda-graphs (on GPUs; on a CPU, --kernels onednn)"),
    ),
    (
        "tp tensor-model-parallel-size tensor-parallel-size tp-size",
        Flag("--tensor-parallel"),
    ),
    (
        "tp tensor-model-parallel-size tensor-parallel-size tp-size tensor-parallel \
         sequence-parallel context-parallel-size expert-model-parallel-size cp ep",
        Words(
            "layers are never split here: --devices LIST divides the model between \
            layers, a stage a device, and --replicas D trains several copies",
        ),
    ),
    (
        "features feature-columns x-columns",
        Words(
            "all columns of a table but that of the target are inputs: --drop-columns NAMES leaves \
             some out",
        ),
    ),
    (
        "no-header header",
        Words(
            "the first line of a table is the names of its columns: put one above it if there is none",
        ),
    ),
    (
        "delimiter sep separator decimal",
        Words(
            "commas, semicolons and tabs are told apart by the first line of a table, and numbers have a \
             decimal point: rewrite decimal commas",
        ),
    ),
    (
        "deepspeed deepspeed-config",
        Words(
            "there is no other engine behind this one: --devices LIST cuts the model into stages, \
             --shard-optimizer is ZeRO-1",
        ),
    ),
    (
        "do-train do-eval do-predict",
        Words("there is no such flag: the verb says what is done (`train`, `eval`, `predict`)"),
    ),
    (
        "load-in-8bit load-in-4bit quantize quantization",
        Words(
            "weights are never quantized here: parameters have 4 bytes each, and \
             `train --precision bf16` has layers compute with 2 bytes a number",
        ),
    ),
    (
        "lora use-lora lora-r lora-rank lora-alpha lora-dropout use-peft qlora",
        Words(
            "there are no adapters here: all parameters are trained, and `train --weights PATH` \
             begins with those of a model",
        ),
    ),
    (
        "verbose v vv debug log-level loglevel",
        Words(
            "there is no such flag, as nothing is left out: `train` writes all numbers of each step \
             to metrics.jsonl in the run folder",
        ),
    ),
    (
        "dry-run dryrun fast-dev-run",
        Words(
            "there is no such flag: `plan` and `simulate` say on paper what a run would take, and \
             `train --steps 1` tries one step",
        ),
    ),
    (
        "no-shuffle",
        Words("there is no such flag: `--shuffle=false` takes the samples in their order"),
    ),
    (
        "tensorboard tensorboard-dir report-to wandb wandb-project logger",
        Words(
            "each run folder has events for TensorBoard, and `plot RUN` draws them; \
            nothing has to be switched on",
        ),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// If some verbs have the flag and the others get words, the words come last.
    #[test]
    fn no_name_of_another_tool_stands_twice() {
        let once = |names: Vec<&str>| {
            let (mut own, count) = (names.clone(), names.len());
            own.sort_unstable();
            own.dedup();
            assert_eq!(own.len(), count, "{names:?}");
        };
        let of = |words: bool| {
            let entries = FLAGS.iter();
            let entries = entries.filter(move |(_, own)| matches!(own, Words(_)) == words);
            entries.flat_map(|(names, _)| names.split(' ')).collect()
        };
        once(of(true));
        once(of(false));
        once(
            VERBS
                .iter()
                .flat_map(|(names, _)| names.split(' '))
                .collect(),
        );
        let words = FLAGS.iter().position(|(_, own)| matches!(own, Words(_)));
        let rest = &FLAGS[words.unwrap()..];
        assert!(rest.iter().all(|(_, own)| matches!(own, Words(_))));
    }
}
