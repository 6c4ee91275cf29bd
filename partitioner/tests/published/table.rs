//! Rows of the table.

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unit {
    Percent,
    Milliseconds,
    MicroBatches,
    Teraflops,
    Times,
}

/// Permitted deviation of a computed value from the published one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    /// In percentage points.
    Points(f64),
    /// In percent of the published value.
    Percent(f64),
}

/// A published value and the computed one.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) source: &'static str,
    pub(crate) case: String,
    pub(crate) what: String,
    pub(crate) unit: Unit,
    pub(crate) published: f64,
    pub(crate) own: f64,
    pub(crate) limit: Limit,
    /// Why the limit is missed, if known.
    pub(crate) why: Option<&'static str>,
}

impl Row {
    /// Deviation, in the unit of the limit.
    pub(crate) fn off(&self) -> f64 {
        match self.limit {
            Limit::Points(_) => self.own - self.published,
            Limit::Percent(_) => 100.0 * (self.own / self.published - 1.0),
        }
    }

    pub(crate) fn is_met(&self) -> bool {
        let (Limit::Points(limit) | Limit::Percent(limit)) = self.limit;
        self.off().abs() <= limit
    }

    /// Formats a row of the page's table.
    pub(crate) fn text(&self) -> String {
        let value = |value: f64| match self.unit {
            Unit::Percent => format!("{value:.2} %"),
            Unit::Milliseconds => format!("{value:.2} ms"),
            Unit::MicroBatches => format!("{value:.1}"),
            Unit::Teraflops => format!("{value:.0} TFLOP/s"),
            Unit::Times => format!("{value:.2}"),
        };
        let (off, limit) = match self.limit {
            Limit::Points(limit) => (
                format!("{:+.2} points", self.off()),
                format!("{limit} points"),
            ),
            Limit::Percent(limit) => (format!("{:+.1} %", self.off()), format!("{limit} %")),
        };
        let met = if self.is_met() { "yes" } else { "**no**" };
        format!(
            "| {} | {} | {} | {} | {} | {off} | {limit} | {met} |\n",
            self.source,
            self.case,
            self.what,
            value(self.published),
            value(self.own)
        )
    }
}

/// Fails if a row without a reason misses its limit.
#[track_caller]
pub(crate) fn assert_met(rows: &[Row]) {
    let missed: Vec<&Row> = rows
        .iter()
        .filter(|row| row.why.is_none() && !row.is_met())
        .collect();
    assert!(missed.is_empty(), "{missed:#?}");
}
