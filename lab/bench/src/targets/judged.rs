//! A target with its verdict.

/// Whether a target was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The target was met.
    Met,
    /// Met, because zram ran out of memory where canvas did not.
    MetByOom,
    /// The target was missed.
    Missed,
    /// No target: the figure is only reported.
    Told,
    /// Its figures were not measured.
    Unknown,
}

impl Verdict {
    /// The verdict in tables.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::MetByOom => "met (zram ran out of memory)",
            Verdict::Missed => "MISSED",
            Verdict::Told => "no bound",
            Verdict::Unknown => "not measured",
        }
    }
}

/// A target, or a budget, with its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Number: V1 ..., or L1 for budgets.
    pub number: &'static str,
    /// Cell: "random-read at 25 %".
    pub place: String,
    /// The target as text.
    pub promise: String,
    /// The figure as text.
    pub measured: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
}
