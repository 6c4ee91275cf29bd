//! Messages between processes about a checkpoint: a result, as JSON.
//!
//! An error is sent as text, with the properties that others decide by: whether an older checkpoint may
//! help, whether it is wrong use, and the few errors that end training.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::CheckpointError;
use gpipe_torch::Role;
use gpipe_torch::world::Lost;

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Writes<'a, T> {
    Done(&'a T),
    Failed(Told),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reads<T> {
    Done(T),
    Failed(Told),
}

/// An error sent to others.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// There is no checkpoint in this folder.
    None(PathBuf),
    /// A process is lost.
    World(Lost),
    /// An error of a rank on a host.
    Of {
        rank: usize,
        host: String,
        what: What,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    Lost(PathBuf),
    NotFinite {
        path: PathBuf,
        what: String,
        name: String,
    },
    Other {
        why: String,
        damage: bool,
        wrong_use: bool,
    },
}

impl Told {
    /// Converts an error of a rank to the form in which all processes return it.
    pub(super) fn of(error: CheckpointError, rank: usize, host: String) -> CheckpointError {
        match error {
            CheckpointError::Elsewhere { .. }
            | CheckpointError::World(_)
            | CheckpointError::None { .. } => error,
            error => CheckpointError::Elsewhere {
                rank,
                host,
                error: Box::new(error),
            },
        }
    }

    /// Converts an error for sending.
    pub(super) fn from_error(error: &CheckpointError) -> Self {
        match error {
            CheckpointError::None { folder } => Self::None(text(folder)),
            CheckpointError::World(lost) => Self::World(lost.clone()),
            CheckpointError::Elsewhere { rank, host, error } => Self::Of {
                rank: *rank,
                host: host.clone(),
                what: What::of(error),
            },
            error => Self::Of {
                rank: 0,
                host: String::new(),
                what: What::of(error),
            },
        }
    }

    pub(super) fn into_error(self) -> CheckpointError {
        match self {
            Self::None(folder) => CheckpointError::None { folder },
            Self::World(lost) => CheckpointError::World(lost),
            Self::Of { rank, host, what } => CheckpointError::Elsewhere {
                rank,
                host,
                error: Box::new(what.into_error()),
            },
        }
    }
}

impl What {
    fn of(error: &CheckpointError) -> Self {
        match error {
            CheckpointError::Lost { folder } => Self::Lost(text(folder)),
            CheckpointError::NotFinite { path, what, name } => Self::NotFinite {
                path: text(path),
                what: (*what).to_owned(),
                name: name.clone(),
            },
            error => Self::Other {
                why: error.to_string(),
                damage: error.is_damage(),
                wrong_use: error.is_wrong_use(),
            },
        }
    }

    fn into_error(self) -> CheckpointError {
        match self {
            Self::Lost(folder) => CheckpointError::Lost { folder },
            Self::NotFinite { path, what, name } => {
                let roles = [Role::Parameter, Role::Optimizer(String::new())];
                let known = roles.iter().map(Role::in_words).find(|own| *own == what);
                let what = known.unwrap_or("the tensor");
                CheckpointError::NotFinite { path, what, name }
            }
            Self::Other {
                why,
                damage,
                wrong_use,
            } => CheckpointError::Told {
                why,
                damage,
                wrong_use,
            },
        }
    }
}

/// JSON holds only paths that are valid text.
fn text(path: &Path) -> PathBuf {
    path.to_string_lossy().into_owned().into()
}

/// Serializes a result.
pub(super) fn written<T: Serialize>(result: Result<&T, &CheckpointError>) -> String {
    let told = match result {
        Ok(done) => Writes::Done(done),
        Err(error) => Writes::Failed(Told::from_error(error)),
    };
    // Plain data always serializes.
    serde_json::to_string(&told).unwrap_or_default()
}

/// Parses a result.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, CheckpointError> {
    match serde_json::from_str(text) {
        Ok(Reads::Done(done)) => Ok(done),
        Ok(Reads::Failed(told)) => Err(told.into_error()),
        // Sent by another version of this program.
        Err(error) => Err(CheckpointError::Told {
            why: format!("another process says what this one does not understand: {error}"),
            damage: false,
            wrong_use: false,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All processes base decisions on the same error.
    #[test]
    fn an_error_is_the_same_elsewhere() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let path = PathBuf::from("runs/1/checkpoints");
        let not_finite = |role: Role| CheckpointError::not_finite(&path, &role, "a".to_owned());
        let errors = [
            CheckpointError::None {
                folder: path.clone(),
            },
            CheckpointError::Lost {
                folder: path.clone(),
            },
            not_finite(Role::Parameter),
            not_finite(Role::Optimizer("mean".to_owned())),
            CheckpointError::write("write", &path, full),
            CheckpointError::Checksum { path: path.clone() },
            CheckpointError::fit(&path, "another model"),
        ];
        for error in errors {
            let variant = std::mem::discriminant(&error);
            let decided = !matches!(error.to_string(), text if text.contains("not fit")
                || text.contains("checksum") || text.contains("space"));
            let own = Told::of(error, 2, "node".to_owned());
            let other = read::<()>(&written::<()>(Err(&own))).unwrap_err();
            assert_eq!(other.to_string(), own.to_string());
            assert_eq!(other.is_damage(), own.is_damage(), "{own}");
            assert_eq!(other.is_wrong_use(), own.is_wrong_use(), "{own}");
            let same = std::mem::discriminant(other.cause()) == variant;
            assert_eq!(same, decided, "{other:?}");
            let named = matches!(own, CheckpointError::None { .. });
            assert_ne!(own.to_string().starts_with("rank 2 on `node`: "), named);
        }
        assert_eq!(read::<u8>(&written(Ok(&7_u8))).unwrap(), 7);
        read::<u8>("{").unwrap_err();
    }
}
