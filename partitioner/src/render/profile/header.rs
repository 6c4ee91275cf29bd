//! The top of the page: choices, prediction, and limit of the plan.

use super::ProfilePage;
use crate::ids::DeviceId;
use crate::machine::Machine;
use crate::render::html;
use crate::render::memory::Curve;
use crate::render::page::{Fact, bar, capital, escaped, sentence};
use crate::units::Bytes;
use crate::words::count;
use std::fmt::Write as _;

/// Most devices whose peaks are listed at the top.
const FEW: usize = 8;

/// Returns the plan's choices in numbers.
pub(super) fn facts(page: &ProfilePage<'_>) -> Vec<Fact> {
    let plan = page.plan;
    let samples = plan.micro_batches * plan.micro_batch_size;
    let rate = samples as f64 / plan.step.get().max(f64::MIN_POSITIVE) * 1e6;
    let chunks = match plan.chunks {
        1 => "one stage a device".to_owned(),
        chunks => format!("{chunks} stages a device"),
    };
    let computed = match plan.computed {
        Some(_) => "computed for these times, ",
        None => "",
    };
    let limit = |device: DeviceId| page.options.machine.devices()[device.index()].memory;
    let link = match page.options.machine.link() {
        Some(link) if link.bandwidth().is_none() => {
            format!("link {}, nothing is copied", link.latency())
        }
        Some(link) => format!("link {link}"),
        None => "transfers take no time".to_owned(),
    };
    let replicas = page.options.machine.replicas();
    let each = match replicas {
        1 => "",
        _ => "for each replica, ",
    };
    let mut facts = vec![
        Fact::new(
            "Predicted step",
            plan.step.to_string(),
            format!("{} samples/s", rounded(rate)),
        ),
        html::bubble(plan.bubble_fraction),
        html::peak_memory(&plan.peak_bytes, limit),
        Fact::new(
            "Schedule",
            plan.schedule.to_string(),
            format!("{computed}{chunks}"),
        ),
        Fact::new(
            "Micro-batches",
            plan.micro_batches_each().to_string(),
            format!("{each}of {}", count(plan.micro_batch_size, "sample")),
        ),
        Fact::new(
            "Devices",
            match &page.cards {
                Some(cards) => escaped(cards),
                None => devices(plan.devices() * replicas, page.profile.device()),
            },
            link + &spread(&page.options.machine),
        ),
    ];
    facts.extend(html::exposed(&page.simulation.timeline));
    facts
}

/// Formats a number of devices; for costs computed for any card, such as `98 cards`.
fn devices(number: usize, device: &str) -> String {
    match device.strip_prefix("a ") {
        Some(noun) => escaped(&count(number, noun)),
        None => format!("{number} \u{d7} {}", escaped(device)),
    }
}

/// Describes replicas and nodes, if there are several.
fn spread(machine: &Machine) -> String {
    let mut text = String::new();
    if machine.replicas() > 1 {
        // Writing to a String cannot fail.
        let _ = write!(text, ", {} replicas of the pipeline", machine.replicas());
    }
    if let Some(nodes) = machine.nodes().filter(|nodes| nodes.count() > 1) {
        let _ = write!(
            text,
            ", {} nodes, {} between them",
            nodes.count(),
            nodes.link()
        );
    }
    text
}

/// Formats a rate with three significant digits.
fn rounded(rate: f64) -> String {
    if rate < 100.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    }
}

/// Returns the limit, and a hint to doubts.
pub(super) fn words(page: &ProfilePage<'_>) -> String {
    let mut html = String::new();
    if let Some(limit) = &page.limit {
        let (head, rest) = limit.split_once(": ").unwrap_or(("limit", limit));
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            html,
            "<p class=\"say\" id=\"limit\"><strong>{}</strong>: {}.</p>",
            escaped(&capital(head)),
            sentence(rest)
        );
    }
    if let Some(doubts) = page.doubts.as_deref().filter(|doubts| !doubts.is_empty()) {
        let (count, one) = (doubts.len(), doubts.len() == 1);
        let _ = writeln!(
            html,
            "<p class=\"say warn\"><strong>{count} {}</strong> about the measurements: \
             <a href=\"#doubts\">read {} first</a>.</p>",
            if one { "doubt" } else { "doubts" },
            if one { "it" } else { "them" }
        );
    }
    html
}

/// Returns each device's peak as a bar, if there are few devices.
pub(super) fn peaks(page: &ProfilePage<'_>) -> String {
    let peaks = &page.plan.peak_bytes;
    if !(2..=FEW).contains(&peaks.len()) {
        return String::new();
    }
    let devices = page.options.machine.devices();
    let highest = page.fullest().1;
    let mut html = String::from(
        "<p class=\"cap\" id=\"peaks\">Peak memory per device: weights, gradients and optimizer state (grey), \
         activations (green)</p>\n<ul class=\"peaks\" aria-labelledby=\"peaks\">\n",
    );
    for (number, (peak, device)) in peaks.iter().zip(devices).enumerate() {
        let whole = device.memory.unwrap_or(highest).get().max(1);
        let share = |bytes: Bytes| bytes.get() as f64 / whole as f64;
        let parts = Curve::new(&page.simulation, DeviceId(number)).parts();
        let others = parts.activations + parts.working;
        let filled = bar(&[("P", share(*peak - others)), ("A", share(others))]);
        let of = device
            .memory
            .map_or_else(String::new, |limit| format!(" of {limit}"));
        let _ = writeln!(
            html,
            "<li><span>device {number}</span>{filled}<span>{peak}{of}</span></li>"
        );
    }
    html.push_str("</ul>\n");
    html
}

/// Describes the origin of the costs.
pub(super) fn origin(page: &ProfilePage<'_>) -> String {
    let profile = page.profile;
    let how = profile
        .measured()
        .map_or_else(String::new, |how| format!(": {}", escaped(how)));
    let libtorch = profile.libtorch().map_or_else(String::new, |version| {
        format!(", libtorch {}", escaped(version))
    });
    let (measured, used) = (profile.batch(), page.plan.micro_batch_size);
    let scaled = if measured == used {
        String::new()
    } else {
        format!(
            " The plan uses micro-batches of {}; all numbers below are for that size.",
            count(used, "sample")
        )
    };
    let samples = count(measured, "sample");
    // Computed costs say themselves that nothing was measured.
    let made = match profile.measured() {
        Some(how) if page.is_computed() => {
            format!("{}, for micro-batches of {samples}", escaped(how))
        }
        _ => format!(
            "measured on {} with micro-batches of {samples}{how}",
            escaped(profile.device())
        ),
    };
    format!(
        "<p class=\"hint\">{}, {made}{libtorch}.{scaled}</p>\n",
        count(profile.layers().len(), "layer")
    )
}
