//! Replicas that are impossible, and state that they cannot share: refused when built, or in the step.

use super::*;

#[test]
fn replicas_that_cannot_be_are_refused() {
    let told = |builder: PipelineBuilder, wanted: &str| {
        let error = builder.check().unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert_eq!(setting(builder), Setting::Replicas);
    };
    told(builder(1).replicas(0), "0 replicas");
    told(builder(3).tree(4), "is 3, but");
    told(builder(8).tree(4), "give `tree` 8 leaves");
    told(
        builder(2).devices(&cpus(3)),
        "3 devices cannot be shared evenly by 2",
    );
}

/// A layer that counts its micro-batches in state that cannot be shared.
#[derive(Debug)]
struct Counting(Rc<Count>);

#[derive(Debug)]
struct Count;

impl StepState for Count {
    fn commit(&self) -> anyhow::Result<()> {
        Ok(())
    }

    fn discard(&self) {}
}

impl Layer for Counting {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        ctx.gathers(&self.0);
        Ok(inputs)
    }
}

#[test]
fn what_replicas_cannot_share_fails_the_step() {
    single_threaded();
    let model = || {
        Sequential::new()
            .layer("first", |p| {
                nn::linear(p, 6, 3, nn::LinearConfig::default())
            })
            .layer("counting", |_| Counting(Rc::new(Count)))
    };
    let (x, y) = batch(8);
    let step = |replicas: usize| {
        let builder = Pipeline::builder(model()).devices(&cpus(2 * replicas));
        let builder = builder.replicas(replicas).tree(LEAVES).micro_batches(4);
        let mut pipe = builder.build().unwrap();
        let done = pipe.train_step(&x, &y, cross_entropy);
        (
            done.map(drop).map_err(|error| error.to_string()),
            gradients(&mut pipe),
        )
    };
    assert_eq!(step(1).0, Ok(()));
    let (done, left) = step(2);
    let error = done.unwrap_err();
    assert!(error.contains("layer `counting`"), "{error}");
    assert!(error.contains("replicas cannot share"), "{error}");
    assert!(left.is_empty(), "{left:?}");
}

/// A layer that clamps its weight in its forward.
#[derive(Debug)]
struct Clamped(Tensor);

impl nn::Module for Clamped {
    fn forward(&self, x: &Tensor) -> Tensor {
        let _ = gpipe::tch::no_grad(|| self.0.shallow_clone().clamp_(-0.1, 0.1));
        x * &self.0
    }
}

#[test]
fn a_forward_that_writes_to_a_parameter_fails_the_step() {
    single_threaded();
    let model = Sequential::new()
        .layer("first", |p| {
            nn::linear(p, 6, 3, nn::LinearConfig::default())
        })
        .layer("clamped", |p| {
            Clamped(p.var("weight", &[3], nn::Init::Const(1.0)))
        });
    let builder = Pipeline::builder(model).devices(&cpus(4)).replicas(2);
    let mut pipe = builder.tree(2).micro_batches(4).build().unwrap();
    let (x, y) = batch(8);
    let error = pipe.train_step(&x, &y, cross_entropy).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("layer `clamped`"), "{error}");
    assert!(
        error.contains("writes to the parameter `clamped.weight`"),
        "{error}"
    );
}
