//! `[optimizer]` and `[lr]`.

use super::super::optimizer_options::{Course, Numbers};
use super::super::recipe::Recipe;
use super::super::values::{at_least_one, fraction, not_negative, number, positive, steps, truth};
use super::put;
use crate::cli::config::{Key, Kind, Value};

/// The optimizer's keys of numbers, and which optimizers have them.
pub(super) const NUMBERS: [(&str, &[&str]); 7] = [
    ("optimizer.weight_decay", &["adamw", "adam", "sgd"]),
    ("optimizer.beta1", &["adamw", "adam"]),
    ("optimizer.beta2", &["adamw", "adam"]),
    ("optimizer.eps", &["adamw", "adam"]),
    ("optimizer.momentum", &["sgd"]),
    ("optimizer.dampening", &["sgd"]),
    ("optimizer.nesterov", &["sgd"]),
];

/// The schedule's, and which schedules have them.
pub(super) const COURSE: [(&str, &[&str]); 4] = [
    ("lr.steps", &["linear", "cosine", "one-cycle"]),
    ("lr.end", &["linear", "cosine", "one-cycle"]),
    ("lr.rise", &["one-cycle"]),
    ("lr.timescale", &["inverse-sqrt"]),
];

pub(super) fn optimizer() -> Vec<Key<Recipe>> {
    let name = Key::new(
        "optimizer.name",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.update.optimizer, text.parse()),
        |recipe| Some(Value::Text(recipe.update.optimizer.to_string())),
    );
    let rate = Key::new(
        "optimizer.lr",
        Kind::Number,
        |recipe: &mut Recipe, text| put(&mut recipe.update.lr, positive(text)),
        |recipe| Some(Value::number(recipe.update.lr)),
    );
    let nesterov = Key::new(
        "optimizer.nesterov",
        Kind::Truth,
        |recipe: &mut Recipe, text| put(&mut recipe.update.numbers.nesterov, truth(text).map(Some)),
        |recipe| recipe.update.numbers.nesterov.map(Value::Truth),
    );
    let offload = Key::new(
        "optimizer.offload",
        Kind::Truth,
        |recipe: &mut Recipe, text| put(&mut recipe.on_devices.offload_optimizer, truth(text)),
        |recipe| {
            let offload = recipe.on_devices.offload_optimizer;
            offload.then_some(Value::Truth(true))
        },
    );
    vec![
        name.flag("optimizer"),
        rate.flag("lr"),
        of_optimizer("optimizer.weight_decay", not_negative, |own| {
            &mut own.weight_decay
        }),
        of_optimizer("optimizer.beta1", fraction, |own| &mut own.beta1),
        of_optimizer("optimizer.beta2", fraction, |own| &mut own.beta2),
        of_optimizer("optimizer.eps", not_negative, |own| &mut own.eps),
        of_optimizer("optimizer.momentum", not_negative, |own| &mut own.momentum),
        of_optimizer("optimizer.dampening", number, |own| &mut own.dampening),
        beside_optimizer(nesterov, |recipe| recipe.update.numbers.nesterov = None),
        offload.flag("offload_optimizer"),
    ]
}

type Parse = fn(&str) -> Result<f64, String>;

/// A number that some optimizers have.
fn of_optimizer(
    name: &str,
    parse: Parse,
    slot: fn(&mut Numbers) -> &mut Option<f64>,
) -> Key<Recipe> {
    let key = Key::new(
        name,
        Kind::Number,
        move |recipe: &mut Recipe, text| {
            put(slot(&mut recipe.update.numbers), parse(text).map(Some))
        },
        move |recipe| (*slot(&mut { recipe.update.numbers })).map(Value::number),
    );
    beside_optimizer(key, move |recipe| {
        *slot(&mut recipe.update.numbers) = None;
    })
}

fn beside_optimizer(key: Key<Recipe>, reset: impl Fn(&mut Recipe) + 'static) -> Key<Recipe> {
    key.beside(
        &["optimizer.name"],
        |before, after| before.update.optimizer == after.update.optimizer,
        reset,
    )
}

pub(super) fn rate() -> Vec<Key<Recipe>> {
    let name = Key::new(
        "lr.schedule",
        Kind::Text,
        |recipe: &mut Recipe, text| put(&mut recipe.update.lr_schedule, text.parse()),
        |recipe| Some(Value::Text(recipe.update.lr_schedule.to_string())),
    );
    let warmup = Key::new(
        "lr.warmup",
        Kind::Whole,
        |recipe: &mut Recipe, text| put(&mut recipe.update.warmup, steps(text).map(Some)),
        |recipe| recipe.update.warmup.map(Value::whole),
    );
    let length = count_of_course("lr.steps", |own| &mut own.steps).beside(
        &["lr.schedule", "train.steps"],
        |before, after| {
            let same_steps = after.goes_on || before.steps == after.steps;
            same_steps && before.update.lr_schedule == after.update.lr_schedule
        },
        |recipe| recipe.update.course.steps = None,
    );
    let timescale = count_of_course("lr.timescale", |own| &mut own.timescale);
    vec![
        name.flag("lr_schedule"),
        warmup.flag("warmup"),
        length,
        of_course("lr.end", not_negative, |own| &mut own.end),
        of_course("lr.rise", fraction, |own| &mut own.rise),
        beside_schedule(timescale, |recipe| recipe.update.course.timescale = None),
    ]
}

/// A number that some schedules have.
fn of_course(name: &str, parse: Parse, slot: fn(&mut Course) -> &mut Option<f64>) -> Key<Recipe> {
    let key = Key::new(
        name,
        Kind::Number,
        move |recipe: &mut Recipe, text| {
            put(slot(&mut recipe.update.course), parse(text).map(Some))
        },
        move |recipe| (*slot(&mut { recipe.update.course })).map(Value::number),
    );
    beside_schedule(key, move |recipe| *slot(&mut recipe.update.course) = None)
}

fn count_of_course(name: &str, slot: fn(&mut Course) -> &mut Option<usize>) -> Key<Recipe> {
    Key::new(
        name,
        Kind::Whole,
        move |recipe: &mut Recipe, text| {
            put(
                slot(&mut recipe.update.course),
                at_least_one(text).map(Some),
            )
        },
        move |recipe| (*slot(&mut { recipe.update.course })).map(Value::whole),
    )
}

fn beside_schedule(key: Key<Recipe>, reset: impl Fn(&mut Recipe) + 'static) -> Key<Recipe> {
    key.beside(
        &["lr.schedule"],
        |before, after| before.update.lr_schedule == after.update.lr_schedule,
        reset,
    )
}
