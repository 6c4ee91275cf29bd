//! The types of settings; texts and numbers are here.

mod devices;
mod pipeline;

pub(crate) use devices::{CAP, Cap, OFFLOAD, Offload};
pub(crate) use pipeline::{
    CHUNKS, Devices, KERNELS, KERNELS_OR_AUTO, LEAVES, LOSS, LR_SCHEDULE, OPTIMIZER, PRECISION,
    RECOMPUTE, SCHEDULE, THREADS, schedules, stages_of,
};

use gpipe_partitioner::words::whole_number;

use super::form::One;
use super::{Kind, Value};
use crate::input;
use gpipe_data::{HowMany, Missing, Normalise};

/// Why `train` rejects a value of `plan` and `profile`.
const BY_A_PLAN: &str = "`auto` is for `plan` and `profile`, which write what they choose into a \
                         plan: train by it with --plan";

/// Any text.
pub(crate) const TEXT: One<String> = One {
    kind: Kind::Text,
    parse: |text| Ok(text.to_owned()),
    write: |text| Value::Text(text.clone()),
};

/// A whole number of at least 1.
pub(crate) const COUNT: One<usize> = whole(count);

/// A whole number of at least 0.
pub(crate) const COUNT_OR_NONE: One<usize> = whole(|text| match text.trim() {
    "0" => Ok(0),
    other => count(other).map_err(|why| match why.as_str() {
        "must be at least 1" => "must be at least 0".to_owned(),
        _ => why,
    }),
});

/// Any whole number.
pub(crate) const INTEGER: One<i64> = One {
    kind: Kind::Whole,
    parse: |text| {
        let number = text.trim().parse();
        number.map_err(|_| "must be a whole number".to_owned())
    },
    write: |number| Value::whole(number),
};

/// A 64-bit seed of random numbers.
pub(crate) const SEED: One<u64> = One {
    kind: Kind::Whole,
    parse: input::seed,
    write: |number| Value::whole(number),
};

/// A number.
pub(crate) const NUMBER: One<f64> = real(number);

/// A number above 0.
pub(crate) const POSITIVE: One<f64> = real(positive);

/// A number of at least 0.
pub(crate) const NOT_NEGATIVE: One<f64> = real(|text| {
    let number = number(text).ok().filter(|number| *number >= 0.0);
    number.ok_or_else(|| "must be a number from 0 up".to_owned())
});

/// A fraction below 1.
pub(crate) const FRACTION: One<f64> = real(|text| {
    let number = number(text).ok().filter(|own| (0.0..1.0).contains(own));
    number.ok_or_else(|| "must be a number from 0 to below 1".to_owned())
});

/// A fraction of the data; a whole number was a number of batches in earlier versions.
pub(crate) const SHARE: One<f64> = real(|text| {
    let share = match text.strip_suffix('%') {
        Some(percent) => number(percent).map(|own| own / 100.0),
        None => number(text),
    };
    let share = share.ok().filter(|own| (0.0..1.0).contains(own));
    share.ok_or_else(|| {
        "must be a share from 0 to below 1, such as 0.1 or 10% (--held-out-batches N measures on N \
         batches of it)"
            .to_owned()
    })
});

/// How inputs are normalised.
pub(crate) const NORMALISE: One<Normalise> = One {
    kind: Kind::Text,
    parse: |text| text.parse(),
    write: |how| Value::Text(how.to_string()),
};

/// How missing cells are handled.
pub(crate) const MISSING: One<Missing> = One {
    kind: Kind::Text,
    parse: |text| text.parse(),
    write: |what| Value::Text(what.to_string()),
};

/// A number of loading threads or of prefetched batches.
pub(crate) const HOW_MANY: One<HowMany> = One {
    kind: Kind::WholeOrAuto,
    parse: |text| match text.trim() {
        "auto" => Ok(HowMany::Auto),
        number => match (THREADS.parse)(number) {
            Ok(number) => Ok(HowMany::Fixed(number)),
            Err(why) => Err(format!("{why}, or auto")),
        },
    },
    write: |many| match many {
        HowMany::Fixed(number) => Value::whole(number),
        HowMany::Auto => Value::Text("auto".to_owned()),
    },
};

/// A wait time in seconds.
pub(crate) const SECONDS: One<f64> = real(|text| {
    const YEAR: f64 = 365.0 * 24.0 * 3600.0;
    match positive(text.trim())? {
        seconds if seconds <= YEAR => Ok(seconds),
        _ => Err("must be at most a year (31536000)".to_owned()),
    }
});

/// A whole number that `parse` reads.
pub(crate) const fn whole(parse: fn(&str) -> Result<usize, String>) -> One<usize> {
    One {
        kind: Kind::Whole,
        parse,
        write: |number| Value::whole(number),
    }
}

const fn real(parse: fn(&str) -> Result<f64, String>) -> One<f64> {
    One {
        kind: Kind::Number,
        parse,
        write: |number| Value::number(*number),
    }
}

/// Parses a count of at most 2^32.
fn count(text: &str) -> Result<usize, String> {
    whole_number(text, 1 << 32)
}

fn number(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok();
    let finite = number.filter(|number| number.is_finite());
    finite.ok_or_else(|| "must be a number, and finite".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("must be a number above 0".to_owned()),
    }
}
