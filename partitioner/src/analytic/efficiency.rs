//! The share of a card's peak that products reach, and the bytes that all else moves.

/// One curve for all cards, models and sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// The share of the peak that a product of large matrices reaches.
    pub most: f64,
    /// The smallest dimension of a product that reaches half of that.
    pub half: f64,
    /// Bytes that a forward moves to and from the card's memory, beside its products, by byte
    /// that it stores for the backward.
    pub moved_forward: f64,
    /// The same of the input half of the backward.
    pub moved_backward: f64,
    /// The share of a link's bandwidth that the all-reduces of a tensor-parallel group reach.
    pub link: f64,
}

impl Efficiency {
    /// The first four are from the layer times on A100s that Qi et al. publish in table 9 of "Zero Bubble
    /// Pipeline Parallelism" (arXiv:2401.10241), for the models of its table 3: they meet all 36 of
    /// them within 5 %. The last is what NCCL's own benchmark measures on a node of eight A100s, 232.5 of
    /// 300 GB/s (NVIDIA/nccl-tests, issue 175). Nothing else went into them.
    pub const STATED: Self = Self {
        most: 0.84,
        half: 110.0,
        moved_forward: 4.5,
        moved_backward: 3.5,
        link: 0.775,
    };

    /// The share of the peak that a product reaches whose smallest dimension is `smallest`.
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
