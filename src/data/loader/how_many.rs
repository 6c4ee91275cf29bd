//! Numbers that a loader may tune.

use std::fmt;
use std::str::FromStr;

/// A number of workers or prefetched batches: fixed, or tuned for speed.
///
/// ```
/// use gpipe::data::{Dataset, HowMany, Made};
///
/// let items = Dataset::new(Made::new(100, |number| Ok(number as i64)));
/// let batches = items.batch(10).workers(HowMany::Auto).prefetch(HowMany::Auto);
/// assert_eq!(batches.load()?.count(), 10); // the same ones as with one worker
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HowMany {
    /// A fixed number.
    Fixed(usize),
    /// Tuned while batches are taken: starts with the default and changes what was measured to be slow,
    /// within the [memory](super::Batches::memory) limit.
    Auto,
}

impl HowMany {
    /// Returns the number, if it is fixed.
    pub fn fixed(self) -> Option<usize> {
        match self {
            Self::Fixed(number) => Some(number),
            Self::Auto => None,
        }
    }
}

impl From<usize> for HowMany {
    fn from(number: usize) -> Self {
        Self::Fixed(number)
    }
}

/// Formats as `4` or `auto`.
impl fmt::Display for HowMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(number) => number.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for HowMany {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            number => {
                let number = number.parse().map(Self::Fixed);
                number.map_err(|_| "must be a whole number or `auto`".to_owned())
            }
        }
    }
}
