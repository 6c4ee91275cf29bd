//! The settings of a run, in configuration files and flags: one row per setting.

use std::path::PathBuf;

use gpipe_partitioner::ScheduleKind;
use tch::Device;

use super::rows;
use super::still_fits::same_program;
use crate::config::form::{FilePath, Form, List, Optional, Truth, UnlessZero};
use crate::config::values::{Cap, Offload};
use crate::config::{Row, settings, values};
use crate::feed::samples::HELD_OUT;
use crate::model::flags::Given;
use gpipe_data::{HowMany, Missing, Normalise};
use gpipe_models::LossKind;
use gpipe_models::zoo::Zoo;
use gpipe_torch::{AdamW, Kernels, LrKind, OptimizerKind, Precision, Recompute, Setting};

/// Settings that a plan decides, by flag and by key of `[pipeline]`.
pub(super) const PLANNED: [&str; 7] = [
    "micro",
    "schedule",
    "chunks",
    "recompute",
    "balance",
    "offload",
    "cuda_graphs",
];

const ADAMS: &[&str] = &["adamw", "adam"];
const SGD: &[&str] = &["sgd"];
const ENDING: &[&str] = &["linear", "cosine", "one-cycle"];

settings! {
    /// Everything that is chosen about a run: what makes its numbers, its speed and its
    /// memory. Each field is a key of the configuration, in this order, and most are flags.
    pub(crate) struct Recipe(zoo: &Zoo) {
        /// A model that `models` lists, or a .pt2 file. torch.export.save writes .pt2 files. A JSON
        /// file of `models NAME --json` also names a model (- is standard input). The flags of sizes
        /// (--layers, --d-model, --hidden, …) change the sizes of a model, but not of a .pt2.
        model: String = flag("model.name", "NAME|FILE", values::TEXT, "gpt".to_owned())
            .common()
            .fixed();

        /// Checksum of the program in `model.name`, where PyTorch has exported it: runs write it
        /// down, so that another file in its place is refused.
        fingerprint: Option<String> = key("model.fingerprint", Optional(values::TEXT), None)
            .fixed()
            .beside_unless(&["model.name"], same_program);

        /// Weights to begin with, as Hugging Face's transformers saves them. A GPT-2, Llama, Mistral,
        /// Qwen 2 or Qwen 3 of transformers or of `export`, instead of untrained weights. They decide the model and
        /// its sizes, and texts are read by the tokenizer beside them. For a .pt2, the model's
        /// whole `state_dict` as safetensors, in place of the weights in the file.
        weights: Option<PathBuf> = flag("model.weights", "PATH", Optional(FilePath), None)
            .common()
            .fixed();

        /// The loss of a .pt2 or of `mlp`: cross-entropy (classes), mse (numbers), bce (logits). Or output: the single number that a .pt2's program computes
        /// itself, which is the default for such programs.
        loss: Option<LossKind> = flag("loss.name", "NAME", Optional(values::LOSS), None)
            .common()
            .beside_unless(&["model.name"], same_program);

        /// Targets of this number do not count in cross-entropy: the loss is the mean over the
        /// other targets of the mini-batch, however many micro-batches it has. By default -100, as
        /// in PyTorch.
        ignore_index: Option<i64> =
            flag("loss.ignore_index", "N", Optional(values::INTEGER), None)
            .only_for("loss.name", &["cross-entropy"]);

        /// Devices, a stage each: `cpu*2`, `cuda:0-3`, `auto`, or `4` (the first four GPUs, or four CPU
        /// stages). `cuda` is all GPUs, `auto` all GPUs or else CPU stages. Names may repeat; each has a
        /// thread of its own.
        devices: Vec<Device> = rows::devices();

        /// How many micro-batches each batch is split into. By default 4 for each device, and 8 on one;
        /// batches may have fewer samples, and models with batch norm have fewer where its statistics
        /// would be noise.
        micro: usize = rows::micro();

        /// Schedule: {names}. It changes speed and memory, never numbers.
        schedule: ScheduleKind = rows::schedule();

        /// Stages of each device (virtual stages). By default 2 where the schedule has several, else 1.
        /// What torchgpipe calls chunks are micro-batches here.
        chunks: Option<usize> = rows::chunks(zoo);

        /// Layers of each stage, such as 3,5. As many numbers as devices times chunks; by default
        /// balanced by parameters, and models with convolutions and programs of a .pt2 by a quick
        /// timing of their layers.
        balance: Option<Vec<usize>> = rows::balance(zoo);

        /// Computes forwards again instead of keeping activations: never, except-last or always. All
        /// micro-batches of a stage, or all but the last one. It changes no numbers.
        recompute: Recompute = rows::recompute();

        /// Type of numbers that layers compute in: f32, bf16 or fp16. fp16 has loss scaling. Parameters are always in single precision.
        precision: Precision = rows::precision();

        /// Whose kernels compute matrix products and convolutions on the CPU: auto, libtorch or onednn.
        /// libtorch itself chooses between MKL and oneDNN. oneDNN's can be twice as fast on AMD
        /// processors, and `auto` takes them where those have AVX-512, and with --plan those that it was measured
        /// with. The last bits differ: runs write down which were taken, and resume with these.
        kernels: Option<Kernels> = rows::kernels();

        /// Captures the passes of stages on CUDA devices as CUDA graphs, for models of many small
        /// kernels. It changes no numbers; activations are then not measured.
        cuda_graphs: bool = rows::cuda_graphs();

        /// Intra-op threads of each stage; by default the stages share the cores. On CPUs the last
        /// bits of the numbers depend on it.
        threads_per_stage: Option<usize> = rows::threads_per_stage();

        /// Ends the run with an error when a stage has been in one action for so many seconds, and
        /// names its device, layer and micro-batch; by default, and with 0, there is no limit.
        patience: Option<f64> = rows::patience();

        /// A plan of `profile` or `plan`, which decides schedule, chunks, balance, micro-batches,
        /// recompute, offload, CUDA graphs and replicas. It is for a model of the same sizes.
        plan: Option<PathBuf> = rows::plan();

        /// Memory limit of CUDA devices, such as 24GiB. As if the cards had no more: one value for
        /// all, or a value or `none` for each of --devices. If a card is named several times, the
        /// limits of its entries add up.
        memory: Vec<Cap> = rows::memory();

        /// Stages that keep activations in the host's memory: never, always, or numbers such as 0,2.
        /// There they stay until the backward; of a stage that recomputes, what it recomputes from. It
        /// changes no numbers.
        offload: Offload = rows::offload();

        /// Whether CUDA devices may round the factors of products to TF32 (10 bits of mantissa),
        /// which is several times as fast.
        tf32: bool = rows::tf32();

        /// Whether to use only operators that give the same bits each time on CUDA devices, where
        /// some others are faster. On the CPU all operators do.
        deterministic: bool = rows::deterministic();

        /// Copies of the pipeline, which divide devices and mini-batches (data parallelism). A power of
        /// two, at most --tree. --devices lists those of all copies:
        /// device s of copy r of d is number s*d + r. It changes no numbers, except with
        /// --local-steps.
        replicas: usize = rows::replicas();

        /// Divides the optimizer's state among the replicas (ZeRO-1). Each parameter's is in only one of
        /// them, which updates the parameter for all: about 1/D of that memory on each device. It changes
        /// no numbers.
        shard_optimizer: bool = rows::shard_optimizer();

        /// Steps that each replica trains alone before an outer step brings all together (DiLoCo),
        /// for slow links between them; 0 is none. The numbers then depend on this and on the number
        /// of replicas.
        local_steps: Option<usize> = rows::local_steps();

        /// Learning rate of the outer step of --local-steps.
        outer_learning_rate: f64 =
            flag("parallel.outer_learning_rate", "RATE", values::POSITIVE, 0.7).hides_default();

        /// Nesterov momentum of the outer step of --local-steps; 0 is none.
        outer_momentum: f64 = rows::outer_momentum();

        /// Leaves of the tree in which gradients are summed over micro-batches, a power of two: 1
        /// sums them one after the other. Replicas of the pipeline divide the leaves among them,
        /// and need at least one each. It changes the last bits of the numbers.
        tree: usize = rows::tree();

        /// Training steps.
        steps: usize = flag("train.steps", "N", values::COUNT, 400)
            .common()
            .clap(|arg| arg.aliases(["max-steps", "train-iters"]))
            .free();

        /// Passes over the data, such as 3 or 0.5, in place of --steps; the last samples, which do
        /// not fill a mini-batch, are left out. Windows of a text are drawn from anywhere in it: an
        /// epoch has as many tokens as the text.
        epochs: Option<f64> = flag("train.epochs", "E", Optional(values::POSITIVE), None)
            .common()
            .clap(|arg| {
                let arg = arg.aliases(["num-epochs", "num-train-epochs", "max-epochs"]);
                arg.conflicts_with("steps")
            })
            .free();

        /// Samples of a batch; of a text, sequences.
        batch: usize = flag("train.batch", "N", values::COUNT, 32)
            .common()
            .clap(|arg| arg.visible_alias("batch-size").alias("global-batch-size"));

        /// Seed of initial values, batches and dropout.
        seed: u64 = flag("train.seed", "N", values::SEED, 0)
            .fixed()
            .sets(Setting::Seed, |builder, seed, _| builder.seed(*seed));

        /// Scales gradients down to this 2-norm of all together, where theirs is larger. 0, the default,
        /// scales none.
        clip: Option<f64> = flag("train.clip", "NORM", UnlessZero(values::POSITIVE), None)
            .clap(|arg| arg.alias("max-grad-norm"));

        /// Optimizer: adamw, adam or sgd. Its other settings are keys of the configuration, such as
        /// optimizer.beta1.
        optimizer: OptimizerKind =
            flag("optimizer.name", "NAME", values::OPTIMIZER, AdamW::default().into())
            .common()
            .fixed();

        /// Peak learning rate; by default what is usual for the case. With `adamw`
        /// and `adam` that is 0.003 for untrained weights (0.001 for models with convolutions, 0.0003 from 50 million parameters on), 0.001 for
        /// a .pt2, and 0.00005 for --weights; with `sgd` 0.1 for untrained weights, else
        /// 0.01.
        lr: f64 = flag("optimizer.lr", "RATE", values::POSITIVE, 0.003)
            .common()
            .clap(|arg| arg.alias("learning-rate"))
            .by_case();

        /// Weight decay (by default 0.01 of `adamw`, else 0). `adamw` multiplies weights by 1 - lr * W in
        /// each step; `adam` and `sgd` add W times the weight to the gradient.
        weight_decay: Option<f64> =
            flag("optimizer.weight_decay", "W", Optional(values::NOT_NEGATIVE), None)
            .only_for("optimizer.name", &["adamw", "adam", "sgd"]);

        /// Whether parameters of one dimension decay, too: biases, and the scales of norms. The recipes
        /// of GPT-2, GPT-3 and Llama leave them out.
        decay_1d: bool = key("optimizer.decay_1d", Truth, true).hides_default();

        /// Decay of the mean of gradients, in `adamw` and `adam`.
        beta1: Option<f64> = key("optimizer.beta1", Optional(values::FRACTION), None)
            .only_for("optimizer.name", ADAMS);

        /// Decay of the mean of squared gradients, in `adamw` and `adam`.
        beta2: Option<f64> = key("optimizer.beta2", Optional(values::FRACTION), None)
            .only_for("optimizer.name", ADAMS);

        /// Number that is added to the root of that mean, in `adamw` and `adam`.
        eps: Option<f64> = key("optimizer.eps", Optional(values::NOT_NEGATIVE), None)
            .only_for("optimizer.name", ADAMS);

        /// How much of the last update `sgd` keeps; by default 0.
        momentum: Option<f64> = key("optimizer.momentum", Optional(values::NOT_NEGATIVE), None)
            .only_for("optimizer.name", SGD);

        /// How much of the gradient `sgd` leaves out of it; by default 0.
        dampening: Option<f64> = key("optimizer.dampening", Optional(values::NUMBER), None)
            .only_for("optimizer.name", SGD);

        /// Whether `sgd` looks ahead; by default not.
        nesterov: Option<bool> = key("optimizer.nesterov", Optional(Truth), None)
            .only_for("optimizer.name", SGD);

        /// Whether the optimizer's state (AdamW's two means) is in the host's memory between steps.
        /// It changes no numbers.
        offload_optimizer: bool = flag("optimizer.offload", "BOOL", Truth, false)
            .hides_default()
            .free();

        /// The learning rate after the warm-up: constant, linear, cosine, one-cycle or
        /// inverse-sqrt.
        lr_schedule: LrKind = flag("lr.schedule", "NAME", values::LR_SCHEDULE, LrKind::Constant);

        /// Steps in which the learning rate rises linearly to the beginning of its schedule; by default a
        /// quarter of --steps, at most 100 (one-cycle: 0).
        warmup: Option<usize> = flag("lr.warmup", "N", Optional(values::COUNT_OR_NONE), None)
            .clap(|arg| arg.alias("warmup-steps"));

        /// Steps until the end of a `linear`, `cosine` or `one-cycle` schedule; by default all.
        lr_steps: Option<usize> = key("lr.steps", Optional(values::COUNT), None)
            .only_for("lr.schedule", ENDING)
            .beside_unless(&["lr.schedule", "train.steps", "train.epochs"], |before, after| {
                let given = after.epochs.is_none() && before.steps == after.steps;
                let same_steps = after.resuming || given;
                same_steps && before.lr_schedule == after.lr_schedule
            });

        /// The rate that these end at; by default 0, and of `one-cycle` a 250,000th of its peak.
        lr_end: Option<f64> = key("lr.end", Optional(values::NOT_NEGATIVE), None)
            .only_for("lr.schedule", ENDING);

        /// Share of the steps in which `one-cycle` rises; by default 0.3.
        lr_rise: Option<f64> = key("lr.rise", Optional(values::FRACTION), None)
            .only_for("lr.schedule", &["one-cycle"]);

        /// Steps after which `inverse-sqrt` has fallen by √2; by default those of the warm-up, or
        /// 10,000.
        lr_timescale: Option<usize> = key("lr.timescale", Optional(values::COUNT), None)
            .only_for("lr.schedule", &["inverse-sqrt"]);

        /// What to train on: a text, a table, a folder of images, arrays, tokens, TFRecords. A UTF-8 text,
        /// a file of tokens (.u16.bin, .u32.bin, or .bin with a .bin.json beside it), arrays `x` and `y`
        /// (.safetensors, .npz, a folder of .npy), a table (.csv), a folder of images with a folder for
        /// each class, IDX files, TFRecords; or `synthetic`: made-up inputs and targets of the model's
        /// shapes, to measure speed. By default Moby-Dick for models of token sequences, and synthetic for others. Vocabulary,
        /// classes and inputs come from the data unless they are given.
        data: Option<PathBuf> = flag("data.path", "PATH|synthetic", Optional(FilePath), None)
            .common();

        /// A tokenizer.json of Hugging Face, for texts. Or a folder with one; by default the tokenizer beside --weights, if there is one, else characters are tokens.
        tokenizer: Option<PathBuf> = flag("data.tokenizer", "PATH", Optional(FilePath), None).fixed();

        /// The column of a table that has the targets; by default the last.
        target: Option<String> = flag("data.target", "NAME", Optional(values::TEXT), None)
            .common()
            .fixed();

        /// Columns of a table that are neither inputs nor the target.
        drop_columns: Vec<String> =
            flag("data.drop_columns", "NAMES", List(values::TEXT), Vec::new()).fixed();

        /// How to read cells of a table without a value: refuse, fill or drop. `refuse` stops with an
        /// error. `fill` uses the mean of the column (for words: no word) and adds an input that says
        /// which cells were empty. `drop` leaves out the row. `fill` and `drop` leave out rows
        /// without a target.
        missing: Missing = flag("data.missing", "WHAT", values::MISSING, Missing::Refuse)
            .fixed()
            .hides_default();

        /// Whether each epoch has the samples in another order, which the seed decides. Else they come in
        /// the order of the data, and the last ones are held out; of a text come the windows side by side
        /// instead of some drawn from anywhere.
        shuffle: bool = flag("data.shuffle", "BOOL", Truth, true).fixed().hides_default();

        /// Share of the data that is held out, if it has no test part. The end of a text, or samples drawn
        /// by the seed from other data. 0 holds out none.
        held_out: f64 = flag("data.held_out", "SHARE", values::SHARE, HELD_OUT);

        /// Held-out batches on which the loss is measured; by default all, and 0 measures none. Without
        /// --eval-every no more than there are steps.
        held_out_batches: Option<usize> =
            flag("data.held_out_batches", "N", Optional(values::COUNT_OR_NONE), None).free();

        /// How inputs are scaled: auto, none, standard, imagenet, or numbers such as 0.5/0.25. `auto` scales
        /// the columns of a table by their statistics (and with them the target of --loss mse), images by
        /// ImageNet's, and arrays of bytes to 0..1; `standard` scales by the statistics of the training
        /// data. Numbers are means and standard deviations.
        normalise: Normalise = flag("data.normalise", "HOW", values::NORMALISE, Normalise::Auto)
            .fixed()
            .hides_default();

        /// The shorter side that images are scaled to before they are cropped to the model's; by
        /// default an eighth more than that.
        resize: Option<usize> = key("data.resize", Optional(values::COUNT), None);

        /// Whether images are cropped and flipped at random in training. The seed decides how; else they
        /// are cropped in the middle.
        augment: bool = flag("data.augment", "BOOL", Truth, true).hides_default();

        /// Threads that read and decode, by default half of the cores for images and 1 for other
        /// data; auto finds the fastest number while training. It changes no numbers.
        workers: Option<HowMany> =
            flag("data.workers", "N|auto", Optional(values::HOW_MANY), None)
            .clap(|arg| arg.aliases(["num-workers", "dataloader-num-workers"]))
            .free();

        /// Batches that are loaded ahead of their use, by default 2; auto finds while training how
        /// many are enough, within an eighth of the free memory. It changes no numbers.
        prefetch: Option<HowMany> =
            flag("data.prefetch", "N|auto", Optional(values::HOW_MANY), None).free();

        /// Samples that may be skipped in an epoch as they cannot be read, such as damaged images:
        /// each is named, and the next takes its place. The first one more ends the run.
        skip_bad: usize = key("data.skip_bad", values::COUNT_OR_NONE, 0).hides_default().free();

        /// Measures the held-out loss after every N steps. And after the last one, for metrics.jsonl,
        /// TensorBoard and `plot`; with --eval-data the loss on that. It changes no numbers of
        /// training. The checkpoint of the lowest loss stays: RUN/best names it. 0 measures it only
        /// at the end.
        eval_every: usize = flag("eval.every", "N", values::COUNT_OR_NONE, 0)
            .common()
            .free();

        /// Data to evaluate on, instead of a held-out share. It is of the same kind as --data; nothing is
        /// then held out of --data unless --held-out says so.
        eval_data: Option<PathBuf> = flag("eval.data", "PATH", Optional(FilePath), None)
            .common()
            .free();

        /// Ends the run after N evaluations in a row without a better one; 0 never does.
        early_stopping: usize =
            flag("eval.early_stopping", "N", values::COUNT_OR_NONE, 0).free();

        /// Saves the run after every N steps, and when it ends or is interrupted; 0 saves nothing.
        checkpoint_every: usize = flag("checkpoint.every", "N", values::COUNT_OR_NONE, 100).free();

        /// Keeps the newest K checkpoints.
        checkpoint_keep: usize = flag("checkpoint.keep", "K", values::COUNT, 3).free();

        /// Peak floating-point operations per second of a device, for the metric `mfu`; known for
        /// some GPUs.
        peak_flops: Option<f64> =
            flag("metrics.peak_flops", "FLOPS", Optional(values::POSITIVE), None).free();

        /// Operations that a sample takes, forward and backward, where the model is none of
        /// tokens.
        flops_per_sample: Option<f64> =
            key("metrics.flops_per_sample", Optional(values::POSITIVE), None).free();
    } and {
        /// Sizes that are not to be the model's defaults; their keys and flags are made from the
        /// models.
        sizes: Given;
        /// Whether an earlier run resumes: more steps do not stretch its learning rates then.
        resuming: bool;
        /// Processes that train together, each with devices of its own.
        processes: usize;
    }
}

/// A key, and its flag named after the field.
pub(super) fn flag<F: Form>(
    key: &'static str,
    value_name: &'static str,
    form: F,
    default: F::Value,
) -> Row<Recipe, F> {
    Row::flag(key, value_name, form, default)
}

/// A key without a flag.
fn key<F: Form>(key: &'static str, form: F, default: F::Value) -> Row<Recipe, F> {
    Row::key(key, form, default)
}
