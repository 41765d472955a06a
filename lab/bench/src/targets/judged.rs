//! A target after it was looked at.

/// Whether a target was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was.
    Met,
    /// Or because zram ran out of memory where canvas did not.
    MetByOom,
    /// It was not.
    Missed,
    /// Nothing was promised: a figure to look at.
    Told,
    /// What it needs was not measured.
    Unknown,
}

impl Verdict {
    /// For tables.
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

/// A target, or a budget, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// V1 ...; L1 for budgets.
    pub number: &'static str,
    /// Of what: "random-read at 25 %".
    pub place: String,
    /// What was promised, in words.
    pub promise: String,
    /// What was measured, in words.
    pub measured: Option<String>,
    /// The end.
    pub verdict: Verdict,
}
