//! The timeline as one self-contained HTML page.

use super::svg;
use crate::ids::DeviceId;
use crate::timeline::Timeline;
use std::fmt::Write as _;

const STYLE: &str = ":root{color-scheme:light dark}\
body{font-family:sans-serif;margin:24px;color:#111;background:#fff}\
h1{font-size:1.4em}\
svg{width:100%;height:auto;border:1px solid #999}\
table{border-collapse:collapse;margin-top:16px}\
td,th{border:1px solid #999;padding:3px 10px;text-align:right}\
#detail{min-height:1.4em;margin:10px 0;font-family:monospace;white-space:pre}\
@media (prefers-color-scheme:dark){body{color:#eee;background:#16181c}}";

/// Shows what the pointer is on, in a line of its own: quicker than the browser's
/// own tooltip, which is there without scripts too. The page's root says when the
/// script has run.
const SCRIPT: &str = "var detail=document.getElementById('detail'),hint=detail.textContent;\
document.querySelector('svg').addEventListener('mousemove',function(e){\
var g=e.target.closest('g'),t=g&&g.querySelector('title');\
detail.textContent=t?t.textContent.replace('\\n','   '):hint;});\
document.documentElement.dataset.ready='yes';";

/// A page with the picture of [`svg`](super::svg()), the details of the action under
/// the pointer, the legend, and a table of each device's busy and idle time. Loads
/// nothing; readable in black and white.
pub fn html(timeline: &Timeline, title: &str) -> String {
    let title = escaped(title);
    let picture = svg(timeline);
    let mut page = String::with_capacity(picture.len() + 4096);
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p>Step {}, bubble {:.1} %, {} actions on {} devices.</p>\n<div id=\"detail\">Point at an action for its times.</div>\n{picture}",
        timeline.makespan(),
        100.0 * timeline.bubble_fraction(),
        timeline.spans().len(),
        timeline.devices()
    );
    table(&mut page, timeline);
    let _ = write!(page, "<script>{SCRIPT}</script>\n</body>\n</html>\n");
    page
}

fn table(page: &mut String, timeline: &Timeline) {
    page.push_str(
        "<table>\n<tr><th>device</th><th>busy</th><th>idle</th><th>idle within</th></tr>\n",
    );
    for device in (0..timeline.devices()).map(DeviceId) {
        let _ = writeln!(
            page,
            "<tr><td>{device}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            timeline.busy(device),
            timeline.idle(device),
            timeline.idle_within(device)
        );
    }
    page.push_str("</table>\n");
}

/// `text` as HTML's text.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(c),
        }
    }
    escaped
}
