//! Rows of `[pipeline]` and `[parallel]`, a function for each field of [`Recipe`]: how a setting is
//! applied to a pipeline, and which other changes make it invalid.

use std::path::PathBuf;

use clap::Arg;
use gpipe_partitioner::ScheduleKind;
use tch::Device;

use super::recipe::{PLANNED, Recipe, flag};
use super::still_fits::{balance_fits, chunks_fit, replicas_fit};
use crate::config::Row;
use crate::config::form::{FilePath, Form, List, Optional, Switch, Truth, UnlessZero};
use crate::config::values::{self, Cap, Offload};
use gpipe_models::zoo::Zoo;
use gpipe_torch::{Kernels, PipelineBuilder, Precision, Recompute, Setting};

pub(super) fn devices() -> Row<Recipe, impl Form<Value = Vec<Device>>> {
    flag(
        "pipeline.devices",
        "LIST",
        values::Devices,
        vec![Device::Cpu; 2],
    )
    .common()
    .free()
    .sets(Setting::Devices, |builder, devices, _| {
        builder.devices(devices)
    })
}

pub(super) fn micro() -> Row<Recipe, impl Form<Value = usize>> {
    flag("pipeline.micro", "M", values::COUNT, 8)
        .common()
        .clap(|arg| arg.visible_alias("micro-batches"))
        .by_case()
        .sets(Setting::MicroBatches, |builder, micro, _| {
            builder.micro_batches(*micro)
        })
}

pub(super) fn schedule() -> Row<Recipe, impl Form<Value = ScheduleKind>> {
    flag(
        "pipeline.schedule",
        "NAME",
        values::SCHEDULE,
        ScheduleKind::OneFOneB,
    )
    .common()
    .help(|text| text.replace("{names}", &values::schedules()))
    .free()
    .sets(Setting::Schedule, |builder, schedule, _| {
        builder.schedule(*schedule)
    })
}

pub(super) fn chunks(zoo: &Zoo) -> Row<Recipe, impl Form<Value = Option<usize>> + use<>> {
    flag("pipeline.chunks", "V", Optional(values::CHUNKS), None)
        .clap(|arg| arg.visible_alias("stages-per-device"))
        .free()
        .beside_unless(
            &["pipeline.schedule", "pipeline.devices", "parallel.replicas"],
            {
                let zoo = zoo.clone();
                move |before, after| chunks_fit(&zoo, before, after)
            },
        )
        .sets(
            Setting::Chunks,
            if_given(|builder, chunks: &usize| builder.chunks(*chunks)),
        )
}

pub(super) fn balance(zoo: &Zoo) -> Row<Recipe, impl Form<Value = Option<Vec<usize>>> + use<>> {
    flag(
        "pipeline.balance",
        "LIST",
        Optional(List(values::COUNT)),
        None,
    )
    .common()
    .free()
    .beside_unless(
        &[
            "pipeline.devices",
            "pipeline.schedule",
            "parallel.replicas",
            "model.name",
        ],
        {
            let zoo = zoo.clone();
            move |before, after| balance_fits(&zoo, before, after)
        },
    )
    .sets(
        Setting::Balance,
        if_given(|builder, own: &Vec<usize>| builder.balance(own)),
    )
}

pub(super) fn recompute() -> Row<Recipe, impl Form<Value = Recompute>> {
    flag(
        "pipeline.recompute",
        "WHEN",
        values::RECOMPUTE,
        Recompute::Never,
    )
    .common()
    .free()
    .beside_unless(
        &["pipeline.devices", "pipeline.schedule", "parallel.replicas"],
        |before, after| {
            values::stages_of(&before.recompute).is_none() || before.stages() == after.stages()
        },
    )
    .sets(Setting::Recompute, |builder, recompute, _| {
        builder.recompute(recompute.clone())
    })
}

pub(super) fn precision() -> Row<Recipe, impl Form<Value = Precision>> {
    flag(
        "pipeline.precision",
        "NAME",
        values::PRECISION,
        Precision::F32,
    )
    .common()
    .sets(Setting::Precision, |builder, precision, _| {
        builder.precision(*precision)
    })
}

pub(super) fn kernels() -> Row<Recipe, impl Form<Value = Option<Kernels>>> {
    flag("pipeline.kernels", "NAME", values::KERNELS_OR_AUTO, None).sets(
        Setting::Kernels,
        if_given(|builder, kernels: &Kernels| builder.kernels(*kernels)),
    )
}

pub(super) fn cuda_graphs() -> Row<Recipe, impl Form<Value = bool>> {
    flag("pipeline.cuda_graphs", "BOOL", Switch, false)
        .free()
        .sets(Setting::CudaGraphs, |builder, graphs, _| {
            builder.cuda_graphs(*graphs).measure_memory(!graphs)
        })
}

pub(super) fn threads_per_stage() -> Row<Recipe, impl Form<Value = Option<usize>>> {
    flag(
        "pipeline.threads_per_stage",
        "N",
        Optional(values::THREADS),
        None,
    )
    .sets(
        Setting::ThreadsPerStage,
        if_given(|builder, own: &usize| builder.threads_per_stage(*own)),
    )
}

pub(super) fn patience() -> Row<Recipe, impl Form<Value = Option<f64>>> {
    flag(
        "pipeline.patience",
        "SECONDS",
        UnlessZero(values::SECONDS),
        None,
    )
    .free()
    .sets(
        Setting::Patience,
        if_given(|builder, seconds: &f64| {
            builder.patience(std::time::Duration::from_secs_f64(*seconds))
        }),
    )
}

pub(super) fn plan() -> Row<Recipe, impl Form<Value = Option<PathBuf>>> {
    flag("pipeline.plan", "FILE", Optional(FilePath), None)
        .common()
        .clap(|arg: Arg| arg.conflicts_with_all(PLANNED).conflicts_with("replicas"))
}

pub(super) fn memory() -> Row<Recipe, impl Form<Value = Vec<Cap>>> {
    flag("pipeline.memory", "LIST", List(values::CAP), Vec::new())
        .clap(|arg| arg.allow_hyphen_values(true))
        .free()
        .beside_unless(&["pipeline.devices"], |before, after| {
            before.devices == after.devices || Cap::fit(&after.memory, &after.devices)
        })
        .sets(Setting::MemoryLimits, |builder, memory, _| {
            Cap::limit(builder, memory)
        })
}

pub(super) fn offload() -> Row<Recipe, impl Form<Value = Offload>> {
    flag("pipeline.offload", "STAGES", values::OFFLOAD, Offload::None)
        .clap(|arg| arg.allow_hyphen_values(true))
        .free()
        .beside_unless(
            &[
                "pipeline.devices",
                "pipeline.schedule",
                "pipeline.chunks",
                "parallel.replicas",
            ],
            |before, after| before.stages() == after.stages() || after.offload.fits(after.stages()),
        )
        .sets(Setting::Offload, |builder, offload, recipe| {
            builder.offload(&offload.of(recipe.stages()))
        })
}

pub(super) fn tf32() -> Row<Recipe, impl Form<Value = bool>> {
    flag("pipeline.tf32", "BOOL", Truth, false)
        // Like the next one, this setting is global to the process and may be set elsewhere: it is
        // applied only if requested.
        .sets(Setting::Tf32, |builder, own, _| {
            if *own { builder.tf32(true) } else { builder }
        })
}

pub(super) fn deterministic() -> Row<Recipe, impl Form<Value = bool>> {
    flag("pipeline.deterministic", "BOOL", Truth, false).sets(
        Setting::Deterministic,
        |builder, own, _| {
            if *own {
                builder.deterministic(true)
            } else {
                builder
            }
        },
    )
}

pub(super) fn replicas() -> Row<Recipe, impl Form<Value = usize>> {
    flag("parallel.replicas", "D", values::COUNT, 1)
        .clap(|arg| arg.alias("data-parallel-size"))
        .free()
        .beside_unless(&["pipeline.devices"], replicas_fit)
        .sets(Setting::Replicas, |builder, replicas, _| {
            builder.replicas(*replicas)
        })
}

pub(super) fn shard_optimizer() -> Row<Recipe, impl Form<Value = bool>> {
    flag("parallel.shard_optimizer", "BOOL", Switch, false)
        .free()
        .sets(Setting::ShardOptimizer, |builder, own, _| {
            builder.shard_optimizer(*own)
        })
}

pub(super) fn local_steps() -> Row<Recipe, impl Form<Value = Option<usize>>> {
    flag("parallel.local_steps", "H", UnlessZero(values::COUNT), None).sets(
        Setting::LocalSteps,
        if_given(|builder, steps: &usize| builder.local_steps(*steps)),
    )
}

pub(super) fn outer_momentum() -> Row<Recipe, impl Form<Value = f64>> {
    flag("parallel.outer_momentum", "MU", values::FRACTION, 0.9)
        .hides_default()
        .sets(Setting::Outer, |builder, momentum, recipe: &Recipe| {
            builder.outer(recipe.outer_learning_rate, *momentum)
        })
}

pub(super) fn tree() -> Row<Recipe, impl Form<Value = usize>> {
    flag("parallel.tree", "K", values::LEAVES, 1)
        .sets(Setting::Tree, |builder, leaves, _| builder.tree(*leaves))
}

/// Applies a setting only if it was given.
fn if_given<V>(
    apply: impl Fn(PipelineBuilder, &V) -> PipelineBuilder,
) -> impl Fn(PipelineBuilder, &Option<V>, &Recipe) -> PipelineBuilder {
    move |builder, value, _| match value {
        Some(value) => apply(builder, value),
        None => builder,
    }
}
