//! Values that a thread still holds when their step has failed.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use gpipe_engine::UnwantedValue;

/// A value that rank 1 receives slowly, and cannot decode.
struct Late(Values);

/// Where a test holds a [`Late`] value: signals of its arrival and of its release.
static HELD: LazyLock<(Gate, Gate)> = LazyLock::new(|| (unbounded(), unbounded()));

static GONE_ON: AtomicBool = AtomicBool::new(false);

type Gate = (Sender<()>, Receiver<()>);

impl Payload for Late {
    fn into_values(self) -> anyhow::Result<Values> {
        Ok(self.0)
    }

    fn from_values(values: Values) -> Self {
        Self(values)
    }

    fn from_parcel(parcel: Parcel) -> anyhow::Result<Self> {
        let values = parcel.into_values()?;
        if values.len() == 3 {
            return Ok(Self(values));
        }
        let ((here, _), (_, on)) = &*HELD;
        // To both ranks.
        here.send(())?;
        here.send(())?;
        on.recv()?;
        GONE_ON.store(true, Ordering::SeqCst);
        anyhow::bail!("no good any more")
    }
}

/// A door whose values are not awaited.
struct Open;

impl Door<Late> for Open {
    fn deliver(&self, _: Address, _: Late) -> Result<(), UnwantedValue> {
        Ok(())
    }

    fn stop(&self) {}
}

/// A thread still held a value when the step had failed and the next generation had begun: its
/// decoding error then failed the next step, or it took values of that step.
#[test]
fn what_is_late_behind_a_failure_fails_no_later_step() {
    ranks(2, move |world| {
        let world = Arc::new(world);
        let rank = world.rank();
        let carrier = WorldCarrier::<Late>::connect(&world, vec![0, 1], LIMIT).unwrap();
        let schedule = generated(ScheduleKind::ForwardOnly, 2, 1);
        let part = |own: usize| {
            let here = |device: DeviceId| device.index() == own;
            Program::part(schedule.clone(), &Topology::chain(2), here).unwrap()
        };
        let to = part(1).sends(DeviceId(0)).next().unwrap();
        let program = Arc::new(part(rank));
        let step = |carrier: &WorldCarrier<Late>, values: Values| {
            carrier.begin(&program, Arc::new(Open)).unwrap();
            if rank == 0 {
                carrier.send(to, Late(values)).unwrap();
            }
        };
        step(&carrier, Values::default());
        let ((_, here), (go_on, _)) = &*HELD;
        here.recv().unwrap();
        let told = carrier.vote(Ballot::Failed("as asked".to_owned())).unwrap();
        assert!(matches!(told, Verdict::Failed { .. }));
        let (renewed, is_renewed) = unbounded::<()>();
        let late = (rank == 1).then(|| {
            std::thread::spawn(move || {
                // If it were not awaited, the next generation would begin before it is released.
                let _ = is_renewed.recv_timeout(Duration::from_millis(500));
                go_on.send(()).unwrap();
            })
        });
        carrier.renew().unwrap();
        drop(renewed);
        if let Some(late) = late {
            assert!(GONE_ON.load(Ordering::SeqCst), "it was not waited for");
            late.join().unwrap();
        }
        step(&carrier, share(&Tensor::from(1.0)));
        let told = carrier.vote(Ballot::Done(Vec::new())).unwrap();
        assert!(matches!(told, Verdict::Done(_)), "{told:?}");
        drop((carrier, program));
        Arc::into_inner(world).unwrap().leave().unwrap();
    });
}
