//! Panics that the library turns into errors are not printed; all others are.

use std::panic::catch_unwind;
use std::process::Command;
use std::thread;

use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Pipeline, Sequential};

use crate::support::cpus;

/// Set where this binary is run again for its output.
const CHILD: &str = "GPIPE_TEST_QUIET_CHILD";

/// Regression test: a panic of tch was printed with dozens of C++ stack frames before the one-line error;
/// only the command suppressed it.
#[test]
fn what_becomes_an_error_is_not_printed_and_all_else_is() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["quiet::child", "--exact", "--nocapture", "--test-threads=1"]);
    let output = child.env(CHILD, "1").output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    for kept in [
        "frame #",
        "cannot be multiplied",
        "of a layer",
        "of the loss",
    ] {
        assert!(!errors.contains(kept), "`{kept}` in: {errors}");
    }
    let told = [
        "before any step",
        "of the program",
        "of a thread",
        "after it",
    ];
    for told in told {
        assert_eq!(errors.matches(told).count(), 1, "`{told}` in: {errors}");
    }
    // They reached the hook that the program had installed.
    assert_eq!(
        errors.matches("the program's hook").count(),
        told.len(),
        "{errors}"
    );
}

/// Run by the test above.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    std::panic::set_hook(Box::new(|info| {
        let said = info.payload_as_str().unwrap_or_default();
        eprintln!("the program's hook: {said}");
    }));
    catch_unwind(|| panic!("before any step")).unwrap_err();
    let x = Tensor::ones([4, 5], (Kind::Float, Device::Cpu));
    let loss = |out: &Tensor, _: &Tensor| out.mean(Kind::Float);
    let linear = Sequential::new().layer("linear", |p| {
        nn::linear(p, 4, 3, nn::LinearConfig::default())
    });
    let panicking = Sequential::new().layer("panicking", |_| {
        nn::func(|x| match x.size()[0] {
            2 => panic!("of a layer"),
            _ => x.shallow_clone(),
        })
    });
    for (model, said) in [(linear, "cannot be multiplied"), (panicking, "of a layer")] {
        let mut pipe = Pipeline::new(model, &cpus(1), 2).unwrap();
        let error = pipe.train_step(&x, &x, loss).unwrap_err().to_string();
        assert!(
            error.contains(said) && !error.contains("frame #"),
            "{error}"
        );
    }
    let identity = Sequential::new().layer("scale", |p| {
        let scale = p.ones("scale", &[1]);
        nn::func(move |x| x * &scale)
    });
    let mut pipe = Pipeline::new(identity, &cpus(1), 1).unwrap();
    let panicking = |_: &Tensor, _: &Tensor| -> Tensor { panic!("of the loss") };
    let error = pipe.train_step(&x, &x, panicking).unwrap_err().to_string();
    // Includes the place, as the panic's message is not printed.
    assert!(
        error.contains("of the loss (tests/faults/quiet.rs:"),
        "{error}"
    );
    let threads = move |out: &Tensor, _: &Tensor| {
        thread::spawn(|| panic!("of a thread")).join().unwrap_err();
        out.mean(Kind::Float)
    };
    pipe.train_step(&x, &x, threads).unwrap();
    catch_unwind(|| panic!("of the program")).unwrap_err();
    drop(pipe);
    catch_unwind(|| panic!("after it")).unwrap_err();
}
