//! Environment variables by which launchers tell each process its rank, the number of processes and
//! the meeting place. Nothing here needs libtorch, or connects to anything.

use std::fmt;

use thiserror::Error;

use super::nodelist::{Nodelist, NodelistError};

/// First port for jobs; the range ends below the ephemeral ports of systems.
const FIRST_PORT: u64 = 15_000;
const PORTS: u64 = 16_384;

/// A launcher's description of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words {
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// Rank among the processes on this host, from 0.
    pub local_rank: usize,
    /// Number of processes on this host, if the launcher says so.
    pub local_size: Option<usize>,
    /// Meeting place: the host of rank 0 and a port, or the launcher's own store. `None` for a
    /// process that is alone.
    pub master: Option<(String, u16)>,
    /// Whether the launcher itself serves the store there (torchrun does); otherwise rank 0 does.
    pub launcher_serves: bool,
    /// Name of the run, unique among running ones.
    pub run: String,
    /// How often the launcher has restarted the processes.
    pub restarts: usize,
    /// Launcher of the process.
    pub launcher: Launcher,
}

/// Launcher of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// No launcher: the process is alone.
    Nobody,
    /// Any launcher that sets `RANK` and `WORLD_SIZE`.
    Variables,
    /// PyTorch's `torchrun`.
    Torchrun,
    /// `gpipe-rs launch`.
    Launch,
    /// SLURM's `srun`.
    Srun,
    /// Open MPI's `mpirun`, used only as a launcher.
    Mpirun,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "nobody",
            Self::Variables => "variables",
            Self::Torchrun => "torchrun",
            Self::Launch => "gpipe-rs launch",
            Self::Srun => "srun",
            Self::Mpirun => "mpirun",
        })
    }
}

/// A variable that is missing, or that contradicts the others.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WordsError {
    /// The variable has no value.
    #[error("{word} is not set, but {because}: {advice}")]
    Missing {
        /// The variable.
        word: &'static str,
        /// Reason why it is needed.
        because: String,
        /// Advice.
        advice: &'static str,
    },
    /// The value is not a number, or is out of range.
    #[error("{word}={found}: {rule}")]
    Refused {
        /// The variable.
        word: &'static str,
        /// Its value.
        found: String,
        /// Rule that it breaks.
        rule: String,
    },
    /// The value is not a list of hosts.
    #[error("{word}: {error}")]
    Nodelist {
        /// The variable.
        word: &'static str,
        /// Error of the list.
        error: NodelistError,
    },
}

const LAUNCHER_SETS: &str = "a launcher (gpipe-rs launch, torchrun) sets both; unset what is left \
                             of them to run one process alone";
const NEEDS_MASTER: &str = "give the address of rank 0's host, as the others reach it, in \
                            MASTER_ADDR, and a free port there in MASTER_PORT";

impl Words {
    /// Describes a process without a launcher: a world of one.
    pub fn alone() -> Self {
        Self {
            rank: 0,
            size: 1,
            local_rank: 0,
            local_size: Some(1),
            master: None,
            launcher_serves: false,
            run: "alone".to_owned(),
            restarts: 0,
            launcher: Launcher::Nobody,
        }
    }

    /// Reads this process's environment.
    ///
    /// # Errors
    /// A variable is missing, or contradicts the others.
    pub fn from_env() -> Result<Self, WordsError> {
        Self::read(|word| Some(std::env::var_os(word)?.to_string_lossy().into_owned()))
    }

    /// Reads the variables given by `variable`. Those of torchrun (`RANK` and so on) take
    /// precedence over those of `srun`, and these over those of `mpirun`: the launcher that was
    /// started last counts.
    ///
    /// # Errors
    /// A variable is missing, or contradicts the others.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, WordsError> {
        let reader = Reader {
            variable: &|word| variable(word).filter(|value| !value.trim().is_empty()),
        };
        let words = if reader.has("RANK") {
            reader.variables()?
        } else if reader.is_step() {
            reader.srun()?
        } else if reader.has("OMPI_COMM_WORLD_RANK") {
            reader.mpirun()?
        } else if reader.has("WORLD_SIZE") {
            reader.variables()?
        } else {
            Self::alone()
        };
        words.checked(&reader)
    }

    /// Returns the variables' names for errors: rank, size, local rank and local size.
    fn names(&self) -> [&'static str; 4] {
        match self.launcher {
            Launcher::Srun => [
                "SLURM_PROCID",
                "SLURM_NTASKS",
                "SLURM_LOCALID",
                "tasks here",
            ],
            Launcher::Mpirun => [
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
            _ => ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
        }
    }

    fn checked(self, reader: &Reader<'_>) -> Result<Self, WordsError> {
        let [rank, size, local_rank, local_size] = self.names();
        let below = |word, found: usize, limit: usize, of: &str| {
            let rule = format!("must be less than {of}={limit}, as ranks begin at 0");
            if found < limit {
                return Ok(());
            }
            Err(refused(word, &found, rule))
        };
        if self.size == 0 {
            return Err(refused(size, &0, "must be at least 1".to_owned()));
        }
        below(rank, self.rank, self.size, size)?;
        if let Some(here) = self.local_size {
            if here > self.size {
                let rule = format!("must be at most {size}={}", self.size);
                return Err(refused(local_size, &here, rule));
            }
            below(local_rank, self.local_rank, here, local_size)?;
        }
        if self.local_rank > self.rank {
            let rule = format!("must be at most {rank}={}", self.rank);
            return Err(refused(local_rank, &self.local_rank, rule));
        }
        // Left by a script that sets torchrun's variables under another launcher.
        if !reader.has("RANK")
            && let Some(other) = reader.number("WORLD_SIZE")?
            && other != self.size
        {
            let rule = format!(
                "{size}={} says otherwise; unset one of them, or set RANK too",
                self.size
            );
            return Err(refused("WORLD_SIZE", &other, rule));
        }
        Ok(self)
    }
}

fn refused(word: &'static str, found: &impl ToString, rule: String) -> WordsError {
    WordsError::Refused {
        word,
        found: found.to_string(),
        rule,
    }
}

/// Reader of the variables that have a value.
struct Reader<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn text(&self, word: &str) -> Option<String> {
        (self.variable)(word).map(|value| value.trim().to_owned())
    }

    fn has(&self, word: &str) -> bool {
        self.text(word).is_some()
    }

    fn number(&self, word: &'static str) -> Result<Option<usize>, WordsError> {
        const LARGEST: usize = i32::MAX as usize;
        let Some(found) = self.text(word) else {
            return Ok(None);
        };
        match found.parse::<usize>() {
            Ok(number) if number <= LARGEST => Ok(Some(number)),
            _ => Err(refused(
                word,
                &found,
                format!("must be a whole number from 0 to {LARGEST}"),
            )),
        }
    }

    fn needed(
        &self,
        word: &'static str,
        because: &str,
        advice: &'static str,
    ) -> Result<usize, WordsError> {
        self.number(word)?.ok_or_else(|| WordsError::Missing {
            word,
            because: because.to_owned(),
            advice,
        })
    }

    /// Reads `MASTER_ADDR` and `MASTER_PORT`; `None` if neither is set.
    fn master(&self, size: usize) -> Result<Option<(String, u16)>, WordsError> {
        let missing = |word, because: String| WordsError::Missing {
            word,
            because,
            advice: NEEDS_MASTER,
        };
        let port = match self.number("MASTER_PORT")? {
            Some(port) => match u16::try_from(port) {
                Ok(port) if port > 0 => Some(port),
                _ => {
                    let rule = "must be a port, from 1 to 65535".to_owned();
                    return Err(refused("MASTER_PORT", &port, rule));
                }
            },
            None => None,
        };
        match (self.text("MASTER_ADDR"), port) {
            _ if size == 1 => Ok(None),
            (Some(host), Some(port)) => Ok(Some((host, port))),
            (Some(_), None) => Err(missing("MASTER_PORT", "MASTER_ADDR is".to_owned())),
            (None, Some(_)) => Err(missing("MASTER_ADDR", "MASTER_PORT is".to_owned())),
            (None, None) => Ok(None),
        }
    }

    fn needed_master(&self, size: usize) -> Result<Option<(String, u16)>, WordsError> {
        let master = self.master(size)?;
        if size > 1 && master.is_none() {
            return Err(WordsError::Missing {
                word: "MASTER_ADDR",
                because: format!("there are {size} processes, which must meet"),
                advice: NEEDS_MASTER,
            });
        }
        Ok(master)
    }

    /// Reads torchrun's variables, which `gpipe-rs launch` and PyTorch's other launchers set too.
    fn variables(&self) -> Result<Words, WordsError> {
        let rank = self.needed("RANK", "WORLD_SIZE is", LAUNCHER_SETS)?;
        let size = self.needed("WORLD_SIZE", "RANK is", LAUNCHER_SETS)?;
        let local_rank = match (self.number("LOCAL_RANK")?, size) {
            (Some(local_rank), _) => local_rank,
            (None, 1) => 0,
            (None, _) => self.needed(
                "LOCAL_RANK",
                "RANK and WORLD_SIZE are",
                "give which of the processes on its host each one is, from 0",
            )?,
        };
        let run = self.text("TORCHELASTIC_RUN_ID");
        let launcher = match &run {
            _ if self.has(super::LAUNCHED) => Launcher::Launch,
            Some(_) => Launcher::Torchrun,
            None => Launcher::Variables,
        };
        Ok(Words {
            rank,
            size,
            local_rank,
            local_size: self.number("LOCAL_WORLD_SIZE")?,
            master: self.needed_master(size)?,
            // As PyTorch reads it.
            launcher_serves: self.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True"),
            run: run.unwrap_or_else(|| "run".to_owned()),
            restarts: self.number("TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0),
            launcher,
        })
    }

    /// Returns whether this is a task of `srun`. A batch script and a shell in an allocation have
    /// some of its variables too, but are single processes.
    fn is_step(&self) -> bool {
        // The last numbers belong to shells and to SLURM's own steps.
        const FIRST_SPECIAL: u64 = 0xffff_fff0;
        let step = self.text("SLURM_STEP_ID").and_then(|id| id.parse().ok());
        let special = step.is_some_and(|step: u64| step >= FIRST_SPECIAL);
        self.has("SLURM_PROCID") && self.has("SLURM_STEP_NODELIST") && !special
    }

    fn srun(&self) -> Result<Words, WordsError> {
        const ADVICE: &str = "srun sets it; keep it in the environment of the task";
        let rank = self.needed("SLURM_PROCID", "this is a task of srun", ADVICE)?;
        let size = match self.number("SLURM_STEP_NUM_TASKS")? {
            Some(size) => size,
            None => self.needed("SLURM_NTASKS", "SLURM_PROCID is", ADVICE)?,
        };
        let job = self.needed("SLURM_JOB_ID", "SLURM_PROCID is", ADVICE)?;
        let step = self.number("SLURM_STEP_ID")?.unwrap_or(0);
        let list = self.text("SLURM_STEP_NODELIST").unwrap_or_default();
        let nodes = Nodelist::parse(&list).map_err(|error| WordsError::Nodelist {
            word: "SLURM_STEP_NODELIST",
            error,
        })?;
        let port = FIRST_PORT + (job as u64 + 97 * step as u64) % PORTS;
        // At most 31383.
        let met = (nodes.first(), port as u16);
        Ok(Words {
            rank,
            size,
            local_rank: self.needed("SLURM_LOCALID", "SLURM_PROCID is", ADVICE)?,
            local_size: None,
            master: self.master(size)?.or_else(|| (size > 1).then_some(met)),
            launcher_serves: false,
            run: format!("{job}.{step}"),
            restarts: self.number("SLURM_RESTART_COUNT")?.unwrap_or(0),
            launcher: Launcher::Srun,
        })
    }

    fn mpirun(&self) -> Result<Words, WordsError> {
        const BECAUSE: &str = "OMPI_COMM_WORLD_RANK is";
        const ADVICE: &str = "mpirun sets it; keep it in the environment of the process";
        let size = self.needed("OMPI_COMM_WORLD_SIZE", BECAUSE, ADVICE)?;
        Ok(Words {
            rank: self.needed("OMPI_COMM_WORLD_RANK", BECAUSE, ADVICE)?,
            size,
            local_rank: self.needed("OMPI_COMM_WORLD_LOCAL_RANK", BECAUSE, ADVICE)?,
            local_size: self.number("OMPI_COMM_WORLD_LOCAL_SIZE")?,
            master: self.needed_master(size)?,
            launcher_serves: false,
            run: self
                .text("PMIX_NAMESPACE")
                .unwrap_or_else(|| "mpirun".to_owned()),
            restarts: 0,
            launcher: Launcher::Mpirun,
        })
    }
}

#[cfg(test)]
mod tests;
