//! Chrome's trace event format: opens in Perfetto and in `chrome://tracing`.

use crate::schedule::ActionKind;
use crate::timeline::Timeline;
use std::fmt::Write as _;

/// Returns the timeline as trace event JSON, one named thread per device, times in microseconds.
/// Exchanges of gradients, which overlap with actions, are on a second thread of the device.
///
/// *Source*: "Trace Event Format", complete events (`ph` = `X`) and metadata
/// events (`ph` = `M`).
pub fn chrome_trace(timeline: &Timeline) -> String {
    let mut json = String::with_capacity(160 * timeline.spans().len() + 1024);
    json.push_str("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    json.push_str(r#"{"name":"process_name","ph":"M","pid":0,"args":{"name":"pipeline"}}"#);
    for device in 0..timeline.devices() {
        // Writing to a String cannot fail.
        let _ = write!(
            json,
            ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":{device},\"args\":{{\"name\":\"device {device}\"}}}}"
        );
    }
    let (devices, exchanges) = (timeline.devices(), timeline.exchanges());
    for device in (0..devices).filter(|_| !exchanges.is_empty()) {
        let _ = write!(
            json,
            ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":{},\"args\":{{\"name\":\"device {device}, link\"}}}}",
            devices + device
        );
    }
    for exchange in exchanges {
        let _ = write!(
            json,
            ",\n{{\"name\":\"{stage}A\",\"cat\":\"all-reduce\",\"ph\":\"X\",\"ts\":{},\"dur\":{},\"pid\":0,\"tid\":{},\
             \"args\":{{\"stage\":{stage}}}}}",
            exchange.start.get(),
            (exchange.end - exchange.start).get(),
            devices + exchange.device.index(),
            stage = exchange.stage,
        );
    }
    for span in timeline.spans() {
        let action = span.action;
        let _ = write!(
            json,
            ",\n{{\"name\":\"{action}\",\"cat\":\"{}\",\"ph\":\"X\",\"ts\":{},\"dur\":{},\"pid\":0,\"tid\":{},\
             \"args\":{{\"stage\":{},\"micro_batch\":{}}}}}",
            category(action.kind),
            span.start.get(),
            span.duration().get(),
            span.device,
            action.stage,
            action.micro,
        );
    }
    json.push_str("\n]}\n");
    json
}

/// Category by which a viewer filters.
const fn category(kind: ActionKind) -> &'static str {
    match kind {
        ActionKind::Forward => "forward",
        ActionKind::Backward => "backward",
        ActionKind::BackwardInput => "backward-input",
        ActionKind::BackwardWeight => "backward-weight",
        ActionKind::Recompute => "recompute",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Costs, Micros, ScheduleKind, Shape, simulate};

    #[test]
    fn it_is_json_with_one_event_per_action() {
        let schedule = ScheduleKind::OneFOneB.generate(Shape::new(2, 3)).unwrap();
        let unit = Micros::new(1.5).unwrap();
        let timeline = simulate(&schedule, &Costs::uniform(2, unit, unit, unit)).timeline;
        let json: serde_json::Value = serde_json::from_str(&chrome_trace(&timeline)).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 3 + 12);
        let first = &events[3];
        assert_eq!(
            (first["name"].as_str(), first["dur"].as_f64()),
            (Some("0F0"), Some(1.5))
        );
        assert_eq!(first["args"]["micro_batch"], 0);
    }
}
