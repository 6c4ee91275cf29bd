//! The devices, the models, and measured steps.

use anyhow::Result;
use gpipe::models::zoo::token_cross_entropy;
use gpipe::models::{Gpt, gpt};
use gpipe::partitioner::{Bytes, Machine, Plan, PlanOptions, Timeline};
use gpipe::tch::{Device, Kind, Tensor};
use gpipe::{
    Pipeline, PipelineBuilder,
    profile::{ProfileOptions, Profiled, Sample, profile},
    settings::Precision,
};

use super::report_support::median;

/// 1.3 billion parameters.
pub(crate) const GPT_1B3: Gpt = Gpt {
    vocab: 50_257,
    context: 2048,
    d_model: 2048,
    heads: 16,
    blocks: 24,
    dropout: 0.0,
};

/// 80 GiB less the shares of the driver, of gaps between tensors and of values that arrive long before their
/// use.
pub(crate) const MEMORY: Bytes = Bytes(70 << 30);
/// Warm-up steps, in which graphs are captured, and measured steps.
const STEPS: [usize; 2] = [6, 5];
/// Likewise, for a job whose step takes many seconds.
const LONG_STEPS: [usize; 2] = [2, 3];

pub(crate) fn h100s() -> String {
    "8,time=h100".into()
}

pub(crate) fn two_h100s() -> String {
    "2,time=h100".into()
}

/// As in a GH200: the link to the host is NVLink-C2C (450 GB/s each way by the data sheet).
pub(crate) fn near_the_host() -> String {
    format!("8,time={}", path(NEAR_THE_HOST))
}

/// Two nodes of `of` devices each, with 25 GB/s each way to a device of the other node (as with a network
/// card of 200 Gbit/s each), and 20 us.
pub(crate) fn two_nodes(of: usize) -> String {
    format!("{},time={}", 2 * of, path(&format!("nodes-of-{of}")))
}

/// Devices between which copies take no time.
pub(crate) fn no_links() -> String {
    format!("8,time={}", path(NO_LINKS))
}

/// A device whose work takes no time.
pub(crate) fn no_time() -> String {
    format!("1,time={}", path(NO_TIME))
}

const NEAR_THE_HOST: &str = "near-the-host";
const NO_LINKS: &str = "no-links";
const NO_TIME: &str = "no-time";
/// Devices per node with two nodes.
pub(crate) const NODES: [usize; 2] = [4, 8];

/// Writes the descriptions of devices that differ from an H100.
pub(crate) fn write_devices() -> Result<()> {
    let rates = [
        "f64",
        "f32",
        "f16",
        "bandwidth",
        "peer_bandwidth",
        "host_bandwidth",
    ];
    let mut no_time: Vec<String> = rates.iter().map(|rate| format!("{rate}=1e30")).collect();
    let times = ["launch", "peer_latency", "host_latency"];
    no_time.extend(times.iter().map(|time| format!("{time}=0")));
    for of in NODES {
        let node = format!("node={of}\nnode_bandwidth=25e9\nnode_latency=20e-6\n");
        std::fs::write(path(&format!("nodes-of-{of}")), node)?;
    }
    std::fs::write(path(NEAR_THE_HOST), "host_bandwidth=4e11\n")?;
    std::fs::write(path(NO_LINKS), "peer_bandwidth=1e18\npeer_latency=0\n")?;
    Ok(std::fs::write(path(NO_TIME), no_time.join("\n"))?)
}

fn path(name: &str) -> String {
    format!("{}/{name}.device", env!("CARGO_TARGET_TMPDIR"))
}

/// A model and the devices that train it.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub(crate) model: Gpt,
    pub(crate) devices: usize,
    /// Samples per micro-batch, and number of micro-batches.
    pub(crate) samples: i64,
    pub(crate) micro_batches: usize,
    /// Whether the model is too large for one device.
    pub(crate) large: bool,
}

/// Micro-batches large enough for the devices to be the limit.
pub(crate) const GPT_ON_EIGHT: Job = Job {
    model: GPT_1B3,
    devices: 8,
    samples: 4,
    micro_batches: 16,
    large: false,
};

/// Medians over steps.
#[derive(Clone, Copy)]
pub(crate) struct Ran {
    /// From the first kernel of the step to the end of the last, in microseconds.
    pub(crate) makespan: f64,
    /// Likewise, simulated for the schedule with the stages' measured times.
    pub(crate) own: f64,
    pub(crate) host_share: f64,
}

impl Job {
    fn devices(&self) -> Vec<Device> {
        (0..self.devices).map(Device::Cuda).collect()
    }

    fn tokens(&self, samples: i64, device: usize) -> Result<Tensor> {
        let options = (Kind::Int64, Device::Cuda(device));
        Ok(Tensor::f_zeros([samples, self.model.context], options)?)
    }

    pub(crate) fn profile(&self) -> Result<Profiled> {
        let (x, y) = (self.tokens(self.samples, 0)?, self.tokens(self.samples, 0)?);
        let sample = Sample::new(x).with_loss(y, token_cross_entropy);
        let mut options = ProfileOptions::new(&self.devices()).quick();
        options.precision = Precision::Bf16;
        options.low_memory = self.large;
        options.sizes = vec![usize::try_from(self.samples)?];
        Ok(profile(&gpt(self.model), &sample, &options)?)
    }

    pub(crate) fn plan_options(&self, measured: &Profiled) -> Result<PlanOptions> {
        let mut machine = Machine::new(self.devices)?.with_memory(&[MEMORY])?;
        if let Some(link) = measured.profile.link() {
            machine = machine.with_link(link);
        }
        if let Some(link) = measured.profile.host_link() {
            machine = machine.with_host_link(link);
        }
        let mut options = PlanOptions::new(machine);
        options.micro_batches = Some(self.micro_batches);
        options.batch = Some(self.micro_batches * usize::try_from(self.samples)?);
        Ok(options)
    }

    pub(crate) fn builder(&self) -> PipelineBuilder {
        Pipeline::builder(gpt(self.model))
            .devices(&self.devices())
            .micro_batches(self.micro_batches)
            .precision(Precision::Bf16)
    }

    pub(crate) fn planned(&self, plan: &Plan) -> Result<Ran> {
        self.run(self.builder().plan(plan)?)
    }

    pub(crate) fn run(&self, builder: PipelineBuilder) -> Result<Ran> {
        let mut pipe = builder.build()?;
        let batch = self.samples * i64::try_from(self.micro_batches)?;
        let (x, y) = (
            self.tokens(batch, 0)?,
            self.tokens(batch, self.devices - 1)?,
        );
        let (mut makespans, mut own, mut shares) = (vec![], vec![], vec![]);
        let [warm_up, steps] = if self.large { LONG_STEPS } else { STEPS };
        for step in 0..warm_up + steps {
            let report = pipe.train_step(&x, &y, token_cross_entropy)?;
            let numbers = report.read()?;
            if step >= warm_up {
                makespans.push(makespan(&numbers.timeline));
                own.push(numbers.predicted().makespan().get());
                shares.extend(numbers.host_share);
            }
            pipe.zero_grad()?;
        }
        Ok(Ran {
            makespan: median(makespans),
            own: median(own),
            host_share: median(shares),
        })
    }
}

/// Makespan in microseconds, without the host's time before the first kernel.
fn makespan(timeline: &Timeline) -> f64 {
    let starts = timeline.spans().iter().map(|span| span.start);
    let first = starts.min().map_or(0.0, |start| start.get());
    timeline.makespan().get() - first
}
