//! Checks of the page's structure, with a browser's parser.

use std::collections::BTreeSet;

use html5ever::tendril::TendrilSink;
use html5ever::{ParseOpts, parse_document};
use markup5ever_rcdom::{Handle, NodeData, RcDom};
use proptest::prelude::*;

use super::*;
use crate::fixture;
use crate::record::{Far, Outcome, Sample};
use crate::variant::{FarBelow, Variant};

/// An element: its name, attributes, and the text below it.
struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    text: String,
    inside: Vec<Element>,
}

impl Element {
    fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(n, _)| n == name);
        found.map(|(_, v)| v.as_str())
    }

    /// The element and all its descendants with this name.
    fn all<'e>(&'e self, name: &str, found: &mut Vec<&'e Element>) {
        if self.name == name || name == "*" {
            found.push(self);
        }
        for inside in &self.inside {
            inside.all(name, found);
        }
    }
}

fn element(handle: &Handle) -> Element {
    let mut this = Element {
        name: String::new(),
        attributes: vec![],
        text: String::new(),
        inside: vec![],
    };
    match &handle.data {
        NodeData::Element { name, attrs, .. } => {
            this.name = name.local.to_string();
            this.attributes = attrs
                .borrow()
                .iter()
                .map(|a| (a.name.local.to_string(), a.value.to_string()))
                .collect();
        }
        NodeData::Text { contents } => this.text = contents.borrow().to_string(),
        _ => {}
    }
    for child in handle.children.borrow().iter() {
        let inside = element(child);
        this.text += &inside.text;
        if !matches!(child.data, NodeData::Text { .. }) {
            this.inside.push(inside);
        }
    }
    this
}

struct Page(Element);

impl Page {
    /// Parses the page; fails at anything that a browser would have to repair.
    fn of(results: &Results) -> Page {
        let text = html(results);
        let dom = parse_document(RcDom::default(), ParseOpts::default()).one(text.as_str());
        let errors = dom.errors.borrow();
        assert!(errors.is_empty(), "{errors:?}");
        Page(element(&dom.document))
    }

    fn all(&self, name: &str) -> Vec<&Element> {
        let mut found = Vec::new();
        self.0.all(name, &mut found);
        found
    }

    fn has(&self, text: &str) -> bool {
        let body = self.all("body");
        body[0].text.contains(text)
    }

    /// The row of a table whose cells contain these texts.
    fn row(&self, parts: &[&str]) -> Vec<String> {
        let rows = self.all("tr");
        let row = rows
            .iter()
            .find(|r| parts.iter().all(|p| r.inside.iter().any(|c| c.text == *p)))
            .unwrap_or_else(|| panic!("no row with {parts:?}"));
        row.inside.iter().map(|c| c.text.clone()).collect()
    }
}

#[test]
fn every_kind_of_plot_and_table_is_there() {
    let page = Page::of(&fixture::small("1", 1));
    for heading in [
        "Slowdown against local memory",
        "Co-run slowdown",
        "Latency of requests",
        "Slow accesses",
        "Time of a fault",
        "Bandwidth over time",
        "Throughput over time",
        "Skipped",
        "Left out",
    ] {
        assert!(
            page.all("h3").iter().any(|h| h.text == heading),
            "{heading}"
        );
    }
    for table in [
        "Speed",
        "How much may be far",
        "Latencies and faults",
        "Paging, processor and memory",
        "Prefetching and swap entries",
    ] {
        assert!(
            page.all("summary").iter().any(|h| h.text == table),
            "{table}"
        );
    }
    let figures = page.all("figure");
    assert!(figures.len() > 10);
    for figure in figures {
        let mut drawn = Vec::new();
        figure.all("*", &mut drawn);
        let title = &figure.inside[0].text;
        let mut legend = Vec::new();
        figure.all("li", &mut legend);
        assert!(!legend.is_empty(), "{title}: no legend");
        // As many colours as names, each on a line or a bar.
        let colours: BTreeSet<&str> = drawn
            .iter()
            .filter(|e| ["polyline", "rect", "circle", "polygon"].contains(&e.name.as_str()))
            .flat_map(|e| [e.attribute("stroke"), e.attribute("fill")])
            .flatten()
            .filter(|c| c.starts_with('#'))
            .filter(|c| !["#E1E0D9", "#B8B7AF"].contains(c))
            .collect();
        assert_eq!(colours.len(), legend.len(), "{title}");
    }
    assert!(page.has("this kernel has no zswap (1)"));
    assert!(page.has("a choice of prefetchers (1)"));
    assert!(page.has("Data right"));
    assert!(page.has("2023-11-14 22:13 UTC"));
}

#[test]
fn numbers_are_those_of_the_samples() {
    let mut results = fixture::small("1", 1);
    results.samples.clear();
    for (n, seconds) in [1.0, 1.1, 0.9].into_iter().enumerate() {
        let n = n as u32;
        let one =
            |variant, percent, factor| fixture::sample("w", variant, percent, n, seconds * factor);
        results.samples.extend([
            one(Variant::Local, None, 1.0),
            one(Variant::Canvas(vec![]), Some(25), 2.0),
            one(Variant::Zram, Some(25), 6.0),
            one(Variant::Zram, Some(75), 1.5),
        ]);
    }
    let page = Page::of(&results);
    let row = page.row(&["w", "25 %", "canvas", "3"]);
    assert_eq!(
        row[..6],
        [
            "w",
            "25 %",
            "canvas",
            "3",
            "2.00 s [1.90 s – 2.10 s]",
            "2.00×"
        ]
    );
    assert!(row[6].starts_with("▲ 3.00× ["), "{}", row[6]);
    let row = page.row(&["w", "75 %", "zram", "3"]);
    assert_eq!(row[5], "1.50×");
    // 1.5 times at a quarter far, 6 times at three quarters: twice at a quarter plus a ninth of a half.
    let row = page.row(&["w", "zram", "5.0 %"]);
    assert_eq!(row[5], "30.6 %");
    let row = page.row(&["canvas", "zram", "3.00×"]);
    assert_eq!(row[3..6], ["1", "0", "0"]);
}

#[test]
fn nothing_from_results_becomes_markup() {
    let bad =
        "<script>alert(1)</script>\"'><img src=http://x.invalid/ onerror=alert(2)>\u{1b}[31m\u{0}";
    let mut results = fixture::small("1", 1);
    results.runs[0].machine.cpu = bad.into();
    results.runs[0].machine.kernel = bad.into();
    results.runs[0].argv.push(bad.into());
    results.runs[0].canvas_version = bad.into();
    results.runs[0]
        .machine
        .features
        .insert(bad.into(), bad.into());
    results.skips[0].reason = bad.into();
    results.not_yet[0].waits_for = bad.into();
    for (n, sample) in results.samples.iter_mut().enumerate() {
        if sample.workload == "xgboost" {
            sample.workload = bad.into();
        }
        sample.co_run = sample.co_run.as_ref().map(|_| bad.to_owned());
        sample.parameters.insert(bad.into(), bad.into());
        if let Variant::Canvas(flags) = &mut sample.variant {
            flags.push(bad.into());
        }
        if n == 0 {
            sample.outcome = Outcome::Failed(bad.into());
        }
    }
    let page = Page::of(&results);
    assert!(page.all("script").is_empty() && page.all("img").is_empty());
    assert!(page.has("<script>alert(1)</script>"), "as text it is there");
    stands_alone(&page);
}

/// No element or attribute loads or runs anything.
fn stands_alone(page: &Page) {
    for e in page.all("*") {
        assert!(
            ![
                "script", "iframe", "object", "embed", "link", "img", "image", "use", "base",
                "form"
            ]
            .contains(&e.name.as_str()),
            "<{}>",
            e.name
        );
        for (name, value) in &e.attributes {
            assert!(!name.starts_with("on"), "{name}");
            assert!(name != "src" && name != "style", "{name}={value}");
            assert!(name != "href" || value.starts_with('#'), "{value}");
        }
    }
    for style in page.all("style") {
        assert!(!style.text.contains("url(") && !style.text.contains("@import"));
    }
    let policies = page.all("meta");
    assert!(policies.iter().any(|m| {
        m.attribute("content")
            .is_some_and(|c| c.contains("default-src 'none'"))
    }));
}

#[test]
fn the_page_stands_alone_and_its_anchors_exist() {
    let page = Page::of(&fixture::small("1", 1));
    stands_alone(&page);
    let ids: Vec<&str> = page
        .all("*")
        .iter()
        .filter_map(|e| e.attribute("id"))
        .collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len());
    for link in page.all("a") {
        assert!(unique.contains(&link.attribute("href").unwrap()[1..]));
    }
}

#[test]
fn no_data_is_a_sentence_and_no_empty_plot() {
    let mut results = fixture::small("1", 1);
    results.samples.clear();
    let page = Page::of(&results);
    assert!(page.has("No program was run"));
    assert!(page.all("svg").is_empty() && page.all("figure").is_empty());
    // Only times of one variant.
    results.samples = (0..3)
        .map(|n| fixture::sample("w", Variant::Zram, Some(50), n, 1.0))
        .collect();
    let page = Page::of(&results);
    assert!(page.all("svg").is_empty());
    assert!(page.has("Not plotted, because nothing of it was recorded: slowdown"));
    assert!(page.has("No program was run both under canvas and under the kernel's swap"));
    // All failed.
    for sample in &mut results.samples {
        sample.outcome = Outcome::Wrong;
    }
    let page = Page::of(&results);
    assert!(page.has("Data WRONG: 3 runs"));
    assert!(page.has("quick: w at 50 %, zram gave a WRONG answer (3 runs)"));
}

#[test]
fn other_machines_and_sizes_are_kept_apart() {
    let (mut one, mut two) = (fixture::small("1", 1), fixture::small("2", 2));
    two.runs[0].scale = 0.25;
    for sample in &mut two.samples {
        sample.ops_per_s = sample.ops_per_s.map(|v| v * 1000.0);
    }
    let cells = Page::of(&one).all("figure").len();
    one.runs.extend(two.runs);
    one.samples.extend(two.samples);
    let page = Page::of(&one);
    assert!(page.has("machine, version and size no. 2"));
    assert_eq!(page.all("figure").len(), 2 * cells);
    // A repeated setting counts once.
    let mut again = fixture::small("1", 1);
    let more = fixture::small("2", 2);
    again.runs.extend(more.runs);
    again.samples.extend(more.samples);
    let page = Page::of(&again);
    assert_eq!(page.all("figure").len(), cells);
    assert!(
        page.row(&["redis-ycsb-a", "alone", "25 %", "zram"])
            .contains(&"6".to_owned())
    );
}

#[test]
fn papers_stand_beside_ours() {
    let mut results = fixture::small("1", 1);
    for sample in &mut results.samples {
        sample.experiment = "infiniswap".into();
        if sample.workload == "redis-ycsb-a" {
            sample.workload = "memcached-ycsb-a".into();
        }
    }
    let page = Page::of(&results);
    let row = page.row(&["Memcached, half of the working set local"]);
    assert!(
        row[2].contains("disk0.06") && row[2].contains("Infiniswap0.77"),
        "{}",
        row[2]
    );
    assert!(
        row[3].contains("zram") && row[3].contains("canvas"),
        "{}",
        row[3]
    );
    let row = page.row(&["VoltDB, half of the working set local"]);
    assert_eq!(row[3], "no such program here");
    // An experiment that canvas cannot run yet still shows the paper's numbers.
    let row = page.row(&["accuracy, Spark KMeans"]);
    assert!(row[2].contains("LEAP17.2 %"), "{}", row[2]);
    assert_eq!(row[3], "not measured");
}

#[test]
fn a_line_over_time_is_thinned() {
    let mut results = fixture::small("1", 1);
    for sample in &mut results.samples {
        let tick = sample.timeline[0];
        sample.timeline = (0..100_000)
            .map(|n| crate::record::Tick {
                at_s: f64::from(n) / 10.0,
                ..tick
            })
            .collect();
    }
    assert!(html(&results).len() < 1 << 20);
}

#[test]
fn targets_are_a_table_of_their_experiment() {
    let mut results = fixture::small("1", 1);
    assert!(!Page::of(&results).has("median fault at most"));
    results.samples.clear();
    for (variant, ops) in [(Variant::Canvas(vec![]), 4e5), (Variant::Zram, 1e5)] {
        let mut s = fixture::sample("random-read", variant, Some(25), 0, 1.0);
        s.experiment = "pager".into();
        s.ops_per_s = Some(ops);
        results.samples.push(s);
    }
    let page = Page::of(&results);
    let row = page.row(&["V1", "random-read at 25 %", "4.00×"]);
    assert_eq!(row[4], "met");
    let row = page.row(&["V9", "java at 25 %"]);
    assert_eq!(row[3..], ["–", "not measured"]);
}

#[test]
fn far_memory_over_donors_has_its_targets_and_figures() {
    let mut results = fixture::small("1", 1);
    assert!(!Page::of(&results).has("Far memory over donors"));
    results.samples.clear();
    for (variant, ops) in [
        (Variant::CanvasFar(FarBelow::copies("2")), 6e5),
        (Variant::Disk, 1e5),
    ] {
        let mut s = fixture::sample("redis-get95", variant.clone(), Some(50), 0, 1.0);
        s.experiment = "far".into();
        s.ops_per_s = Some(ops);
        s.far = variant.is_canvas().then_some(Far {
            failovers: Some(777),
            ..Far::default()
        });
        results.samples.push(s);
    }
    let page = Page::of(&results);
    let row = page.row(&["F1", "redis-get95 at 50 %, canvas-far[2]", "6.00×"]);
    assert_eq!(row[4], "met");
    let row = page.row(&["F2", "random-read at 50 %, canvas-far[none]"]);
    assert_eq!(row[3..], ["–", "not measured"]);
    assert!(page.has("Far memory over donors"));
    page.row(&["redis-get95", "canvas-far[2]", "777"]);
}

#[test]
fn slow_accesses_are_cut_by_one_rule_and_counted() {
    let mut results = fixture::small("1", 1);
    results.samples.clear();
    for (variant, histogram) in [
        (Variant::Local, vec![(100, 999), (900, 1)]),
        (Variant::Zram, vec![(100, 750), (800, 50), (20_000, 200)]),
        // No slow accesses, no curve.
        (Variant::Disk, vec![(100, 7)]),
    ] {
        let percent = (variant != Variant::Local).then_some(25);
        let mut s = fixture::sample("zipf", variant, percent, 0, 1.0);
        s.access_histogram = histogram;
        results.samples.push(s);
    }
    let page = Page::of(&results);
    let figures = page.all("figure");
    let figure = figures
        .iter()
        .find(|f| f.text.contains("time of a slow access"))
        .unwrap();
    let mut legend = Vec::new();
    figure.all("li", &mut legend);
    let names: Vec<&str> = legend.iter().map(|l| l.text.as_str()).collect();
    assert_eq!(names, ["local (0.1 % of all)", "zram (20.0 % of all)"]);
}

#[test]
fn threads_are_an_axis_with_the_papers_numbers() {
    let mut results = fixture::small("1", 1);
    results.samples.clear();
    for (threads, locked) in [(1u32, 500), (4, 1000), (16, 4000)] {
        for variant in [Variant::Canvas(vec![]), Variant::Zram] {
            for repeat in 0..3 {
                let mut s = fixture::sample("random-write", variant.clone(), Some(25), repeat, 2.0);
                s.experiment = "canvas-fig4".into();
                s.parameters.insert("threads".into(), threads.to_string());
                s.swap_out_pages = Some(u64::from(threads) * 1000);
                s.entries = (variant != Variant::Zram).then_some(crate::record::Entries {
                    locked,
                    stocked: 0,
                    reserved: 1000,
                    dropped: 0,
                });
                results.samples.push(s);
            }
        }
    }
    let page = Page::of(&results);
    let figure = |part: &str| {
        let all = page.all("figure");
        let found = all
            .into_iter()
            .find(|f| f.inside[0].text.contains(part))
            .unwrap_or_else(|| panic!("no plot of {part}"));
        let mut legend = Vec::new();
        found.all("li", &mut legend);
        let names: Vec<String> = legend.iter().map(|l| l.text.clone()).collect();
        (names, found.text.clone())
    };
    let (names, text) = figure("swap entries allocated under the lock");
    assert_eq!(names, ["canvas"], "zram has no entries that are counted");
    assert!(text.contains("Linux 5.5 about 450 k /s"), "{text}");
    let (names, text) = figure("random-write, 25 % local: pages put out a second");
    assert_eq!(names, ["canvas", "zram"]);
    assert!(text.contains("table 4"), "{text}");
    figure("share of allocations that took the lock");
    // A single number of threads gives no line.
    results.samples.retain(|s| s.parameters["threads"] == "4");
    let page = Page::of(&results);
    assert!(
        !page
            .all("h3")
            .iter()
            .any(|h| h.text == "By number of threads")
    );
}

fn odd() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(-1.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(1e-320),
        Just(f64::MAX),
        any::<f64>(),
        0.1f64..10.0
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Whatever numbers a file has, the page is complete.
    #[test]
    fn odd_numbers_do_no_harm(numbers in proptest::collection::vec(odd(), 64), counts in proptest::collection::vec(any::<u64>(), 16)) {
        let mut results = fixture::small("1", 1);
        let mut number = numbers.iter().copied().cycle();
        let mut count = counts.iter().copied().cycle();
        let mut spoil = |s: &mut Sample| {
            s.seconds = number.next();
            s.ops_per_s = number.next();
            s.at_s = number.next().unwrap_or(0.0);
            s.swap_in_pages = count.next();
            s.far_peak_bytes = count.next();
            if let Some(q) = &mut s.fault_ns {
                q.p50 = number.next().unwrap_or(0.0);
                q.p99 = number.next().unwrap_or(0.0);
            }
            for bucket in s.latency_histogram.iter_mut().chain(&mut s.access_histogram) {
                *bucket = (count.next().unwrap_or(0), count.next().unwrap_or(0));
            }
            for tick in &mut s.timeline {
                tick.at_s = number.next().unwrap_or(0.0);
                tick.in_pages_per_s = number.next().unwrap_or(0.0);
                tick.ops_per_s = number.next();
            }
        };
        for sample in results.samples.iter_mut().step_by(3) {
            spoil(sample);
        }
        stands_alone(&Page::of(&results));
    }
}
