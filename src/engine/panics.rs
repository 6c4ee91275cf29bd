//! Panics of the user's code, which become errors.
//!
//! Layers, loss functions and data sources may panic, and tch panics where libtorch refuses. The
//! library catches such panics and returns an error that names the place. The message that Rust
//! prints first would only bury the error under libtorch's stack frames. So the first call of
//! [`caught`] installs a panic hook for the process, which passes on to the previous hook all
//! panics except those that become errors.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// How the hook treats a panic of this thread.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Watch {
    /// Passes it on: it does not become an error.
    Off,
    /// Suppresses it: it becomes an error.
    On,
    /// Passes it on, because one was already suppressed: this one came while the stack of the first
    /// was unwinding (which aborts the process), or after the user's code had caught the first.
    /// Holds the place of the first.
    Used(Option<String>),
}

thread_local! {
    static WATCH: RefCell<Watch> = const { RefCell::new(Watch::Off) };
}

static HOOK: Once = Once::new();

/// Runs `body`; a panic is not printed, and its message is returned, for an error.
///
/// Unwind safety of `body` is asserted: the caller repairs what a panic leaves half-done.
///
/// # Errors
/// The message of the panic and, unless it is libtorch's own sentence, the place in the source.
pub fn caught<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    install();
    let outer = WATCH.replace(Watch::On);
    let result = catch_unwind(AssertUnwindSafe(body));
    let place = match WATCH.replace(outer) {
        Watch::Used(place) => place,
        _ => None,
    };
    result.map_err(|payload| {
        let text = message(&*payload);
        survived(|| drop(payload));
        match place {
            Some(place) if text.is_rusts => format!("{} ({place})", text.said),
            _ => text.said,
        }
    })
}

/// Runs `body`; a panic ends here and becomes no error, so the panic hook prints it.
pub fn survived(body: impl FnOnce()) {
    let outer = WATCH.replace(Watch::Off);
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
        // Dropping the payload could panic again; a leaked message is the lesser evil.
        std::mem::forget(payload);
    }
    WATCH.set(outer);
}

fn install() {
    // A panicking thread may not change the hook; either it is already installed, or the panic is
    // not the library's.
    if std::thread::panicking() {
        return;
    }
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !keep_quiet(info) {
                before(info);
            }
        }));
    });
}

/// Returns whether this panic becomes an error.
fn keep_quiet(info: &PanicHookInfo<'_>) -> bool {
    // A thread near its end may have no thread-local variables any more.
    let quiet = WATCH.try_with(|watch| {
        let mut watch = watch.borrow_mut();
        let quiet = *watch == Watch::On;
        if quiet {
            *watch = Watch::Used(info.location().map(ToString::to_string));
        }
        quiet
    });
    quiet.unwrap_or(false)
}

/// Text of a panic, and whether its place is worth naming.
struct Message {
    said: String,
    /// False for a message of libtorch, whose place is only where tch unwrapped its error.
    is_rusts: bool,
}

/// Returns the readable text of a panic: where tch unwrapped an error, libtorch's own sentence
/// instead of the error's debug form with its back-trace.
fn message(payload: &(dyn Any + Send)) -> Message {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("(no message)");
    let Some((_, debug)) = text.split_once("on an `Err` value: Torch(\"") else {
        return Message {
            said: without_backtrace(text).to_owned(),
            is_rusts: true,
        };
    };
    let debug = debug.strip_suffix("\")").unwrap_or(debug);
    let said = debug.replace("\\n", "\n").replace("\\\"", "\"");
    Message {
        said: without_backtrace(&said).to_owned(),
        is_rusts: false,
    }
}

/// Returns the part of a libtorch message that is meant for people.
///
/// libtorch appends `Exception raised from <function> at <file>` and one line per stack frame; tch
/// keeps these in errors and panics.
pub fn without_backtrace(message: &str) -> &str {
    let end = ["\nException raised from ", "\nframe #0: "]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min()
        .unwrap_or(message.len());
    message[..end].trim_end()
}

/// Returns the message of a panic that ended a thread, formatted as by [`caught`]; `payload` is the
/// error of joining the thread.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    message(payload).said
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Imitates tch, whose panics show the debug form of its error.
    #[derive(Debug)]
    enum Refusal {
        Torch(#[allow(dead_code)] String),
    }

    #[test]
    fn a_refusal_of_libtorch_is_its_own_sentence() {
        let raw = "shape \"a\" is wrong\nException raised from f at g (most recent call first):\nframe #0: h";
        let refused = || Err::<(), _>(Refusal::Torch(raw.to_owned()));
        assert_eq!(
            caught(|| refused().unwrap()).unwrap_err(),
            "shape \"a\" is wrong"
        );
        assert_eq!(without_backtrace("plain"), "plain");
        let enforced = "you tried to allocate 9 bytes\nframe #0: c10::ThrowEnforceNotMet";
        assert_eq!(without_backtrace(enforced), "you tried to allocate 9 bytes");
    }

    #[test]
    fn another_panic_says_where_it_was() {
        let line = line!() + 1;
        let said = caught(|| panic!("mine")).unwrap_err();
        assert!(said.starts_with("mine (src/engine/panics.rs:"), "{said}");
        assert!(said.contains(&format!(":{line}:")), "{said}");
        let quietly = || std::panic::resume_unwind(Box::new(7));
        assert_eq!(caught(quietly).unwrap_err(), "(no message)");
        assert_eq!(caught(|| 3), Ok(3));
    }

    #[test]
    fn one_in_another_is_the_inner_ones() {
        let said = caught(|| {
            let inner = caught(|| panic!("inner")).unwrap_err();
            assert!(inner.starts_with("inner"), "{inner}");
            survived(|| std::panic::resume_unwind(Box::new("nobody hears")));
            panic!("outer");
        });
        assert!(said.unwrap_err().starts_with("outer"));
        assert_eq!(WATCH.with_borrow(Clone::clone), Watch::Off);
    }
}
