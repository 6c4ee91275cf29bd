//! Samples as a model takes them: pairs of an input and a target, or arrays of several inputs.

use std::time::{Duration, Instant};

use serde_json::Value;

use gpipe_data::{Batches, DataError, HowMany, Loader, Part, Samples, Several, Source, not_finite};
use gpipe_torch::Values;

/// Inputs and targets in batches.
pub(crate) type Rows = Loader<(Values, Values)>;

/// How many threads load, and how many batches they are ahead.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    pub(crate) workers: Option<HowMany>,
    pub(crate) prefetch: Option<HowMany>,
    /// Bad items that are skipped in an epoch.
    pub(crate) skip_bad: u64,
}

impl Pace {
    /// The same with a number of workers where nobody said any.
    pub(crate) fn or_workers(self, workers: usize) -> Self {
        let workers = self.workers.or(Some(HowMany::Fixed(workers)));
        Self { workers, ..self }
    }

    /// Batches at this pace, from a saved position or from the beginning.
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

/// What a model learns from.
#[derive(Debug, Clone)]
pub(crate) enum Learned {
    /// An input and a target each.
    Pairs(Samples),
    /// The same, where the model takes both as inputs and computes its loss itself.
    Inputs(Samples),
    /// Arrays that are called as the model's inputs.
    Several(Several),
}

impl Learned {
    fn pairs(&self) -> Result<&Samples, &Several> {
        match self {
            Self::Pairs(samples) | Self::Inputs(samples) => Ok(samples),
            Self::Several(several) => Err(several),
        }
    }

    /// How many are trained on.
    pub(crate) fn train_len(&self) -> usize {
        self.pairs()
            .map_or_else(Several::train_len, Samples::train_len)
    }

    /// How many are held out.
    pub(crate) fn held_out_len(&self) -> usize {
        self.pairs()
            .map_or_else(Several::held_out_len, Samples::held_out_len)
    }

    /// How many there are without a test part.
    pub(crate) fn len(&self) -> usize {
        self.pairs().map_or_else(Several::len, Samples::len)
    }

    /// What they are, in a few words.
    pub(crate) fn describe(&self) -> String {
        self.pairs()
            .map_or_else(Several::describe, Samples::describe)
    }

    /// What is to be said of them besides.
    pub(crate) fn notes(&self) -> &[String] {
        self.pairs().map_or_else(Several::notes, Samples::notes)
    }

    /// Classes of which there is no sample, as far as that is known.
    pub(crate) fn absent_classes(&self) -> &[String] {
        self.pairs().map_or(&[], Samples::absent_classes)
    }

    /// Mean and standard deviation by which targets are scaled, where they are.
    pub(crate) fn target_scale(&self) -> Option<(f64, f64)> {
        self.pairs().ok().and_then(Samples::target_scale)
    }

    /// How many classes have names.
    pub(crate) fn named_classes(&self) -> usize {
        self.pairs().map_or(0, |own| own.class_names().len())
    }

    /// What a run keeps of them.
    pub(crate) fn kept(&self) -> Value {
        self.pairs().map_or_else(Several::kept, Samples::kept)
    }

    /// That they are those that a run has kept this of.
    ///
    /// # Errors
    /// They are others.
    pub(crate) fn check_same(&self, kept: &Value) -> Result<(), DataError> {
        match self.pairs() {
            Ok(samples) => samples.check_same(kept),
            Err(several) => several.check_same(kept),
        }
    }

    /// Batches of a part from a saved position, or from the beginning, made at this pace; none where there is no such part.
    ///
    /// # Errors
    /// The position is one in other data, or there is no thread.
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

    /// The first sample with a number that is NaN or infinite, of those that are trained on and then of those
    /// that are held out, where one is found within a while; none also where they cannot be read.
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

    /// Threads that leave the stages some cores.
    pub(crate) fn workers(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Images are decoded, which takes longer than small models do.
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
