//! Samples for a model: input-target pairs, or arrays for several inputs.

use std::time::{Duration, Instant};

use serde_json::Value;

use gpipe_data::{Batches, DataError, HowMany, Loader, Part, Samples, Several, Source, not_finite};
use gpipe_torch::Values;

/// Inputs and targets in batches.
pub(crate) type Rows = Loader<(Values, Values)>;

/// Numbers of loading threads and of prefetched batches.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    pub(crate) workers: Option<HowMany>,
    pub(crate) prefetch: Option<HowMany>,
    /// Limit of bad items skipped in an epoch.
    pub(crate) skip_bad: u64,
}

impl Pace {
    /// Sets the number of workers, unless it was given.
    pub(crate) fn or_workers(self, workers: usize) -> Self {
        let workers = self.workers.or(Some(HowMany::Fixed(workers)));
        Self { workers, ..self }
    }

    /// Loads batches at this pace, from a saved position or from the beginning.
    pub(super) fn load<S: Source, B: Send + 'static>(
        self,
        batches: Batches<S, B>,
        from: Option<&Value>,
    ) -> Result<Loader<B>, DataError> {
        let batches = batches.skip_bad(self.skip_bad);
        let batches = match self.workers {
            Some(workers) => batches.workers(workers),
            None => batches,
        };
        let batches = match self.prefetch {
            Some(prefetch) => batches.prefetch(prefetch),
            None => batches,
        };
        match from {
            Some(state) => batches.resume(state).load(),
            None => batches.load(),
        }
    }
}

/// Training data of a model.
#[derive(Debug, Clone)]
pub(crate) enum Learned {
    /// Pairs of input and target.
    Pairs(Samples),
    /// Pairs that are both inputs of a model that computes its own loss.
    Inputs(Samples),
    /// Arrays named after the model's inputs.
    Several(Several),
}

impl Learned {
    fn pairs(&self) -> Result<&Samples, &Several> {
        match self {
            Self::Pairs(samples) | Self::Inputs(samples) => Ok(samples),
            Self::Several(several) => Err(several),
        }
    }

    /// Number of training samples.
    pub(crate) fn train_len(&self) -> usize {
        self.pairs()
            .map_or_else(Several::train_len, Samples::train_len)
    }

    /// Number of held-out samples.
    pub(crate) fn held_out_len(&self) -> usize {
        self.pairs()
            .map_or_else(Several::held_out_len, Samples::held_out_len)
    }

    /// Number of samples, without a test part.
    pub(crate) fn len(&self) -> usize {
        self.pairs().map_or_else(Several::len, Samples::len)
    }

    /// Describes the samples in a few words.
    pub(crate) fn describe(&self) -> String {
        self.pairs()
            .map_or_else(Several::describe, Samples::describe)
    }

    /// Notes about the samples.
    pub(crate) fn notes(&self) -> &[String] {
        self.pairs().map_or_else(Several::notes, Samples::notes)
    }

    /// Known classes without samples.
    pub(crate) fn absent_classes(&self) -> &[String] {
        self.pairs().map_or(&[], Samples::absent_classes)
    }

    /// Mean and standard deviation that targets are scaled by, if they are scaled.
    pub(crate) fn target_scale(&self) -> Option<(f64, f64)> {
        self.pairs().ok().and_then(Samples::target_scale)
    }

    /// Number of named classes.
    pub(crate) fn named_classes(&self) -> usize {
        self.pairs().map_or(0, |own| own.class_names().len())
    }

    /// The description that a run saves of its samples.
    pub(crate) fn kept(&self) -> Value {
        self.pairs().map_or_else(Several::kept, Samples::kept)
    }

    /// Checks that the samples match the description saved by a run.
    ///
    /// # Errors
    /// They are other samples.
    pub(crate) fn check_same(&self, kept: &Value) -> Result<(), DataError> {
        match self.pairs() {
            Ok(samples) => samples.check_same(kept),
            Err(several) => several.check_same(kept),
        }
    }

    /// Loads batches of a part from a saved position or from the beginning; `None` if there is no such
    /// part.
    ///
    /// # Errors
    /// The position is of other data, or no thread can be created.
    pub(crate) fn load(
        &self,
        part: Part,
        (size, pace): (usize, Pace),
        from: Option<&Value>,
    ) -> Result<Option<Rows>, DataError> {
        let own_loss = matches!(self, Self::Inputs(_));
        match self.pairs() {
            Ok(samples) => load(samples.values(part, size, own_loss), pace, from),
            Err(several) => load(several.values(part, size), pace, from),
        }
    }

    /// Describes the first training or held-out sample with a NaN or infinite value. `None` if none is
    /// found within 10 s, or if samples cannot be read.
    pub(crate) fn not_finite(&self) -> Option<String> {
        const ROWS: usize = 64;
        let end = Instant::now() + Duration::from_secs(10);
        for (part, name) in [(Part::All, "sample"), (Part::HeldOut, "held-out sample")] {
            let mut before = 0;
            let rows = self.load(part, (ROWS, Pace::default()), None).ok()?;
            for (x, y) in rows.into_iter().flatten().map_while(Result::ok) {
                let first = |values: &Values| {
                    let each = values.present().filter_map(|own| not_finite(own).ok()?);
                    each.min()
                };
                let found = first(&x).map(|row| (row, "inputs"));
                let found = found.or_else(|| first(&y).map(|row| (row, "targets")));
                if let Some((row, what)) = found {
                    return Some(format!(
                        "{name} {} (counted from 0) has {what} that are NaN or infinite",
                        before + row
                    ));
                }
                before += x.present().next().map_or(0, |x| x.size()[0] as usize);
                if Instant::now() > end {
                    return None;
                }
            }
        }
        None
    }

    /// Number of loading threads that leaves some cores to the stages.
    pub(crate) fn workers(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Decoding images takes longer than small models do.
        match self.pairs().map(Samples::input) {
            Ok([_, _, _]) => cores.div_ceil(2).min(8),
            _ => 1,
        }
    }
}

fn load<S: Source>(
    batches: Option<Batches<S, (Values, Values)>>,
    pace: Pace,
    from: Option<&Value>,
) -> Result<Option<Rows>, DataError> {
    let loaded = batches.map(|batches| pace.load(batches, from));
    loaded.transpose()
}
