//! Learning rates against PyTorch's formulas, computed step by step as its schedulers do, and against numbers
//! computed by hand.

use std::f64::consts::PI;

use gpipe::{
    Error,
    optim::{LrKind, LrSchedule, OptimizerKind},
};

#[track_caller]
fn assert_near(got: f64, expected: f64, what: &str) {
    let near = (got - expected).abs() <= 1e-12 * expected.abs().max(1e-9);
    assert!(near, "{what}: {got} is not {expected}");
}

/// The rate of a PyTorch scheduler after `before` calls of its `step`.
type Scheduler = Box<dyn Fn(u64) -> f64>;

/// `LinearLR(start_factor, end_factor, total_iters)` in its chainable form.
fn linear_lr(base: f64, start: f64, end: f64, total: u64) -> Scheduler {
    Box::new(move |before| {
        let mut lr = base * start;
        for t in 1..=before {
            if t > total {
                break;
            }
            lr *= 1.0 + (end - start) / (total as f64 * start + (t - 1) as f64 * (end - start));
        }
        lr
    })
}

/// `CosineAnnealingLR(T_max, eta_min)` in its chainable form.
fn cosine_lr(base: f64, t_max: u64, eta_min: f64) -> Scheduler {
    let cos = move |t: u64| 1.0 + (PI * t as f64 / t_max as f64).cos();
    Box::new(move |before| {
        let mut lr = base;
        for t in 1..=before {
            lr = cos(t) / cos(t - 1) * (lr - eta_min) + eta_min;
        }
        lr
    })
}

/// `OneCycleLR(max_lr, total_steps, pct_start)` with its defaults: cosine, two phases.
fn one_cycle_lr(max: f64, total: u64, pct_start: f64) -> Scheduler {
    let (initial, total) = (max / 25.0, total as f64);
    let phases = [
        (pct_start * total - 1.0, initial, max),
        (total - 1.0, max, initial / 1e4),
    ];
    Box::new(move |before| {
        let (step, mut start) = (before as f64, 0.0);
        for (number, &(end, from, to)) in phases.iter().enumerate() {
            if step <= end || number + 1 == phases.len() {
                let pct = (step - start) / (end - start);
                return to + (from - to) / 2.0 * (1.0 + (PI * pct).cos());
            }
            start = end;
        }
        unreachable!("there is a last phase")
    })
}

/// `SequentialLR([first, second], milestones=[at])`.
fn sequential_lr(first: Scheduler, second: Scheduler, at: u64) -> Scheduler {
    Box::new(move |before| {
        if before < at {
            first(before)
        } else {
            second(before - at)
        }
    })
}

#[track_caller]
fn assert_is(schedule: &LrSchedule, scheduler: &Scheduler, steps: u64) {
    for step in 1..=steps {
        let what = format!("{schedule}, step {step}");
        assert_near(schedule.at(step), scheduler(step - 1), &what);
    }
}

const PEAK: f64 = 3e-3;

#[test]
fn every_schedule_is_pytorchs() {
    let schedule = LrSchedule::linear(PEAK, 40)
        .unwrap()
        .end(PEAK / 4.0)
        .unwrap();
    assert_is(&schedule, &linear_lr(PEAK, 1.0, 0.25, 40), 60);
    let schedule = LrSchedule::cosine(PEAK, 40).unwrap().end(1e-5).unwrap();
    assert_is(&schedule, &cosine_lr(PEAK, 40, 1e-5), 40);
    for (steps, rise) in [
        (40, 0.3),
        (40, 0.5),
        (7, 0.3),
        (11, 0.1),
        (2, 0.3),
        (33, 0.9),
    ] {
        let schedule = LrSchedule::one_cycle(PEAK, steps).unwrap();
        let schedule = schedule.rise(rise).unwrap();
        assert_is(&schedule, &one_cycle_lr(PEAK, steps, rise), steps);
    }
}

/// HF's `get_inverse_sqrt_schedule`, whose `shift` is the timescale less the warm-up.
#[test]
fn inverse_square_roots_are_vaswanis() {
    let schedule = LrSchedule::inverse_sqrt(PEAK).unwrap().warm_up(10).unwrap();
    for step in 11..200_u64 {
        let expected = PEAK * (10.0 / (step - 1) as f64).sqrt();
        assert_near(schedule.at(step), expected, &format!("step {step}"));
    }
    let plain = LrSchedule::inverse_sqrt(PEAK).unwrap();
    assert_near(plain.at(1), PEAK, "begins at the peak");
    assert_near(
        plain.at(30_001),
        PEAK / 2.0,
        "10,000 steps without a warm-up",
    );
    let scaled = schedule.timescale(90).unwrap();
    assert_near(scaled.at(11), PEAK, "after the warm-up");
    assert_near(scaled.at(11 + 270), PEAK / 2.0, "a timescale of its own");
}

#[test]
fn a_warm_up_is_a_line_before_any_of_them() {
    let warm = |first: f64| linear_lr(first, 1.0 / 8.0, 1.0, 7);
    let constant = LrSchedule::constant(PEAK).unwrap().warm_up(8).unwrap();
    let rest: Scheduler = Box::new(|_| PEAK);
    assert_is(&constant, &sequential_lr(warm(PEAK), rest, 8), 50);
    let linear = LrSchedule::linear(PEAK, 40).unwrap().warm_up(8).unwrap();
    let rest = linear_lr(PEAK, 1.0, 0.0, 32);
    assert_is(&linear, &sequential_lr(warm(PEAK), rest, 8), 40);
    let cosine = LrSchedule::cosine(PEAK, 40).unwrap().warm_up(8).unwrap();
    let rest = cosine_lr(PEAK, 32, 0.0);
    assert_is(&cosine, &sequential_lr(warm(PEAK), rest, 8), 40);
    let cycle = LrSchedule::one_cycle(PEAK, 40).unwrap().warm_up(8).unwrap();
    let rest = one_cycle_lr(PEAK, 32, 0.3);
    assert_is(&cycle, &sequential_lr(warm(PEAK / 25.0), rest, 8), 40);
}

/// PyTorch's cosine rises again after its end, and its one-cycle schedule fails there.
#[test]
fn what_is_over_stays_at_its_end() {
    for kind in LrKind::ALL.into_iter().filter(|kind| kind.ends()) {
        let schedule = LrSchedule::new(kind, PEAK, Some(20)).unwrap();
        let schedule = schedule.warm_up(3).unwrap().end(1e-4).unwrap();
        for step in [21, 22, 37, 1_000_000, u64::MAX] {
            assert_near(schedule.at(step), 1e-4, &format!("{schedule} {step}"));
        }
        let never_above = (0..100).all(|step| schedule.at(step) <= PEAK);
        assert!(never_above, "{schedule}");
    }
}

#[test]
fn odd_numbers_of_steps_have_finite_rates() {
    for kind in LrKind::ALL {
        for steps in 1..8 {
            for warm_up in 0..=steps {
                let schedule = LrSchedule::new(kind, PEAK, Some(steps)).unwrap();
                let schedule = schedule.warm_up(warm_up).unwrap();
                assert_eq!(schedule.at(0).to_bits(), schedule.at(1).to_bits());
                let within = |step| (0.0..=PEAK).contains(&schedule.at(step));
                assert!((0..20).all(within), "{schedule}");
            }
        }
    }
    for rise in [0.0, 1.0] {
        let cycle = LrSchedule::one_cycle(PEAK, 5).unwrap().rise(rise).unwrap();
        assert!((0..9).all(|step| cycle.at(step).is_finite()), "{cycle}");
    }
}

#[test]
fn text_and_back_is_the_same_schedule() {
    let texts = [
        "constant lr=0.003",
        "constant lr=0.003 warmup=100",
        "linear lr=0.003 steps=1000",
        "cosine lr=0.0003 steps=1000 warmup=100 end=0.00003",
        "one-cycle lr=0.1 steps=50 warmup=5 end=0.0000001 rise=0.4",
        "inverse-sqrt lr=0.02 warmup=400 timescale=4000",
    ];
    for text in texts {
        let schedule: LrSchedule = text.parse().unwrap();
        assert_eq!(schedule.to_string(), text);
    }
    let spaced: LrSchedule = " cosine  warmup=100 steps=1000\tlr=3e-4".parse().unwrap();
    assert_eq!(spaced.to_string(), "cosine lr=0.0003 steps=1000 warmup=100");
    for kind in LrKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    // Names as in PyTorch.
    for (name, kind) in [
        ("ConstantLR", LrKind::Constant),
        ("LinearLR", LrKind::Linear),
        ("CosineAnnealingLR", LrKind::Cosine),
        ("OneCycleLR", LrKind::OneCycle),
    ] {
        assert_eq!(name.parse(), Ok(kind));
    }
    for name in ["AdamW", "Adam", "SGD"] {
        let kind: OptimizerKind = name.parse().unwrap();
        assert_eq!(kind.name(), name.to_lowercase());
    }
}

#[test]
fn what_no_schedule_can_be_is_refused_in_words() {
    let wrong = [
        (
            "",
            "`` is no learning-rate schedule; there are constant, linear,",
        ),
        ("cosin lr=1 steps=2", "`cosin` is no learning-rate schedule"),
        ("cosine steps=5", "does not say lr="),
        (
            "cosine lr=0.1",
            "cosine needs the number of steps, at least 1",
        ),
        ("linear lr=0.1 steps=0", "linear needs the number of steps"),
        (
            "constant lr=-0.1",
            "the peak is -0.1, but must be 0 or more",
        ),
        ("constant lr=inf", "the peak is inf"),
        (
            "constant lr=0.1 steps=5",
            "constant does not end, so it has no steps=",
        ),
        (
            "constant lr=0.1 end=0",
            "constant does not end, so not at 0 either",
        ),
        (
            "linear lr=0.1 steps=5 end=0.2",
            "the end 0.2 is above the peak 0.1",
        ),
        (
            "linear lr=0.1 steps=5 warmup=6",
            "linear over 5 steps cannot warm up for 6",
        ),
        (
            "linear lr=0.1 steps=5.5",
            "steps=5.5 is not a number that steps can be",
        ),
        ("linear lr=0.1 steps=5 rise=0.5", "linear has no cycle"),
        (
            "one-cycle lr=0.1 steps=5 rise=1.5",
            "a share of 0 to 1 of it, not 1.5",
        ),
        (
            "cosine lr=0.1 steps=5 timescale=5",
            "cosine has no timescale",
        ),
        ("inverse-sqrt lr=0.1 timescale=0", "at least 1 step"),
        (
            "cosine lr=0.1 steps=5 warmup",
            "`warmup` is not of the form key=value",
        ),
        (
            "cosine lr=0.1 steps=5 warm=3",
            "`warm` is not one of its keys, which are lr,",
        ),
    ];
    for (text, expected) in wrong {
        let error = text.parse::<LrSchedule>().unwrap_err();
        assert!(matches!(error, Error::Settings(_)), "{text}");
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}
