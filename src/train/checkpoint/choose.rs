//! Selects a checkpoint: in one process, or the same one in several.
//!
//! Rank 0 lists the checkpoints and names one; every process opens and verifies its part, and reports
//! the result; rank 0 takes it or tries an older one, and tells the decision.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::CheckpointError;
use super::lock::same;
use super::needs::Needs;
use super::open::{Checkpoint, Listed};
use super::together::Together;
use super::told::Told;
use gpipe_torch::world::World;

/// Number of invalid checkpoints tried before concluding that they are damaged, rather than removed
/// meanwhile.
const MOST_LOOKS: usize = 100;

/// A search for a checkpoint.
pub(super) struct Search<'a> {
    pub(super) folder: &'a Path,
    pub(super) together: Together,
    pub(super) needs: Needs,
    /// Whether only the newest is acceptable, rather than an older intact one.
    pub(super) newest: bool,
    /// Additional condition.
    pub(super) good: &'a dyn Fn(&Checkpoint) -> Result<(), CheckpointError>,
    /// Called between listing and opening.
    pub(super) listed: &'a mut dyn FnMut(),
}

/// A message from rank 0 to the others.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    /// Open the checkpoint of this name.
    Open(String),
    /// Take the last one; these are the errors of newer ones.
    Take(Vec<Told>),
}

/// Errors of the newer checkpoints.
type Wrong = Vec<CheckpointError>;

impl Search<'_> {
    /// Returns the checkpoint that all processes take.
    pub(super) fn run(mut self) -> Result<(Checkpoint, Wrong), CheckpointError> {
        if !self.together.leads() {
            return self.follow();
        }
        let found = self.find();
        let mut taken = None;
        self.together.tell(|| {
            let (checkpoint, wrong) = found?;
            let told = wrong.iter().map(Told::from_error).collect();
            taken = Some((checkpoint, wrong));
            Ok(Word::Take(told))
        })?;
        taken.ok_or_else(|| none(self.folder))
    }

    /// The search in rank 0.
    fn find(&mut self) -> Result<(Checkpoint, Wrong), CheckpointError> {
        let (mut taken, mut wrong) = (None, Vec::new());
        self.each(&mut |opened| {
            match opened {
                Ok(checkpoint) => taken = Some(checkpoint),
                // A lost process cannot open an older one either.
                Err(error) if error.lost().is_some() => {
                    wrong.clear();
                    wrong.push(error);
                    return true;
                }
                Err(error) => wrong.push(error),
            }
            taken.is_some()
        })?;
        match taken {
            Some(checkpoint) => Ok((checkpoint, wrong)),
            None => Err(wrong
                .into_iter()
                .next()
                .unwrap_or_else(|| none(self.folder))),
        }
    }

    /// Opens the checkpoints of a folder, newest first, until one is `taken`. If one was removed or
    /// replaced since listing, as a writer of newer ones does, lists again.
    fn each(
        &mut self,
        taken: &mut dyn FnMut(Result<Checkpoint, CheckpointError>) -> bool,
    ) -> Result<(), CheckpointError> {
        let mut looks = 0;
        let mut all = self.list()?;
        while let Some(Listed { path, .. }) = all.pop() {
            let before = path.metadata();
            let opened = self.open(&path);
            looks += 1;
            let is_there = || matches!((&before, &path.metadata()), (Ok(a), Ok(b)) if same(a, b));
            if opened.is_err() && looks < MOST_LOOKS && !is_there() {
                all = self.list()?;
            } else if taken(opened) || self.newest {
                break;
            }
        }
        Ok(())
    }

    fn list(&mut self) -> Result<Vec<Listed>, CheckpointError> {
        let all = Checkpoint::list(self.folder)?;
        (self.listed)();
        Ok(all)
    }

    /// Opens a checkpoint in all processes; returns rank 0's if all succeed.
    fn open(&self, path: &Path) -> Result<Checkpoint, CheckpointError> {
        let name = path.file_name().unwrap_or_default();
        let word = Word::Open(name.to_string_lossy().into_owned());
        self.together.tell(|| Ok(word))?;
        let (own, sum) = self.own(path);
        let sums = self.together.collect(sum)?;
        let other = sums.iter().position(|sum| *sum != sums[0]);
        if let Some(rank) = other {
            return Err(CheckpointError::NotShared {
                folder: self.folder.to_owned(),
                why: format!(
                    "rank {rank} on `{}` reads another manifest in {} than rank 0",
                    self.together.host(rank),
                    name.display()
                ),
            });
        }
        own.ok_or_else(|| none(self.folder))
    }

    /// Opens this process's part, and returns the manifest's checksum.
    fn own(&self, path: &Path) -> (Option<Checkpoint>, Result<String, CheckpointError>) {
        let opened = Checkpoint::open_part(path, &self.together, &self.needs);
        match opened.and_then(|own| (self.good)(&own).map(|()| own)) {
            Ok(own) => {
                let sum = own.sum().to_owned();
                (Some(own), Ok(sum))
            }
            Err(error) => (None, Err(error)),
        }
    }

    /// Follows rank 0's messages in the other ranks.
    fn follow(&self) -> Result<(Checkpoint, Wrong), CheckpointError> {
        let mut last = None;
        loop {
            match self.together.tell(|| Ok(Word::Take(Vec::new())))? {
                Word::Take(wrong) => {
                    let last = last.ok_or_else(|| none(self.folder))?;
                    let wrong = wrong.into_iter().map(Told::into_error);
                    return Ok((last, wrong.collect()));
                }
                Word::Open(name) => {
                    let (own, sum) = self.own(&self.path(&name));
                    last = own;
                    self.together.collect(sum)?;
                }
            }
        }
    }

    /// Returns the path of a checkpoint named by rank 0, always within the folder.
    fn path(&self, name: &str) -> PathBuf {
        let name = Path::new(name).file_name().unwrap_or_default();
        self.folder.join(name)
    }
}

pub(super) fn none(folder: &Path) -> CheckpointError {
    CheckpointError::None {
        folder: folder.to_owned(),
    }
}

impl Checkpoint {
    /// Opens the newest checkpoint of a folder, even while others are written there and old ones
    /// removed.
    ///
    /// # Errors
    /// There is none, or it is invalid: see [`Checkpoint::open`]. Then [`Checkpoint::newest_intact`]
    /// finds an older one.
    pub fn newest(folder: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Self::newest_of(folder.as_ref(), &mut || ())
    }

    /// Calls `listed` between listing and opening.
    pub(super) fn newest_of(
        folder: &Path,
        listed: &mut dyn FnMut(),
    ) -> Result<Self, CheckpointError> {
        let search = Search {
            folder,
            together: Together::alone(),
            needs: Needs::Share,
            newest: true,
            good: &|_| Ok(()),
            listed,
        };
        search.run().map(|(newest, _)| newest)
    }

    /// Returns the newest intact checkpoint, and the errors of newer ones.
    ///
    /// # Errors
    /// There is no checkpoint; or, if none is intact, the error of the newest.
    pub fn newest_intact(
        folder: impl AsRef<Path>,
    ) -> Result<(Self, Vec<CheckpointError>), CheckpointError> {
        Self::newest_that(folder.as_ref(), |_| Ok(()))
    }

    /// Like [`Checkpoint::newest_intact`], with the additional condition `good`.
    pub(crate) fn newest_that(
        folder: &Path,
        good: impl Fn(&Self) -> Result<(), CheckpointError>,
    ) -> Result<(Self, Vec<CheckpointError>), CheckpointError> {
        let search = Search {
            folder,
            together: Together::alone(),
            needs: Needs::Share,
            newest: false,
            good: &good,
            listed: &mut || (),
        };
        search.run()
    }

    /// Opens the newest checkpoint of a folder in all processes of a world: each verifies what it
    /// [needs](Needs), and all take it or none. All must call this, in the same order.
    ///
    /// # Errors
    /// As [`Checkpoint::newest`], the same in all processes, with the rank that found it;
    /// [`CheckpointError::World`].
    pub fn newest_in_world(
        folder: impl AsRef<Path>,
        world: &World,
        needs: Needs,
    ) -> Result<Self, CheckpointError> {
        let found = Self::search_in_world(folder.as_ref(), world, needs, true, &|_| Ok(()));
        found.map(|(newest, _)| newest)
    }

    /// Returns the newest checkpoint whose parts are intact in every process of a world, and the errors
    /// of newer ones: see [`Checkpoint::newest_in_world`].
    ///
    /// # Errors
    /// As [`Checkpoint::newest_intact`], the same in all processes; [`CheckpointError::World`].
    pub fn newest_intact_in_world(
        folder: impl AsRef<Path>,
        world: &World,
        needs: Needs,
    ) -> Result<(Self, Vec<CheckpointError>), CheckpointError> {
        Self::search_in_world(folder.as_ref(), world, needs, false, &|_| Ok(()))
    }

    /// Searches with the additional condition `good` in each process; `newest` accepts no older one.
    pub(crate) fn search_in_world(
        folder: &Path,
        world: &World,
        needs: Needs,
        newest: bool,
        good: &dyn Fn(&Self) -> Result<(), CheckpointError>,
    ) -> Result<(Self, Vec<CheckpointError>), CheckpointError> {
        let search = Search {
            folder,
            together: Together::all(world)?,
            needs,
            newest,
            good,
            listed: &mut || (),
        };
        search.run()
    }
}
