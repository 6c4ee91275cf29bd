//! `gpipe-rs launch`: runs this program several times, as the processes of one run.
//!
//! Each process gets its rank in the environment variables that torchrun uses. If one fails, the others get a
//! moment to report by themselves, and are then ended. If the failed process was lost (killed, or ended with
//! the code of a process that lost another one) and restarts are left, all are started again.

mod address;
mod attempt;
mod children;
mod output;

use std::ffi::OsString;
use std::net::TcpListener;

use anyhow::Context as _;
use clap::Command;

use super::{Failure, input, names, say};
use address::Address;
use attempt::{Attempt, Ended};
use children::Plan;

pub(crate) use children::end_with_launcher;

/// Arguments of `gpipe-rs launch`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs launch --processes 2 -- env
  gpipe-rs launch --processes 2 --max-restarts 3 -- train --devices cpu --out runs/two
  gpipe-rs launch --processes 8 --nodes 2 --node-rank 0 --master head:29500 -- env")]
pub struct Args {
    /// Processes on this host.
    #[arg(long, alias = "nproc-per-node", value_name = "N", allow_negative_numbers = true, value_parser = input::at_least_one)]
    processes: usize,
    /// Hosts on which this command is run, with as many processes on each.
    #[arg(long, alias = "nnodes", value_name = "M", default_value = "1", allow_negative_numbers = true, value_parser = input::at_least_one)]
    nodes: usize,
    /// Which of the hosts this one is, from 0.
    #[arg(long, value_name = "I", default_value = "0", allow_negative_numbers = true, value_parser = from_0)]
    node_rank: usize,
    /// Where the processes meet: the host with --node-rank 0, by a name that the others can reach,
    /// and a free port there. On one host the default is any free port.
    #[arg(long, value_name = "HOST:PORT", value_parser = Address::parse)]
    master: Option<Address>,
    /// Restart all processes, at most so many times, when one was killed or lost. `train` then
    /// resumes the run in its --out.
    #[arg(long, value_name = "R", default_value = "0", allow_negative_numbers = true, value_parser = from_0)]
    max_restarts: usize,
    /// Verb that each process runs, with its arguments.
    #[arg(last = true, value_name = "VERB", required = true)]
    verb: Vec<OsString>,
}

fn from_0(text: &str) -> Result<usize, String> {
    let text = text.trim();
    text.parse()
        .map_err(|_| format!("`{text}` is not a whole number from 0"))
}

/// Runs the verb; `command` is the whole command line, of which each process runs a verb.
pub(super) fn run(args: &Args, command: Command) -> Result<(), Failure> {
    check(args)?;
    check_verb(args, command);
    let program = std::env::current_exe().context("this program is not found again")?;
    let mut attempt = Attempt::new()?;
    for restarts in 0.. {
        let plan = Plan {
            program: program.clone(),
            verb: args.verb.clone(),
            processes: args.processes,
            first: args.node_rank * args.processes,
            size: args.nodes * args.processes,
            master: args.master.clone().map_or_else(free, Ok)?,
            restarts,
            max_restarts: args.max_restarts,
        };
        match attempt.run(&plan)? {
            Ended::Well => match attempt.was_asked_to_end() {
                Some(signal) => return Err(Failure::Asked(signal)),
                None => break,
            },
            Ended::Badly(failed) => {
                let asked = attempt.was_asked_to_end();
                if let Some(signal) = asked.filter(|signal| failed.was_asked(*signal)) {
                    return Err(Failure::Asked(signal));
                }
                let again = failed.may_help() && asked.is_none();
                if !again || restarts >= args.max_restarts {
                    return Err(Failure::Exit(failed.to_string(), failed.code()));
                }
                say(&format!(
                    "{failed}: all processes are started again (restart {} of {})",
                    restarts + 1,
                    args.max_restarts
                ));
            }
        }
    }
    Ok(())
}

/// Ends the launcher if the verb's own arguments are wrong, or ask for help: one message instead of one per
/// process.
fn check_verb(args: &Args, mut command: Command) {
    // Another program may have its own flags in the place of a verb.
    if args.verb[0].to_string_lossy().starts_with('-') {
        return;
    }
    let own = OsString::from(command.get_name());
    let all: Vec<OsString> = std::iter::once(own).chain(args.verb.clone()).collect();
    if let Err(error) = command.try_get_matches_from_mut(&all) {
        names::explained(&command, &all, error).exit();
    }
}

fn check(args: &Args) -> Result<(), Failure> {
    let usage = |why: String| Err(Failure::Usage(why));
    if args.node_rank >= args.nodes {
        return usage(format!(
            "--node-rank {}: must be less than --nodes {}, as hosts are counted from 0",
            args.node_rank, args.nodes
        ));
    }
    if args.nodes > 1 && args.master.is_none() {
        return usage(format!(
            "--nodes {}: needs --master HOST:PORT, the same on all hosts, where their processes meet",
            args.nodes
        ));
    }
    if args
        .nodes
        .checked_mul(args.processes)
        .is_none_or(|all| all > MOST)
    {
        return usage(format!(
            "--processes {} on --nodes {}: at most {MOST} processes in all",
            args.processes, args.nodes
        ));
    }
    if args.verb[0] == "launch" {
        return usage("`launch` starts no other `launch`".to_owned());
    }
    Ok(())
}

/// Most processes: each is connected to every other.
const MOST: usize = 65_536;

/// Returns a port of this host that is free at the moment.
fn free() -> Result<Address, Failure> {
    let listener = TcpListener::bind(("::", 0)).or_else(|_| TcpListener::bind(("0.0.0.0", 0)));
    let port = listener.and_then(|listener| listener.local_addr());
    let port = port.context("no free port on this host")?.port();
    Ok(Address {
        host: "127.0.0.1".to_owned(),
        port,
    })
}
