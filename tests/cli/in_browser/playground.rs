//! The book's playground: its questions and answers, the module in Node, and the page in a browser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpipe_partitioner::ScheduleKind;
use gpipe_playground::{Question, answer};
use serde_json::{Value, json};

use super::browser::{SCHEMES, between, browser, open};
use crate::run::printed;

const STALE: &str =
    "book/src/playground/module.js is not what the partitioner says today: run `make playground`";

fn book() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src")
}

/// Questions about every schedule in several shapes, with unequal times, a link and recomputation.
fn questions() -> Vec<Value> {
    let base = |kind: ScheduleKind, devices: usize, micro: usize| {
        json!({
            "schedule": kind.name(), "devices": devices, "micro_batches": micro,
            "forward_us": 1000.0, "input_us": 1000.0, "weight_us": 1000.0,
        })
    };
    let mut questions = Vec::new();
    for kind in ScheduleKind::ALL {
        // Computing a schedule for a large shape takes seconds.
        let large = if kind == ScheduleKind::Auto {
            (4, 12)
        } else {
            (8, 32)
        };
        for (devices, micro) in [(4, 8), large, (3, 6)] {
            questions.push(base(kind, devices, micro));
        }
        let mut other = base(kind, 2, 6);
        for (name, value) in [
            ("forward_us", json!(900.5)),
            ("weight_us", json!(333.3)),
            ("activation_bytes", json!(50_000_001)),
            ("output_bytes", json!(3 << 20)),
            ("link", json!("10GB/s,20us")),
        ] {
            other[name] = value;
        }
        questions.push(other.clone());
        other["recompute"] = json!(kind.trains());
        questions.push(other);
    }
    for chunks in [3, 4] {
        let mut question = base(ScheduleKind::Interleaved1F1B, 4, 8);
        question["chunks"] = json!(chunks);
        questions.push(question);
    }
    questions
}

/// The command's answer to a question about one schedule with `chunks` chunks.
fn said(folder: &Path, question: &Value, chunks: usize, format: &str) -> String {
    let asked: Question = serde_json::from_value(question.clone()).unwrap();
    let profile = asked.profile(chunks).unwrap();
    let file = folder.join("profile.json");
    fs::write(&file, profile.to_json()).unwrap();
    let balance = vec!["1"; asked.devices * chunks].join(",");
    let recompute = if asked.recompute { "always" } else { "never" };
    let mut args = format!(
        "simulate --profile profile.json --balance {balance} --recompute {recompute} --schedule {} \
         --devices {} --micro {} --chunks {chunks} --format {format}",
        asked.schedule.unwrap(),
        asked.devices,
        asked.micro_batches
    );
    if let Some(link) = asked.link {
        args.push_str(" --link ");
        args.push_str(&link);
    }
    printed(folder, args.as_str())
}

#[test]
fn the_playground_answers_with_the_numbers_and_the_picture_of_the_command() {
    let folder = tempfile::tempdir().unwrap();
    for question in questions() {
        let answer: Value = serde_json::from_str(&answer(&question.to_string())).unwrap();
        let chunks = answer["chunks"].as_u64();
        let chunks = chunks.unwrap_or_else(|| panic!("{question}: {answer}")) as usize;
        let numbers = said(folder.path(), &question, chunks, "json");
        let numbers: Value = serde_json::from_str(&numbers).unwrap();
        for name in [
            "schedule",
            "devices",
            "micro_batches",
            "makespan_us",
            "bubble_fraction",
            "peak_in_flight",
            "peak_bytes",
        ] {
            assert_eq!(answer[name], numbers[name], "{name} of {question}");
        }
        let svg = said(folder.path(), &question, chunks, "svg");
        // The command's picture has a title above the rows.
        let rows = |svg: &str| {
            svg.split_once("<rect class=\"lane\"")
                .map(|(_, rows)| rows.to_owned())
        };
        let own = rows(answer["svg"].as_str().unwrap());
        assert!(
            own.is_some() && own == rows(&svg),
            "the picture of {question}"
        );
    }
}

#[test]
fn the_playground_compares_as_the_command_does() {
    let folder = tempfile::tempdir().unwrap();
    let question = json!({
        "devices": 4, "micro_batches": 8, "forward_us": 1000.0, "input_us": 1200.0, "weight_us": 800.0,
    });
    let answer: Value = serde_json::from_str(&answer(&question.to_string())).unwrap();
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(rows.len(), ScheduleKind::ALL.len());
    let table = printed(
        folder.path(),
        "simulate --compare --devices 4 --micro 8 --input-us 1200 --weight-us 800",
    );
    for (row, line) in rows.iter().zip(table.lines().skip(2)) {
        let text = |name: &str| row[name].as_str().unwrap();
        let mark = if row["fastest"] == true { "* " } else { "  " };
        assert!(
            line.starts_with(&format!("{mark}{} ", text("name"))),
            "{row} {line}"
        );
        for name in ["step", "bubble", "in_flight"] {
            let cell = format!(" {} ", text(name));
            assert!(format!("{line} ").contains(&cell), "{row} {line}");
        }
    }
}

#[test]
fn what_the_playground_cannot_answer_it_says() {
    let asked = |change: &[(&str, Value)]| {
        let mut question = json!({
            "schedule": "1f1b", "devices": 4, "micro_batches": 8,
            "forward_us": 1.0, "input_us": 1.0, "weight_us": 1.0,
        });
        for (name, value) in change {
            question[*name] = value.clone();
        }
        let answer: Value = serde_json::from_str(&answer(&question.to_string())).unwrap();
        answer["error"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(asked(&[]), "");
    for (name, value, error) in [
        ("schedule", json!("1fb1"), "did you mean `1f1b`?"),
        ("devices", json!(0), "device"),
        ("devices", json!(usize::MAX), "more than this page draws"),
        ("micro_batches", json!(100_000), "more than this page draws"),
        ("micro_batches", json!(0), "micro-batch"),
        ("chunks", json!(0), ""),
        ("forward_us", json!(-1.0), "times must be from 0"),
        ("weight_us", json!(1e300), "times must be from 0"),
        ("link", json!("fast"), "25GB/s,5us"),
        ("colour", json!(1), "unknown field `colour`"),
    ] {
        let said = asked(&[(name, value.clone())]);
        assert!(
            !said.is_empty() && said.contains(error),
            "{name} {value}: {said}"
        );
    }
    assert!(answer("no JSON").contains("\"error\""));
}

/// Asks the module the questions of a file, and prints the answers.
const IN_NODE: &str = "
const fs = require('fs');
const [, file, questions] = process.argv;
const coded = fs.readFileSync(file, 'utf8').match(/'([^']+)'/)[1];
const module_ = new WebAssembly.Module(Buffer.from(coded, 'base64'));
const own = new WebAssembly.Instance(module_).exports;
const answers = JSON.parse(fs.readFileSync(questions, 'utf8')).map(function (question) {
  const text = Buffer.from(JSON.stringify(question));
  // Room for the question may move the memory: first the room, then its bytes.
  const to = own.gpipe_question(text.length);
  new Uint8Array(own.memory.buffer, to, text.length).set(text);
  const from = own.gpipe_answer();
  return Buffer.from(own.memory.buffer, from, own.gpipe_answer_length()).toString();
});
console.log(JSON.stringify(answers));
";

#[test]
fn the_module_in_node_answers_as_the_partitioner_does_today() {
    let node = |args: &[&str]| Command::new("node").args(args).output();
    if !node(&["--version"]).is_ok_and(|output| output.status.success()) {
        println!("NOT CHECKED: there is no node here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("questions.json");
    let mut asked = questions();
    asked.push(json!({
        "devices": 4, "micro_batches": 8, "forward_us": 1000.0, "input_us": 1200.0, "weight_us": 800.0,
    }));
    asked.push(json!({"schedule": "1fb1"}));
    fs::write(&file, json!(asked).to_string()).unwrap();
    let module = book().join("playground/module.js");
    let output = node(&[
        "-e",
        IN_NODE,
        module.to_str().unwrap(),
        file.to_str().unwrap(),
    ])
    .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{STALE}: {errors}");
    let answers: Vec<String> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answers.len(), asked.len());
    for (question, there) in asked.iter().zip(answers) {
        let here: Value = serde_json::from_str(&answer(&question.to_string())).unwrap();
        let there: Value = serde_json::from_str(&there).unwrap();
        assert!(here == there, "{STALE} ({question})");
    }
}

/// Regression test: the playground computed memory as for a profile, and flags gave other numbers.
#[test]
fn the_playground_has_the_memory_that_flags_give() {
    let folder = tempfile::tempdir().unwrap();
    let line = "simulate --compare --devices 4 --micro 8 --activation-bytes 100MiB --output-bytes 4MiB \
                --json";
    let all: Value = serde_json::from_str(&printed(folder.path(), line)).unwrap();
    let question = json!({
        "devices": 4, "micro_batches": 8, "forward_us": 1000.0, "input_us": 1000.0, "weight_us": 1000.0,
        "activation_bytes": 100 << 20, "output_bytes": 4 << 20,
    });
    let answer: Value = serde_json::from_str(&answer(&question.to_string())).unwrap();
    let rows = answer["rows"].as_array().unwrap();
    for row in rows.iter().filter(|row| row["schedule"] != "auto") {
        let mut own = all.as_array().unwrap().iter();
        let own = own.find(|own| own["schedule"] == row["schedule"]).unwrap();
        assert_eq!(own["peak_bytes"], row["peak_bytes"], "{row}");
    }
}

/// The page's parts as in the book, beside the book's files, followed by a script.
fn page(acts: &str) -> String {
    let text = fs::read_to_string(book().join("playground.md")).unwrap();
    let begin = text.find("<div class=\"pg\">").unwrap();
    let end = text.rfind("</script>").unwrap() + "</script>".len();
    let base = book().display().to_string();
    format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><base href=\"file://{base}/\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>Playground</title><body>\n\
         <h1 id=\"playground\">Playground</h1>\n{}\n\
         <script>{acts};document.body.dataset.wider=\
         document.documentElement.scrollWidth-document.documentElement.clientWidth</script></body></html>",
        &text[begin..end]
    )
}

/// Sets a control of the page as typing does.
const SET: &str = "function set(name,value){var e=document.getElementById('pg-form').elements[name];\
               if(e.type==='checkbox'){e.checked=value}else{e.value=value}\
               e.dispatchEvent(new Event('input',{bubbles:true}))};";

/// Opens the page in the browser and performs these acts.
fn opened(browser: &str, folder: &Path, acts: &str, flags: &[&str]) -> String {
    let file = folder.join("page.html");
    fs::write(&file, page(acts)).unwrap();
    let flags = [&["--allow-file-access-from-files"], flags].concat();
    let (dom, log) = open(browser, folder, &file, &flags);
    assert!(!log.contains("CONSOLE"), "{log}");
    assert!(dom.contains("data-ready=\"yes\""), "{log}");
    dom
}

/// Regression test: at 8 x 32 the picture was unreadable and could not be zoomed.
#[test]
fn the_picture_of_the_playground_can_be_zoomed() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let zoomed = "var button=function(step){document.querySelector('[data-step=\"'+step+'\"]').click()};\
                  var names=function(){return document.querySelectorAll('#pg-picture g text').length},seen=[names()];\
                  button('+');button('+');button('+');\
                  seen.push(names(),document.querySelector('#pg-picture .chart').dataset.zoom);\
                  set('micro',4);seen.push(document.querySelectorAll('#pg-picture svg.tl').length,\
                  document.querySelector('#pg-picture .chart').dataset.zoom);button('+');\
                  seen.push(document.querySelector('#pg-picture .chart').dataset.zoom);\
                  document.body.dataset.seen=seen.join(' ')";
    let acts = format!("{SET}set('schedule','zbv');set('devices',8);set('micro',32);{zoomed}");
    let dom = opened(browser, folder.path(), &acts, &[]);
    assert_eq!(between(&dom, "data-seen=\"", "\""), "0 1536 8 1  2");
}

#[test]
fn the_page_works_in_a_browser_and_shows_the_numbers_of_the_command() {
    let Some(browser) = browser() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let opened = |acts: &str, flags: &[&str]| opened(browser, folder.path(), acts, flags);
    let shown = |dom: &str, id: &str| {
        let tag = if id == "pg-error" { "p" } else { "dd" };
        let begin = dom.find(&format!("id=\"{id}\"")).unwrap();
        between(&dom[begin..], ">", &format!("</{tag}>")).to_owned()
    };
    for (scheme, _) in SCHEMES {
        let dom = opened("", &[scheme, "--window-size=1280,900"]);
        let names = ScheduleKind::ALL.map(|kind| format!("{}</option>", kind.name()));
        assert!(names.iter().all(|name| dom.contains(name)));
        assert_eq!(dom.matches("</option>").count(), names.len());
        let numbers = ["pg-step", "pg-bubble", "pg-flight", "pg-error"].map(|id| shown(&dom, id));
        assert_eq!(numbers, ["33.00 ms", "27.3 %", "4", ""]);
        assert_eq!(
            dom.matches("<g class=\"").count(),
            64,
            "the actions of 1f1b"
        );
        assert_eq!(dom.matches("<tr").count(), 1 + names.len());
        assert!(dom.contains("data-wider=\"0\""), "{dom}");
    }
    let set = SET;
    for (acts, question) in [
        (
            "set('schedule','zbv');set('devices',8);set('micro',32)",
            json!({"schedule": "zbv", "devices": 8, "micro_batches": 32}),
        ),
        (
            "set('schedule','interleaved-1f1b');set('chunks',4);set('link','1GB/s,100us')",
            json!({"schedule": "interleaved-1f1b", "chunks": 4, "link": "1GB/s,100us"}),
        ),
        (
            "set('schedule','gpipe');set('recompute',true);set('weight',0.5)",
            json!({"schedule": "gpipe", "recompute": true, "weight_us": 500.0}),
        ),
    ] {
        let mut asked = json!({
            "devices": 4, "micro_batches": 8, "forward_us": 1000.0, "input_us": 1000.0,
            "weight_us": 1000.0, "activation_bytes": 100 << 20, "output_bytes": 4 << 20,
        });
        for (name, value) in question.as_object().unwrap() {
            asked[name.as_str()] = value.clone();
        }
        let dom = opened(&format!("{set}{acts}"), &[]);
        let chunks = if asked["schedule"] == "zbv" { 2 } else { 1 };
        let chunks = asked["chunks"].as_u64().unwrap_or(chunks) as usize;
        let numbers = said(folder.path(), &asked, chunks, "json");
        let numbers: Value = serde_json::from_str(&numbers).unwrap();
        let step =
            gpipe_partitioner::Micros::new(numbers["makespan_us"].as_f64().unwrap()).unwrap();
        let bubble = 100.0 * numbers["bubble_fraction"].as_f64().unwrap();
        let peaks = numbers["peak_bytes"].as_array().unwrap().iter();
        let peak = peaks.map(|peak| peak.as_u64().unwrap()).max().unwrap();
        assert_eq!(shown(&dom, "pg-step"), step.to_string(), "{STALE}");
        assert_eq!(
            shown(&dom, "pg-bubble"),
            format!("{bubble:.1} %"),
            "{STALE}"
        );
        assert_eq!(
            shown(&dom, "pg-memory"),
            gpipe_partitioner::Bytes(peak).to_string(),
            "{STALE}"
        );
    }
    let dom = opened(&format!("{set}set('devices','')"), &[]);
    assert_eq!(
        shown(&dom, "pg-error"),
        "a number is missing or out of its range"
    );
    let dom = opened(&format!("{set}set('link','fast')"), &[]);
    assert!(shown(&dom, "pg-error").contains("25GB/s,5us"));
    assert!(dom.contains("id=\"pg-result\" hidden"));
    // A row of the table chooses its schedule.
    let dom = opened(
        "document.querySelectorAll('#pg-rows button')[1].click()",
        &[],
    );
    assert_eq!(shown(&dom, "pg-step"), "25.50 ms");
}
