//! What a configuration says about a run, and flags too: one row a setting.

use std::path::PathBuf;

use gpipe_partitioner::ScheduleKind;
use tch::Device;

use super::fits::same_program;
use super::rows;
use crate::cli::config::form::{FilePath, Form, Optional, Truth};
use crate::cli::config::values::{Cap, Offload};
use crate::cli::config::{Row, settings, values};
use crate::cli::feed::samples::HELD_OUT;
use crate::cli::model::flags::Given;
use crate::data::{HowMany, Normalise};
use crate::models::LossKind;
use crate::models::zoo::Zoo;
use crate::{AdamW, LrKind, OptimizerKind, Precision, Recompute, Setting};

/// What a plan decides, by flag and by key of `[pipeline]`.
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
    pub(in crate::cli) struct Recipe(zoo: &Zoo) {
        /// The model: a name that the verb `models` lists, or a file (- is standard input) with
        /// what `models NAME --json` prints. The flags of sizes below come on top. A file that ends
        /// in .pt2 is a program that torch.export.save of PyTorch wrote.
        model: String = flag("model.name", "NAME|FILE", values::TEXT, "gpt".to_owned()).fixed();

        /// Checksum of the program in `model.name`, where PyTorch has exported it: runs write it
        /// down, so that another file in its place is refused.
        fingerprint: Option<String> = key("model.fingerprint", Optional(values::TEXT), None)
            .fixed()
            .beside_unless(&["model.name"], same_program);

        /// Begins with weights rather than random numbers: a GPT-2, Llama, Mistral, Qwen 2 or
        /// Qwen 3 as Hugging Face's transformers saves it, and `export` too. The model and its
        /// sizes are then theirs, and texts are read by the tokenizer beside them. For a .pt2, the
        /// model's whole `state_dict` as safetensors, in place of the weights in the file.
        weights: Option<PathBuf> = flag("model.weights", "PATH", Optional(FilePath), None).fixed();

        /// What a .pt2 is trained with: cross-entropy, mse, bce (of logits), or output, the single
        /// number that its program computes itself; that is the default where there is one. `mlp`
        /// takes the first three, too: with mse it learns the numbers of a table.
        loss: Option<LossKind> = flag("loss.name", "NAME", Optional(values::LOSS), None)
            .beside_unless(&["model.name"], same_program);

        /// Targets of this number count nothing to cross-entropy: the loss is the mean over the
        /// others of a mini-batch, however many micro-batches it has. By default -100, as in
        /// PyTorch.
        ignore_index: Option<i64> =
            flag("loss.ignore_index", "N", Optional(values::INTEGER), None)
            .only_for("loss.name", &["cross-entropy"]);

        /// Devices, a stage and a thread each: `cpu*2`, `cuda:0-3`, `cuda`, `auto`, `4`; may repeat.
        devices: Vec<Device> = rows::devices();

        /// Micro-batches of a mini-batch.
        micro: usize = rows::micro();

        /// Schedule: {names}. It changes speed and memory, never numbers.
        schedule: ScheduleKind = rows::schedule();

        /// Stages of each device; by default 2 where the schedule has several, else 1.
        chunks: Option<usize> = rows::chunks();

        /// Layers of each stage, devices times chunks of them, such as 3,5; by default
        /// balanced by parameters.
        balance: Option<Vec<usize>> = rows::balance(zoo);

        /// What is computed twice rather than kept for the backward, micro-batch by
        /// micro-batch: never, except-last or always. It changes no numbers either.
        recompute: Recompute = rows::recompute();

        /// In which numbers layers compute: f32, bf16, or fp16 with loss scaling. Parameters
        /// are single precision always.
        precision: Precision = rows::precision();

        /// Has stages on CUDA devices replay their passes as CUDA graphs, for models of many
        /// small kernels. It changes no numbers; activations are not measured then.
        cuda_graphs: bool = rows::cuda_graphs();

        /// Intra-op threads of each stage; by default the stages share the cores.
        threads_per_stage: Option<usize> = rows::threads_per_stage();

        /// Ends the run with an error when a stage has been in one action for so many seconds,
        /// and names its device, layer and micro-batch; by default it is waited for without end.
        patience: Option<f64> = rows::patience();

        /// Schedule, chunks, balance, micro-batches, recompute, offload, CUDA graphs and replicas
        /// from a plan, as `profile` writes it for a model of the same sizes.
        plan: Option<PathBuf> = rows::plan();

        /// The most that CUDA devices may hold, such as 24GiB, as if the cards had no more: one
        /// value for all, or a value or `none` for each of --devices. Where a card is named
        /// several times, what its entries may hold adds up.
        memory: Vec<Cap> = rows::memory();

        /// Stages that keep what they need for the backward (activations, or what they recompute
        /// from) in the host's memory meanwhile: their numbers, such as 0,2, or all or none. It
        /// changes no numbers.
        offload: Offload = rows::offload();

        /// Whether CUDA devices may round what they multiply to TF32 (10 bits behind the
        /// point), which is several times as fast.
        tf32: bool = rows::tf32();

        /// Whether only operators are used that give the same bits each time, also on CUDA
        /// devices, where some others are faster. On the CPU all do.
        deterministic: bool = rows::deterministic();

        /// Copies of the pipeline, which share the devices and each mini-batch (data parallelism):
        /// a power of two, at most --tree. With so many, the devices are those of all: device s
        /// of copy r of d is number s*d + r. It changes no numbers, unless with --local-steps.
        replicas: usize = rows::replicas();

        /// Keeps what the optimizer remembers of each parameter in one of the replicas, which
        /// updates it for all (ZeRO-1): about 1/D of that memory on each device. It changes no
        /// numbers.
        shard_optimizer: bool = rows::shard_optimizer();

        /// Has each replica train alone for so many steps before an outer step brings all
        /// together (DiLoCo), for slow links between them. The numbers then depend on this and on
        /// the number of replicas.
        local_steps: Option<usize> = rows::local_steps();

        /// Learning rate of the outer step of --local-steps.
        outer_learning_rate: f64 =
            flag("parallel.outer_learning_rate", "RATE", values::POSITIVE, 0.7).hides_default();

        /// Nesterov momentum of the outer step of --local-steps; 0 is none.
        outer_momentum: f64 = rows::outer_momentum();

        /// Leaves of the tree in which gradients are summed over micro-batches, a power of two: 1
        /// sums them one after the other. Replicas of the pipeline share them, and need one each
        /// at least; it changes the last bits of the numbers.
        tree: usize = rows::tree();

        /// Training steps.
        steps: usize = flag("train.steps", "N", values::COUNT, 400).free();

        /// Trains so often on all of the data, such as 3 or 0.5, in place of --steps; of the last
        /// samples that fill no mini-batch none is taken. Texts are drawn from anywhere in them: as
        /// many tokens as they have are an epoch.
        epochs: Option<f64> = flag("train.epochs", "E", Optional(values::POSITIVE), None)
            .clap(|arg| arg.conflicts_with("steps"))
            .free();

        /// Samples (texts: sequences) of a mini-batch.
        batch: usize = flag("train.batch", "N", values::COUNT, 32);

        /// Seed of initial values, batches and dropout.
        seed: u64 = flag("train.seed", "N", values::SEED, 0)
            .fixed()
            .sets(Setting::Seed, |builder, seed, _| builder.seed(*seed));

        /// Largest 2-norm of all gradients together: larger ones are scaled down to it.
        clip: Option<f64> = flag("train.clip", "NORM", Optional(values::POSITIVE), None);

        /// Optimizer: adamw, adam or sgd. Its other numbers are keys of the configuration.
        optimizer: OptimizerKind =
            flag("optimizer.name", "NAME", values::OPTIMIZER, AdamW::default().into()).fixed();

        /// Learning rate: the highest of the schedule.
        lr: f64 = flag("optimizer.lr", "RATE", values::POSITIVE, 0.003);

        /// `adamw` takes that share off a weight per unit of learning rate; `adam` and `sgd` add
        /// it, times the weight, to the gradient, and have 0 where it is left out.
        weight_decay: Option<f64> =
            flag("optimizer.weight_decay", "W", Optional(values::NOT_NEGATIVE), None)
            .only_for("optimizer.name", &["adamw", "adam", "sgd"]);

        /// Whether parameters of one dimension decay, too: biases, and the scales of norms. The recipes
        /// of GPT-2, GPT-3 and Llama leave them out.
        decay_1d: bool = key("optimizer.decay_1d", Truth, true).hides_default();

        /// How much the mean of gradients keeps, in `adamw` and `adam`.
        beta1: Option<f64> = key("optimizer.beta1", Optional(values::FRACTION), None)
            .only_for("optimizer.name", ADAMS);

        /// How much the mean of their squares keeps, in `adamw` and `adam`.
        beta2: Option<f64> = key("optimizer.beta2", Optional(values::FRACTION), None)
            .only_for("optimizer.name", ADAMS);

        /// What is added to the root of that mean, in `adamw` and `adam`.
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

        /// Whether what the optimizer remembers (AdamW's two means) is in the host's memory
        /// between steps. It changes no numbers.
        offload_optimizer: bool = flag("optimizer.offload", "BOOL", Truth, false)
            .hides_default()
            .free();

        /// How the learning rate goes after the warm-up: constant, linear, cosine, one-cycle
        /// or inverse-sqrt.
        lr_schedule: LrKind = flag("lr.schedule", "NAME", values::LR_SCHEDULE, LrKind::Constant);

        /// Steps over which the learning rate rises in a line to where its schedule begins; by
        /// default a quarter of --steps, at most 100, and none for one-cycle.
        warmup: Option<usize> = flag("lr.warmup", "N", Optional(values::COUNT_OR_NONE), None);

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

        /// What to train on: a UTF-8 text, a file of tokens (.u16.bin, .u32.bin, or .bin with a
        /// .bin.json beside it), arrays `x` and `y` (.safetensors, .npz, a folder of .npy), a table
        /// (.csv), a folder of images with a folder for each class, IDX files, TFRecords; or
        /// `synthetic`: inputs and targets of the model's shapes, made up once, for the speed alone.
        /// By default Moby-Dick for models of token sequences, and synthetic for the others.
        /// Vocabulary, classes and inputs are the data's unless they are given.
        data: Option<PathBuf> = flag("data.path", "PATH|synthetic", Optional(FilePath), None);

        /// Reads texts as the tokens of this tokenizer.json of Hugging Face's (or of the folder
        /// that has one), rather than as characters; by default as those of the tokenizer beside
        /// --weights, if one is there.
        tokenizer: Option<PathBuf> = flag("data.tokenizer", "PATH", Optional(FilePath), None).fixed();

        /// The column of a table that has the targets; by default the last.
        target: Option<String> = flag("data.target", "NAME", Optional(values::TEXT), None).fixed();

        /// Share of the data that is held out, where it has no test part of its own: the end of a
        /// text, samples that the seed draws of other data. 0 holds out none.
        held_out: f64 = flag("data.held_out", "SHARE", values::SHARE, HELD_OUT);

        /// Batches of what is held out on which the loss is measured; by default all of it, and 0
        /// measures none.
        held_out_batches: Option<usize> =
            flag("data.held_out_batches", "N", Optional(values::COUNT_OR_NONE), None).free();

        /// How the inputs of samples are scaled: auto (columns of a table by their statistics,
        /// images by ImageNet's, arrays of bytes to 0..1), none, standard (by the statistics of what
        /// is trained on), imagenet, or means and standard deviations such as 0.5/0.25.
        normalise: Normalise = flag("data.normalise", "HOW", values::NORMALISE, Normalise::Auto)
            .fixed()
            .hides_default();

        /// The shorter side that images are scaled to before they are cropped to the model's; by
        /// default an eighth more than that.
        resize: Option<usize> = key("data.resize", Optional(values::COUNT), None);

        /// Whether images are cropped and flipped at random in training, rather than cropped in
        /// the middle. The seed decides how.
        augment: bool = flag("data.augment", "BOOL", Truth, true).hides_default();

        /// Threads that read and decode, by default half of the cores for images and 1 for others;
        /// auto finds while training how many are fast. It changes no numbers.
        workers: Option<HowMany> =
            flag("data.workers", "N|auto", Optional(values::HOW_MANY), None).free();

        /// Batches that are made ahead of their use, by default 2; auto finds while training how
        /// many are enough, within an eighth of the free memory. It changes no numbers.
        prefetch: Option<HowMany> =
            flag("data.prefetch", "N|auto", Optional(values::HOW_MANY), None).free();

        /// Measures the loss on what is held out (or on --eval-data) after every N steps and after the
        /// last one, for metrics.jsonl, TensorBoard and `plot`. It changes no numbers of training.
        /// The checkpoint of the lowest loss stays: RUN/best names it.
        eval_every: Option<usize> = flag("eval.every", "N", Optional(values::COUNT), None).free();

        /// Evaluates on this data, of the kind of --data, in place of a held-out share: nothing is
        /// then held out of --data unless --held-out says so.
        eval_data: Option<PathBuf> = flag("eval.data", "PATH", Optional(FilePath), None).free();

        /// Ends the run after N evaluations in a row that were not better than the best one.
        early_stopping: Option<usize> =
            flag("eval.early_stopping", "N", Optional(values::COUNT), None).free();

        /// Saves the run after every N steps, at its end, and when it is interrupted; 0 saves
        /// nothing.
        checkpoint_every: usize = flag("checkpoint.every", "N", values::COUNT_OR_NONE, 100).free();

        /// Keeps the newest K checkpoints.
        checkpoint_keep: usize = flag("checkpoint.keep", "K", values::COUNT, 3).free();

        /// Floating-point operations per second that a device can do at most, for the metric
        /// `mfu`; known of some GPUs.
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

/// A key and its flag, which has the field's name.
pub(super) fn flag<F: Form>(
    key: &'static str,
    value_name: &'static str,
    form: F,
    default: F::Value,
) -> Row<Recipe, F> {
    Row::flag(key, value_name, form, default)
}

/// A key that no flag says.
fn key<F: Form>(key: &'static str, form: F, default: F::Value) -> Row<Recipe, F> {
    Row::key(key, form, default)
}
