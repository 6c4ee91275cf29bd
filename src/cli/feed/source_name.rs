//! Name and size of data.

use super::{SYNTHETIC, Source};
use crate::output::thousands;
use gpipe_data::Tokens;

impl Source {
    /// Name of the data.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Text { path: None, .. } | Self::Tokens { path: None, .. } => {
                "built-in: moby-dick".to_owned()
            }
            Self::Text {
                path: Some(path), ..
            }
            | Self::Tokens {
                path: Some(path), ..
            }
            | Self::Samples {
                path: Some(path), ..
            } => path.display().to_string(),
            Self::Samples { path: None, .. } => "the model's own".to_owned(),
            Self::Synthetic(_) => SYNTHETIC.to_owned(),
        }
    }

    /// Describes the numbers of training and held-out tokens; `None` for other data.
    pub(crate) fn parts(&self) -> Option<String> {
        let (windows, unit) = match self {
            Self::Text { windows, .. } => (windows, "character"),
            Self::Tokens { windows, .. } => (windows, "token"),
            Self::Samples { .. } | Self::Synthetic(_) => return None,
        };
        let held_out = windows.held_out.as_ref().map_or(0, Tokens::len);
        let train = format!("{} {unit}s", thousands(windows.train.len() as u64));
        Some(match held_out {
            0 => train,
            held_out => format!(
                "{train} to train on, {} held out",
                thousands(held_out as u64)
            ),
        })
    }
}
