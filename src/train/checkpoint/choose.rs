//! Which checkpoint is taken: by one process, or by several that must take the same.
//!
//! Rank 0 looks what there is and names one; every process opens and verifies its part of it, and
//! says how that went; rank 0 takes it or goes on to an older one, and tells what came of it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::CheckpointError;
use super::lock::same;
use super::needs::Needs;
use super::open::{Checkpoint, Listed};
use super::together::Together;
use super::told::Told;
use gpipe_torch::world::World;

/// So many checkpoints that are no good are looked at before it is believed that none of
/// them was only removed meanwhile.
const MOST_LOOKS: usize = 100;

/// Who looks for a checkpoint, where, and for which.
pub(super) struct Search<'a> {
    pub(super) folder: &'a Path,
    pub(super) together: Together,
    pub(super) needs: Needs,
    /// Whether the newest will do only, or an older one as well that is intact.
    pub(super) newest: bool,
    /// What else it must be.
    pub(super) good: &'a dyn Fn(&Checkpoint) -> Result<(), CheckpointError>,
    /// Called between looking what there is and opening it.
    pub(super) listed: &'a mut dyn FnMut(),
}

/// What rank 0 says to the others.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    /// Open the checkpoint of this name.
    Open(String),
    /// Take the last one; this is what is wrong with newer ones.
    Take(Vec<Told>),
}

/// What is wrong with the newer ones.
type Wrong = Vec<CheckpointError>;

impl Search<'_> {
    /// The checkpoint that all take.
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

    /// In rank 0.
    fn find(&mut self) -> Result<(Checkpoint, Wrong), CheckpointError> {
        let (mut taken, mut wrong) = (None, Vec::new());
        self.each(&mut |opened| {
            match opened {
                Ok(checkpoint) => taken = Some(checkpoint),
                // Nobody is there who could open an older one.
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

    /// Opens the checkpoints of a folder, newest first, until one is `taken`. Where one has
    /// been removed or replaced since the folder was looked at, as those who write newer ones
    /// do, it looks again.
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

    /// Has all open one; gives that of rank 0 where all could.
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

    /// This process's part of one, and the checksum of its manifest.
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

    /// In the other ranks: what rank 0 says.
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

    /// The path of a checkpoint that rank 0 names: nowhere but in the folder.
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
    /// The newest checkpoint of a folder of checkpoints, also while others are written
    /// there, and old ones removed.
    ///
    /// # Errors
    /// There is none, or it is no good: see [`Checkpoint::open`]. Then
    /// [`Checkpoint::newest_intact`] finds an older one.
    pub fn newest(folder: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Self::newest_of(folder.as_ref(), &mut || ())
    }

    /// `listed` is called between looking what there is and opening it.
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

    /// The newest checkpoint that is intact, and what is wrong with each newer one.
    ///
    /// # Errors
    /// There is no checkpoint. Where none is intact: what is wrong with the newest.
    pub fn newest_intact(
        folder: impl AsRef<Path>,
    ) -> Result<(Self, Vec<CheckpointError>), CheckpointError> {
        Self::newest_that(folder.as_ref(), |_| Ok(()))
    }

    /// The same of those that are `good` besides.
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

    /// The newest checkpoint of a folder, for all processes of a world: each verifies what it
    /// [needs](Needs), and all take it or none. All must call this, in the same order.
    ///
    /// # Errors
    /// As of [`Checkpoint::newest`], in all the same, with the rank that has found it;
    /// [`CheckpointError::World`].
    pub fn newest_in_world(
        folder: impl AsRef<Path>,
        world: &World,
        needs: Needs,
    ) -> Result<Self, CheckpointError> {
        let found = Self::search_in_world(folder.as_ref(), world, needs, true, &|_| Ok(()));
        found.map(|(newest, _)| newest)
    }

    /// The newest checkpoint of which every process of a world finds its part intact, and what is
    /// wrong with each newer one: as [`Checkpoint::newest_in_world`].
    ///
    /// # Errors
    /// As of [`Checkpoint::newest_intact`], in all the same; [`CheckpointError::World`].
    pub fn newest_intact_in_world(
        folder: impl AsRef<Path>,
        world: &World,
        needs: Needs,
    ) -> Result<(Self, Vec<CheckpointError>), CheckpointError> {
        Self::search_in_world(folder.as_ref(), world, needs, false, &|_| Ok(()))
    }

    /// The same of those that are `good` besides, as each process sees it; `newest` says that
    /// no older one will do.
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
