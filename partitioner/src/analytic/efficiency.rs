//! Efficiency of a card: share of its peak in matrix products, and bytes moved by everything else.

/// One curve for all cards, models and sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Share of the peak that a product of large matrices reaches.
    pub most: f64,
    /// Smallest dimension of a product that reaches half of `most`.
    pub half: f64,
    /// Bytes that a forward moves to and from the card's memory, beside its products, per byte that it
    /// stores for the backward.
    pub moved_forward: f64,
    /// Same as `moved_forward`, for the input half of the backward.
    pub moved_backward: f64,
    /// Share of a link's bandwidth that the all-reduces of a tensor-parallel group reach.
    pub link: f64,
}

impl Efficiency {
    /// The first four are fitted to the layer times on A100s that Qi et al. publish in table 9 of "Zero
    /// Bubble Pipeline Parallelism" (arXiv:2401.10241), for the models of its table 3: they reproduce all
    /// 36 within 5 %. The last is measured by NCCL's own benchmark on a node of eight A100s, 232.5 of 300
    /// GB/s (NVIDIA/nccl-tests, issue 175). No other data was used.
    pub const STATED: Self = Self {
        most: 0.84,
        half: 110.0,
        moved_forward: 4.5,
        moved_backward: 3.5,
        link: 0.775,
    };

    /// Returns the share of the peak of a product whose smallest dimension is `smallest`.
    ///
    /// ```
    /// use gpipe_partitioner::analytic::Efficiency;
    /// let curve = Efficiency::STATED;
    /// assert!((curve.share(110.0) - 0.42).abs() < 1e-9);
    /// assert!(curve.share(4096.0) > 0.81 && curve.share(1e9) < 0.84);
    /// ```
    pub fn share(&self, smallest: f64) -> f64 {
        self.most * smallest / (smallest + self.half)
    }
}

impl Default for Efficiency {
    fn default() -> Self {
        Self::STATED
    }
}
