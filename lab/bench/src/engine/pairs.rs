//! Table of side-by-side comparisons: slowdown of one program of each pair, and the memory that it saves.

use std::collections::BTreeMap;

use super::PAIR;
use super::table::align;
use crate::record::{Outcome, Sample};
use crate::stats::median;

/// Result of one pair, as shares: 0.02 is 2 %.
#[derive(Default)]
struct Figures {
    slower: Vec<f64>,
    cpu_more: Vec<f64>,
    own: Vec<f64>,
    saved: Vec<f64>,
    net: Vec<f64>,
}

impl Figures {
    fn add(&mut self, base: &Sample, other: &Sample) {
        let both = |of: &dyn Fn(&Sample) -> Option<f64>| Some((of(base)?, of(other)?));
        if let Some((b, o)) = both(&|s| s.ops_per_s) {
            self.slower.push(b / o - 1.0);
        }
        // Processor time per operation.
        let each = |s: &Sample| Some(s.measured?.cpu_s? / (s.ops_per_s? * span_s(s)?));
        if let Some((b, o)) = both(&each) {
            self.cpu_more.push(o / b - 1.0);
        }
        if let Some((b, o)) = both(&|s| s.measured?.local_bytes) {
            self.saved.push(1.0 - o / b);
        }
        if let Some((b, o)) = both(&|s| s.measured?.memory_bytes) {
            self.net.push(1.0 - o / b);
        }
        self.own.extend(other.own_slowdown);
    }
}

fn span_s(s: &Sample) -> Option<f64> {
    let measured = s.measured?;
    Some(measured.to_s - measured.from_s)
}

fn percent(values: &[f64]) -> String {
    median(values).map_or("-".to_owned(), |m| format!("{:.1}%", 100.0 * m))
}

/// Minimum and maximum.
fn range(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match &sorted[..] {
        [least, .., most] => format!("{:.1} to {:.1}%", 100.0 * least, 100.0 * most),
        _ => "-".to_owned(),
    }
}

/// A line for each program and each variant other than the base.
pub fn table(name: &str, samples: &[&Sample]) -> String {
    let mut pairs: BTreeMap<_, BTreeMap<u32, Vec<&Sample>>> = BTreeMap::new();
    let ended = samples.iter().filter(|s| s.outcome == Outcome::Ok);
    for s in ended {
        let pair = s.parameters.get(PAIR).cloned().unwrap_or_default();
        let key = (s.workload.clone(), pair);
        pairs
            .entry(key)
            .or_default()
            .entry(s.repeat)
            .or_default()
            .push(s);
    }
    let head = [
        "side by side",
        "",
        "slower",
        "",
        "CPU",
        "its own figure",
        "saved",
        "net",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for ((workload, pair), repeats) in pairs {
        let mut figures = Figures::default();
        let mut base_name = String::new();
        for both in repeats.values() {
            let (others, bases): (Vec<&Sample>, Vec<&Sample>) = both
                .iter()
                .copied()
                .partition(|s| s.variant.to_string() == pair);
            if let (Some(base), Some(other)) = (bases.first(), others.first()) {
                figures.add(base, other);
                base_name = base.variant.to_string();
            }
        }
        rows.push(vec![
            workload,
            format!("{pair} over {base_name}"),
            percent(&figures.slower),
            range(&figures.slower),
            percent(&figures.cpu_more),
            percent(&figures.own),
            percent(&figures.saved),
            percent(&figures.net),
        ]);
    }
    format!("{name}\n{}", align(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Measured;
    use crate::variant::Variant;

    #[test]
    fn one_of_a_pair_is_compared_with_the_other_of_the_same_repeat() {
        let flags = || vec!["--slo".to_owned(), "5%".to_owned()];
        let sample = |variant, repeat, ops_per_s, bytes| Sample {
            workload: "w".to_owned(),
            variant,
            repeat,
            ops_per_s: Some(ops_per_s),
            own_slowdown: Some(0.04),
            parameters: [(PAIR.to_owned(), "canvas[--slo 5%]".to_owned())].into(),
            measured: Some(Measured {
                from_s: 1.0,
                to_s: 2.0,
                cpu_s: Some(0.5),
                local_bytes: Some(bytes),
                memory_bytes: Some(bytes + 10.0),
                ..Measured::default()
            }),
            ..Sample::default()
        };
        let all = [
            sample(Variant::Local, 0, 110.0, 100.0),
            sample(Variant::Canvas(flags()), 0, 100.0, 80.0),
            // A slow minute that hits both.
            sample(Variant::Canvas(flags()), 1, 50.0, 80.0),
            sample(Variant::Local, 1, 55.0, 100.0),
        ];
        let refs: Vec<&Sample> = all.iter().collect();
        let text = table("slo", &refs);
        let row = text.lines().nth(2).unwrap();
        for part in [
            "canvas[--slo 5%] over local",
            "  10.0%",
            "10.0 to 10.0%",
            "4.0%",
            "20.0%",
            "18.2%",
        ] {
            assert!(row.contains(part), "{part} in {row}");
        }
        let lonely = table("slo", &refs[..1]);
        assert!(lonely.lines().nth(2).unwrap().contains('-'), "{lonely}");
    }
}
