//! The training of these tests' processes: four layers with tied weights over all processes, two batches per
//! update. One rank may fail in the middle; the results in all ranks are printed.

use std::env;
use std::path::PathBuf;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use gpipe::checkpoint::{Checkpointer, Extras};
use gpipe::engine::EngineError;
use gpipe::tch::{self, Device, Kind, Reduction, Tensor, nn};
use gpipe::world::{Times, Words, World};
use gpipe::{
    Error, Layer, Optimizer, Pipeline, Sequential, Values,
    layers::Context,
    optim::{AdamW, OptimizerKind},
};

use super::parts::{PATIENCE, print};

/// The fault, and its rank: `layer.error:1`.
pub(crate) const FAULT: &str = "WORLD_TEST_FAULT";
/// Folder for checkpoints.
pub(crate) const FOLDER: &str = "WORLD_TEST_FOLDER";

/// The update in which it fails, and the number of updates.
const FAULTY: usize = 2;
pub(crate) const UPDATES: usize = 4;
/// The micro-batch in which a layer fails.
const MICRO: usize = 1;
const LAYERS: [&str; 4] = ["first", "second", "third", "last"];

/// The fault of this process.
struct Fault {
    name: String,
    armed: Arc<AtomicBool>,
}

impl Fault {
    fn here(rank: usize) -> Self {
        let text = env::var(FAULT).unwrap_or_default();
        let (name, at) = text.split_once(':').unwrap_or_default();
        let name = if at == rank.to_string() { name } else { "" };
        Self {
            name: name.to_owned(),
            armed: Arc::default(),
        }
    }

    fn is(&self, name: &str) -> bool {
        self.name == name && self.armed.load(Ordering::SeqCst)
    }
}

/// A linear layer that fails on request.
#[derive(Debug)]
struct Brittle {
    linear: nn::Linear,
    fault: String,
    armed: Arc<AtomicBool>,
}

impl Layer for Brittle {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let output = inputs.into_one()?.apply(&self.linear).tanh();
        if !self.armed.load(Ordering::SeqCst) || ctx.micro().index() != MICRO {
            return Ok(output.into());
        }
        match self.fault.as_str() {
            "layer.error" => anyhow::bail!("the layer gives up"),
            "layer.panic" => panic!("the layer panics"),
            "layer.memory" => {
                let size = [1 << 46];
                let large = Tensor::f_zeros(size, (Kind::Float, Device::Cpu))?;
                Ok((output + large.sum(Kind::Float)).into())
            }
            "layer.backward" => {
                let mut curve = output.exp();
                tch::no_grad(|| {
                    let _ = curve.fill_(2.0);
                });
                Ok(curve.into())
            }
            _ => Ok(output.into()),
        }
    }
}

fn model(fault: &Fault) -> Sequential {
    let mut model = Sequential::new();
    for name in LAYERS {
        let (armed, kind) = (Arc::clone(&fault.armed), fault.name.clone());
        model = model.layer(name, move |path| Brittle {
            linear: nn::linear(path, 8, 8, nn::LinearConfig::default()),
            fault: kind.clone(),
            armed: Arc::clone(&armed),
        });
    }
    model.tie("first.weight", "last.weight")
}

fn batch(number: usize, samples: i64) -> (Tensor, Tensor) {
    let cpu = (Kind::Float, Device::Cpu);
    let x = Tensor::arange(samples * 8, cpu).reshape([samples, 8]);
    let x = (x * 0.37 + number as f64).sin();
    let y = (&x * 1.7).cos();
    (x, y)
}

/// A hash that distinguishes tensors.
fn hash(tensor: &Tensor) -> u64 {
    let numbers: Vec<f32> = Vec::try_from(tensor.detach().reshape([-1])).unwrap();
    let add = |hash: u64, bits: u32| (hash ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3);
    let bits = numbers.into_iter().map(f32::to_bits);
    bits.fold(0xcbf2_9ce4_8422_2325, add)
}

/// Local weights and gradients.
fn state(pipe: &mut Pipeline) -> Vec<(String, u64, Option<u64>)> {
    let all = pipe.parameters().unwrap().into_iter();
    let bits = |(name, own): (String, Tensor)| {
        let grad = own.grad();
        (name, hash(&own), grad.defined().then(|| hash(&grad)))
    };
    all.map(bits).collect()
}

/// Failure of a call.
pub(crate) struct Failed {
    said: String,
    lost: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            lost: matches!(error, Error::Engine(EngineError::Lost(_))),
            said: error.to_string(),
        }
    }
}

struct Run<'a> {
    pipe: Pipeline,
    optimizer: Optimizer,
    fault: &'a Fault,
}

impl Run<'_> {
    fn step(&mut self, number: usize) -> Result<f64, Failed> {
        let (x, y) = batch(number, 8);
        let fails = self.fault.is("loss");
        let calls = AtomicUsize::new(0);
        let loss = move |out: &Tensor, y: &Tensor| {
            let gives_up = fails && calls.fetch_add(1, Ordering::SeqCst) == MICRO;
            assert!(!gives_up, "the loss gives up");
            out.mse_loss(y, Reduction::Mean)
        };
        let report = match self.fault {
            own if own.is("samples") => self.pipe.train_step(&x, y.narrow(0, 0, 3), loss)?,
            own if own.is("size") => {
                let (x, y) = batch(number, 4);
                self.pipe.train_step(&x, &y, loss)?
            }
            own if own.is("call") => {
                self.pipe.zero_grad()?;
                unreachable!("nobody else calls it");
            }
            own if own.is("evaluates") => {
                let _ = self.pipe.forward(&x)?;
                unreachable!("the others train");
            }
            _ => self.pipe.train_step(&x, &y, loss)?,
        };
        Ok(report.read()?.loss)
    }

    /// Calls between the steps and the update.
    fn between(&mut self) -> Result<f64, Failed> {
        if self.fault.is("load") {
            let nobody = [("nobody.weight".to_owned(), Tensor::from(1.0))];
            self.pipe.load(&nobody)?;
        } else if env::var(FAULT).is_ok_and(|fault| fault.starts_with("load")) {
            let own = self.pipe.parameters()?;
            let copies = own
                .into_iter()
                .map(|(name, own)| (name, own.detach().copy()));
            // All of one size: only the names differ.
            let one: Vec<_> = copies.filter(|(name, _)| name == "first.bias").collect();
            let none = (
                "first.bias".to_owned(),
                Tensor::zeros([8], tch::kind::FLOAT_CPU),
            );
            self.pipe
                .load(&one.into_iter().next().map_or(vec![none], |one| vec![one]))?;
        }
        Ok(self.pipe.clip_grad_norm(0.5)?)
    }

    fn update(&mut self) -> Result<(), Failed> {
        if self.fault.is("optimizer") {
            self.optimizer.set_lr(f64::NAN);
        }
        if self.fault.is("rate") {
            self.optimizer.set_lr(2.0 * LR);
        }
        let done = self.optimizer.step(&mut self.pipe);
        self.optimizer.set_lr(LR);
        Ok(done?)
    }
}

const LR: f64 = 1e-2;

/// A call fails in one rank, and all ranks keep the previous state.
fn failing(
    run: &mut Run<'_>,
    what: impl FnOnce(&mut Run<'_>) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let before = state(&mut run.pipe);
    run.fault.armed.store(true, Ordering::SeqCst);
    let failed = what(run);
    run.fault.armed.store(false, Ordering::SeqCst);
    match failed {
        Ok(()) => print("nothing failed"),
        Err(failed) if failed.lost => return Err(failed),
        Err(failed) => print(&format!("failed: {}", failed.said)),
    }
    if state(&mut run.pipe) != before {
        print("it has left a trace");
    }
    Ok(())
}

fn body(world: &Arc<World>, fault: &Fault) -> Result<(), Failed> {
    let devices = vec![Device::Cpu; (2 / world.size()).max(1)];
    let builder = Pipeline::builder(model(fault)).devices(&devices);
    let builder = builder.threads_per_stage(1).seed(7).world(world);
    let micro = if fault.name == "settings" { 2 } else { 4 };
    let pipe = builder.micro_batches(micro).build()?;
    let optimizer = Optimizer::new(OptimizerKind::from(AdamW {
        lr: LR,
        ..AdamW::default()
    }));
    let mut run = Run {
        pipe,
        optimizer,
        fault,
    };
    let folder = env::var(FOLDER).map(PathBuf::from).ok();
    let mut saving = folder.map(|folder| Checkpointer::in_world(folder, world).unwrap());
    let endless = env::var(FAULT).is_ok_and(|fault| fault == "none");
    for update in 0.. {
        if update == UPDATES && !endless {
            break;
        }
        let mut losses = vec![run.step(2 * update)?];
        if update == FAULTY {
            let kind = env::var(FAULT).unwrap_or_default();
            match kind.split(':').next().unwrap_or_default() {
                "" | "none" => {}
                "load" => failing(&mut run, |run| run.between().map(drop))?,
                "optimizer" | "rate" => failing(&mut run, |run| run.update())?,
                "nan" => nan(&mut run, world)?,
                "ends" | "panics" | "drops" => ends(world, &mut run),
                "saves" => failing(&mut run, |run| saves(run, saving.as_mut(), update))?,
                _ => failing(&mut run, |run| run.step(2 * update + 1).map(drop))?,
            }
        }
        losses.push(run.step(2 * update + 1)?);
        let norm = run.pipe.clip_grad_norm(0.5)?;
        run.update()?;
        for number in losses.into_iter().chain([norm]) {
            print(&format!("number {update} {:016x}", number.to_bits()));
        }
        if let Some(saving) = &mut saving {
            let saved = saving.save(
                &mut run.pipe,
                &run.optimizer,
                Extras::new(update as u64 + 1),
            );
            if saved.is_err_and(|error| error.lost().is_none()) {
                print("not saved");
            }
        }
        if update == 3 {
            print("ready");
        }
    }
    for (name, own, _) in state(&mut run.pipe) {
        print(&format!("weight {name} {own:016x}"));
    }
    Ok(())
}

/// A NaN norm is not an error of any rank: all have it, and the gradients stay.
fn nan(run: &mut Run<'_>, world: &World) -> Result<(), Failed> {
    let mut kept = Vec::new();
    if run.fault.name == "nan" {
        for (_, own) in run.pipe.parameters()? {
            let mut grad = own.grad();
            kept.push((own, grad.copy()));
            let _ = grad.fill_(f64::NAN);
        }
    }
    let before = state(&mut run.pipe);
    let norm = run.pipe.clip_grad_norm(0.5)?;
    print(&format!("rank {} has the norm {norm}", world.rank()));
    if state(&mut run.pipe) != before {
        print("it has left a trace");
    }
    for (own, grad) in kept {
        own.grad().copy_(&grad);
    }
    Ok(())
}

fn ends(world: &World, run: &mut Run<'_>) {
    match run.fault.name.as_str() {
        "ends" => exit(0),
        "panics" => panic!("rank {} gives up", world.rank()),
        "drops" => {
            let other = Pipeline::new(
                Sequential::new().layer("a", |p| nn::linear(p, 8, 8, nn::LinearConfig::default())),
                &[Device::Cpu],
                1,
            );
            drop(std::mem::replace(&mut run.pipe, other.unwrap()));
            exit(0)
        }
        _ => {}
    }
}

/// One rank starts a checkpoint while the others continue training.
fn saves(
    run: &mut Run<'_>,
    saving: Option<&mut Checkpointer>,
    update: usize,
) -> Result<(), Failed> {
    if !run.fault.is("saves") {
        return run.step(2 * update + 1).map(drop);
    }
    let extras = Extras::new(update as u64);
    let saved = saving.unwrap().save(&mut run.pipe, &run.optimizer, extras);
    saved.map_err(|error| Failed {
        said: error.to_string(),
        lost: error.lost().is_some(),
    })
}

/// Trains, and prints the results.
pub(crate) fn train() -> i32 {
    let mut times = Times::default();
    if let Ok(patience) = env::var(PATIENCE) {
        times.patience = std::time::Duration::from_millis(patience.parse().unwrap());
    }
    let world = Arc::new(World::join_with(Words::from_env().unwrap(), times).unwrap());
    let fault = Fault::here(world.rank());
    // Others continue after a failure.
    if env::var(FAULT).is_ok_and(|fault| fault == "none") {
        world.on_abort(|_| heard());
        let said = |lost: &gpipe::world::Lost| print(&format!("lost: {lost}"));
        let grace = std::time::Duration::from_millis(250);
        world.exit_with_others(grace, said).unwrap();
    }
    let ended = body(&world, &fault);
    heard();
    let lost = world.lost();
    match ended {
        Ok(()) => {
            let left = Arc::into_inner(world).unwrap();
            left.leave().map_or_else(|lost| told(&lost), |()| 0)
        }
        Err(failed) => {
            let code = lost.as_ref().map_or(1, gpipe::world::Lost::exit_code);
            world.ends(code);
            print(&format!("error: {}", failed.said));
            let _ = lost.map(|lost| told(&lost));
            world.exit(code)
        }
    }
}

fn heard() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    print(&format!("heard at {}", now.unwrap().as_nanos()));
}

fn told(lost: &gpipe::world::Lost) -> i32 {
    print(&format!("lost: {lost}"));
    i32::from(lost.exit_code())
}
