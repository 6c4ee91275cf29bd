use std::collections::HashMap;

use proptest::prelude::*;

use super::{Launcher, Words, WordsError};

/// Reads `NAME=value NAME=value`.
fn read(words: &str) -> Result<Words, WordsError> {
    let pair = |word: &str| {
        let (name, value) = word.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    };
    let words: HashMap<_, _> = words.split_whitespace().map(pair).collect();
    Words::read(|word| words.get(word).cloned())
}

const TORCHRUN: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=head \
                        MASTER_PORT=29400 TORCHELASTIC_USE_AGENT_STORE=True \
                        TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_RUN_ID=none";
const SRUN: &str = "SLURM_PROCID=3 SLURM_NTASKS=16 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 \
                    SLURM_STEP_NODELIST=gpu[07-09] SLURM_JOB_ID=1000001 SLURM_STEP_ID=2";
const MPIRUN: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1";

#[test]
fn nobody_has_launched_a_process_without_words() {
    assert_eq!(read("").unwrap(), Words::alone());
    assert_eq!(
        read("RANK= LOCAL_RANK=0 MASTER_ADDR=x").unwrap(),
        Words::alone()
    );
}

#[test]
fn torchrun() {
    let words = read(TORCHRUN).unwrap();
    let expected = Words {
        rank: 5,
        size: 8,
        local_rank: 1,
        local_size: Some(4),
        master: Some(("head".to_owned(), 29_400)),
        launcher_serves: true,
        run: "none".to_owned(),
        restarts: 2,
        launcher: Launcher::Torchrun,
    };
    assert_eq!(words, expected);
    let own = read(&format!("{TORCHRUN} GPIPE_LAUNCHED_BY=7")).unwrap();
    assert_eq!(own.launcher, Launcher::Launch);
    // Under `srun`, torchrun has started the process.
    assert_eq!(read(&format!("{TORCHRUN} {SRUN}")).unwrap(), words);
}

#[test]
fn variables_set_by_hand() {
    let words = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=::1 MASTER_PORT=1";
    let words = read(words).unwrap();
    assert_eq!(words.launcher, Launcher::Variables);
    assert_eq!(words.master, Some(("::1".to_owned(), 1)));
    assert!(!words.launcher_serves);
    let one = read("RANK=0 WORLD_SIZE=1").unwrap();
    assert_eq!((one.size, one.master), (1, None));
}

#[test]
fn srun() {
    let words = read(SRUN).unwrap();
    assert_eq!((words.rank, words.size, words.local_rank), (3, 4, 1));
    assert_eq!(words.launcher, Launcher::Srun);
    let (host, port) = words.master.unwrap();
    assert_eq!(host, "gpu07");
    assert!((15_000..32_768).contains(&port));
    let next = read(&SRUN.replace("STEP_ID=2", "STEP_ID=3")).unwrap();
    assert_ne!(
        next.master.unwrap().1,
        port,
        "two steps of a job meet apart"
    );
    assert_ne!(next.run, words.run);
    let told = read(&format!("{SRUN} MASTER_ADDR=head MASTER_PORT=99")).unwrap();
    assert_eq!(told.master, Some(("head".to_owned(), 99)));
    assert_eq!(
        read(&format!("{SRUN} SLURM_RESTART_COUNT=1"))
            .unwrap()
            .restarts,
        1
    );
}

/// They have some of a task's variables.
#[test]
fn a_batch_script_and_a_shell_in_an_allocation_are_alone() {
    let script = "SLURM_PROCID=0 SLURM_NTASKS=16 SLURM_LOCALID=0 SLURM_JOB_ID=5";
    assert_eq!(read(script).unwrap(), Words::alone());
    let shell = SRUN.replace("STEP_ID=2", "STEP_ID=4294967290");
    assert_eq!(read(&shell).unwrap(), Words::alone());
}

#[test]
fn mpirun() {
    let words = read(&format!("{MPIRUN} MASTER_ADDR=a MASTER_PORT=2")).unwrap();
    assert_eq!((words.rank, words.size, words.local_rank), (1, 2, 1));
    assert_eq!(words.launcher, Launcher::Mpirun);
}

#[test]
fn what_is_wrong_is_told_by_its_word() {
    let by_hand = "MASTER_ADDR=a MASTER_PORT=2 LOCAL_RANK=0";
    for (words, said) in [
        ("RANK=1".to_owned(), "WORLD_SIZE is not set, but RANK is: "),
        (
            "WORLD_SIZE=4".to_owned(),
            "RANK is not set, but WORLD_SIZE is: ",
        ),
        (
            "RANK=x WORLD_SIZE=4".to_owned(),
            "RANK=x: must be a whole number",
        ),
        (
            "RANK=-1 WORLD_SIZE=4".to_owned(),
            "RANK=-1: must be a whole number",
        ),
        (
            "RANK=0 WORLD_SIZE=4294967296".to_owned(),
            "WORLD_SIZE=4294967296: must be",
        ),
        ("RANK=0 WORLD_SIZE=0".to_owned(), "LOCAL_RANK is not set"),
        (
            format!("RANK=0 WORLD_SIZE=0 {by_hand}"),
            "WORLD_SIZE=0: must be at least 1",
        ),
        (
            format!("RANK=4 WORLD_SIZE=4 {by_hand}"),
            "RANK=4: must be less than WORLD_SIZE=4",
        ),
        (
            "RANK=0 WORLD_SIZE=2".to_owned(),
            "LOCAL_RANK is not set, but RANK and WORLD_SIZE are",
        ),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0".to_owned(),
            "MASTER_ADDR is not set, but there are 2 processes",
        ),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=a".to_owned(),
            "MASTER_PORT is not set, but MASTER_ADDR is",
        ),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_PORT=1".to_owned(),
            "MASTER_ADDR is not set, but MASTER_PORT is",
        ),
        (
            format!("RANK=0 WORLD_SIZE=2 {by_hand} MASTER_PORT=65536"),
            "MASTER_PORT=65536: must be a port",
        ),
        (
            format!("RANK=0 WORLD_SIZE=2 {by_hand} MASTER_PORT=0"),
            "MASTER_PORT=0: must be a port",
        ),
        (
            format!("RANK=1 WORLD_SIZE=2 {by_hand} LOCAL_WORLD_SIZE=3"),
            "LOCAL_WORLD_SIZE=3: must be at most WORLD_SIZE=2",
        ),
        (
            format!("RANK=1 WORLD_SIZE=2 {by_hand} LOCAL_WORLD_SIZE=1 LOCAL_RANK=1"),
            "LOCAL_RANK=1: must be less than LOCAL_WORLD_SIZE=1",
        ),
        (
            format!("RANK=0 WORLD_SIZE=2 {by_hand} LOCAL_RANK=1"),
            "LOCAL_RANK=1: must be at most RANK=0",
        ),
        (
            format!("{SRUN} WORLD_SIZE=8"),
            "WORLD_SIZE=8: SLURM_NTASKS=4 says otherwise",
        ),
        (
            SRUN.replace("gpu[07-09]", "gpu[07"),
            "SLURM_STEP_NODELIST: `gpu[07` is no list of hosts",
        ),
        (
            SRUN.replace("SLURM_LOCALID=1", ""),
            "SLURM_LOCALID is not set",
        ),
        (
            SRUN.replace("SLURM_JOB_ID=1000001", ""),
            "SLURM_JOB_ID is not set",
        ),
        (
            MPIRUN.to_owned(),
            "MASTER_ADDR is not set, but there are 2 processes",
        ),
    ] {
        let error = read(&words).unwrap_err().to_string();
        assert!(error.starts_with(said), "{words}: {error}");
        assert!(error.contains(": "), "{error}");
    }
}

proptest! {
    /// Variables that a launcher could set are accepted; impossible ones never are.
    #[test]
    fn words_that_are_taken_agree_with_each_other(
        rank in 0_usize..6,
        size in 0_usize..6,
        local_rank in prop::option::of(0_usize..6),
        local_size in prop::option::of(0_usize..6),
        port in prop::option::of(0_usize..3),
    ) {
        let mut words = format!("RANK={rank} WORLD_SIZE={size} MASTER_ADDR=a");
        let mut set = |name: &str, value: Option<usize>| {
            if let Some(value) = value {
                words.extend([" ", name, "=", &value.to_string()]);
            }
        };
        set("LOCAL_RANK", local_rank);
        set("LOCAL_WORLD_SIZE", local_size);
        set("MASTER_PORT", port);
        let alone = size == 1;
        let local = local_rank.or(alone.then_some(0));
        let right = rank < size
            && local.is_some_and(|local| local <= rank && local_size.is_none_or(|all| local < all))
            && local_size.is_none_or(|all| all <= size)
            && port != Some(0)
            && (alone || port.is_some());
        match read(&words) {
            Ok(own) => {
                prop_assert!(right, "{words}");
                prop_assert_eq!((own.rank, own.size), (rank, size));
                prop_assert_eq!(own.master.is_some(), !alone);
            }
            Err(error) => prop_assert!(!right, "{words}: {error}"),
        }
    }

    #[test]
    fn no_value_is_too_odd(values in prop::collection::vec("[0-9]{0,3}|\\PC{0,6}", 8)) {
        const NAMES: [&str; 8] = [
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
            "SLURM_PROCID", "SLURM_STEP_NODELIST",
        ];
        let value = |word: &str| Some(values[NAMES.iter().position(|own| *own == word)?].clone());
        if let Ok(words) = Words::read(value) {
            prop_assert!(words.rank < words.size);
        }
    }
}
