//! Impossible settings are refused when the pipeline is built, with a clear message.

use crate::support::{cpus, mlp, sequential};
use gpipe::partitioner::{Bytes, PartitionError, ScheduleKind, Shape};
use gpipe::tch::{Device, nn};
use gpipe::{
    Error, Pipeline, PipelineBuilder, Sequential,
    error::{Setting, SettingsRule, StageCount},
    settings::Recompute,
};

fn refusal(builder: PipelineBuilder) -> String {
    let error = builder.build().unwrap_err();
    assert!(error.is_wrong_use(), "{error}");
    error.to_string()
}

fn linear(p: &nn::Path<'_>) -> nn::Linear {
    nn::linear(p, 4, 4, nn::LinearConfig::default())
}

#[test]
fn two_parameters_of_one_name() {
    let model = Sequential::new()
        .layer("a", |p| linear(&(p / "b")))
        .layer("a.b", linear);
    let why = refusal(Pipeline::builder(model).devices(&cpus(2)));
    assert!(why.starts_with("two parameters are named `a.b."), "{why}");
}

#[test]
fn a_schedule_for_other_numbers() {
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(2, 4)).unwrap();
    let builder = || {
        Pipeline::builder(sequential(&mlp()))
            .devices(&cpus(2))
            .custom_schedule(schedule.clone())
    };
    let why = refusal(builder().micro_batches(8));
    assert_eq!(why, "the schedule `1f1b` is for 4 micro-batches, not 8");
    let why = refusal(builder().chunks(3));
    assert!(why.contains("is not 3 chunks each"), "{why}");
    let why = refusal(builder().devices(&cpus(3)));
    assert!(why.contains("is for 2 devices, but there are 3"), "{why}");
}

#[test]
fn ties_that_do_not_fit() {
    let model = Sequential::new()
        .layer("a", linear)
        .layer("c", |p| nn::linear(p, 4, 2, nn::LinearConfig::default()));
    let tied = |copy: &str| refusal(Pipeline::builder(model.clone().tie("a.weight", copy)));
    let why = tied("c.weight");
    assert!(why.contains("`c.weight` of shape [2, 4] (Float)"), "{why}");
    assert!(tied("d.weight").contains("`d.weight`"));
    assert!(tied("a.nothing").contains("`a.nothing`"));
    assert!(tied("a.weight").contains("tied already"));
}

/// Errors that depend only on the settings must also be reported by `check`, which builds no layer.
fn unfit(set: impl Fn(PipelineBuilder) -> PipelineBuilder) -> Error {
    let unbuildable = |_: &nn::Path<'_>| -> anyhow::Result<nn::Linear> { panic!("it was built") };
    let model = (0..4).fold(Sequential::new(), |model, layer| {
        model.try_layer(format!("l{layer}"), unbuildable)
    });
    let builder = set(Pipeline::builder(model));
    let error = builder.check().unwrap_err();
    assert_eq!(
        error.to_string(),
        builder.build().unwrap_err().to_string(),
        "`build` says the same"
    );
    error
}

/// Regression test: all mistakes were texts, which callers could not distinguish.
#[test]
fn a_setting_that_does_not_fit_is_named_with_its_rule() {
    let count = |given, wanted, each| SettingsRule::Count {
        given,
        wanted,
        each,
    };
    let (cpu, card) = (Device::Cpu, Device::Cuda(0));
    let limits = [Some(Bytes(1 << 30)), None];
    let cases: [(&dyn Fn(PipelineBuilder) -> PipelineBuilder, _, _, &str); 10] = [
        (
            &|b| b.micro_batches(0),
            Setting::MicroBatches,
            SettingsRule::None,
            "0 micro-batches",
        ),
        (
            &|b| b.patience(std::time::Duration::ZERO),
            Setting::Patience,
            SettingsRule::None,
            "a patience of 0",
        ),
        (
            &|b| {
                b.devices(&cpus(2))
                    .schedule(ScheduleKind::Zbv)
                    .balance(&[4])
            },
            Setting::Balance,
            SettingsRule::Stages {
                given: 1,
                made: stages(2, 2, Some(ScheduleKind::Zbv)),
            },
            "`balance` names 1 stage, but 2 devices with 2 chunks each (`schedule` zbv) make 4 \
             stages: give one number for each stage",
        ),
        (
            &|b| b.recompute(Recompute::Stages(vec![true, false])),
            Setting::Recompute,
            count(2, 1, "stage"),
            "`recompute` has 2 entries, and there is 1 stage",
        ),
        (
            &|b| b.devices(&cpus(2)).offload(&[0, 2]),
            Setting::Offload,
            SettingsRule::NoStage {
                stage: 2,
                stages: 2,
            },
            "`offload` names stage 2, but there are 2, numbered from 0",
        ),
        (
            &|b| b.devices(&[card, card]).memory_limits(&limits[..1]),
            Setting::MemoryLimits,
            count(1, 2, "device"),
            "`memory_limits` has 1 value, but `devices` names 2",
        ),
        (
            &|b| b.devices(&[cpu, cpu]).memory_limits(&limits),
            Setting::MemoryLimits,
            SettingsRule::NoCudaDevice,
            "and `devices` has none",
        ),
        (
            &|b| b.memory_limit(Bytes(1 << 30)),
            Setting::MemoryLimits,
            SettingsRule::NoCudaDevice,
            "and `devices` has none",
        ),
        (
            &|b| b.devices(&[cpu, card]).memory_limits(&limits),
            Setting::MemoryLimits,
            SettingsRule::LimitOfCpu {
                place: 0,
                limit: Bytes(1 << 30),
            },
            "`memory_limits` gives 1GiB to device 0, which is a CPU",
        ),
        (
            &|b| b.devices(&[card, card]).memory_limits(&limits),
            Setting::MemoryLimits,
            SettingsRule::LimitedAndNot { device: card },
            "with a memory limit and without",
        ),
    ];
    for (set, setting, rule, said) in cases {
        let Error::Settings(error) = unfit(set) else {
            panic!("{said}: another error");
        };
        assert_eq!((error.setting, &error.rule), (setting, &rule));
        assert!(error.to_string().contains(said), "{error}");
    }
}

fn stages(devices: usize, chunks: usize, by: Option<ScheduleKind>) -> StageCount {
    StageCount::new(devices, chunks, by)
}

/// The partitioner's own errors are passed on.
#[test]
fn cuts_and_schedules_that_there_are_not_are_told_before_anything_is_built() {
    let error = unfit(|b| b.devices(&cpus(5)));
    let too_many = PartitionError::TooManyStages {
        stages: 5,
        layers: 4,
    };
    assert!(
        matches!(&error, Error::Partition(own) if *own == too_many),
        "{error}"
    );
    let error = unfit(|b| b.devices(&cpus(2)).balance(&[1, 2]));
    assert!(
        matches!(
            &error,
            Error::Partition(PartitionError::TooFew { covered: 3, .. })
        ),
        "{error}"
    );
    let error = unfit(|b| b.devices(&cpus(2)).schedule(ScheduleKind::GPipe).chunks(2));
    assert!(matches!(&error, Error::Schedule(_)), "{error}");
}

/// Callers with other names for the settings, such as flags, get the error in their names.
#[test]
fn an_error_of_settings_is_told_in_the_callers_names() {
    let Error::Settings(error) = unfit(|b| b.devices(&cpus(2)).offload(&[7])) else {
        panic!("another error");
    };
    let shouted = |setting: Setting| setting.name().to_uppercase();
    assert_eq!(
        error.named(&shouted),
        "OFFLOAD names stage 7, but there are 2, numbered from 0"
    );
}
