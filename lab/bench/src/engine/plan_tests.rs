use super::*;
use crate::engine::tests::{request, workloads};
use crate::link::Delay;
use crate::rate::Rate;
use proptest::prelude::*;

fn made(
    names: &[&str],
    change: impl FnOnce(&mut Request),
    missing: fn(&Variant) -> Option<String>,
) -> Result<Plan, PlanError> {
    let mut r = request(names);
    r.variants = None;
    change(&mut r);
    make(&r, &workloads(), missing)
}

fn nothing(_: &Variant) -> Option<String> {
    None
}

fn no_root(v: &Variant) -> Option<String> {
    v.is_kernel().then(|| format!("{v} needs root"))
}

#[test]
fn a_workload_alone_is_a_sweep() {
    let plan = made(&["touch"], |r| r.percents = None, nothing).unwrap();
    assert_eq!(plan.sets.len(), 1);
    let set = &plan.sets[0];
    assert_eq!(
        (set.experiment.as_str(), set.percents.as_slice()),
        ("sweep", &[100, 75, 50, 25][..])
    );
    assert_eq!(set.variants.len(), 6);
    assert_eq!(set.cells(0).len(), 1 + 4 * 5);
}

#[test]
fn flags_of_canvas_are_swept() {
    let flags = |f: &str| vec![f.to_owned()];
    let plan = made(
        &["touch"],
        |r| {
            r.variants = Some(vec![Variant::Local, Variant::Canvas(vec![])]);
            r.canvas_flags = vec![vec![], flags("-o prefetch=none")];
        },
        nothing,
    )
    .unwrap();
    assert_eq!(
        plan.sets[0].variants,
        [
            Variant::Local,
            Variant::Canvas(vec![]),
            Variant::Canvas(flags("-o prefetch=none"))
        ]
    );
}

fn far(copies: &str, flags: &[&str]) -> Variant {
    Variant::CanvasFar(FarBelow {
        flags: flags.iter().map(|f| (*f).to_owned()).collect(),
        ..FarBelow::copies(copies)
    })
}

fn behind(copies: &str, mbit: u32) -> Variant {
    Variant::CanvasFar(FarBelow {
        link: Some(Rate::mbit(mbit)),
        ..FarBelow::copies(copies)
    })
}

#[test]
fn links_are_swept_where_the_experiment_has_none() {
    let asked = |r: &mut Request| {
        r.variants = Some(vec![Variant::Local, far("2", &[])]);
        r.far_links = ["200mbit", "1gbit+25us"].map(|l| l.parse().unwrap()).into();
    };
    let plan = made(&["touch"], asked, nothing).unwrap();
    let long = Variant::CanvasFar(FarBelow {
        link: Some(Rate::mbit(1000)),
        delay: Some(Delay::ns(25_000)),
        ..FarBelow::copies("2")
    });
    let both = [Variant::Local, behind("2", 200), long];
    assert_eq!(plan.sets[0].variants, both);
    assert_eq!(both[1].to_string(), "canvas-far[2, link 200mbit]");
    let mut r = request(&["far"]);
    r.variants = Some(vec![far("2", &[])]);
    r.far_links = vec!["200mbit".parse().unwrap()];
    r.percents = None;
    let plan = make(&r, &crate::registry::workloads(), nothing).unwrap();
    let set = plan.sets.iter().find(|s| s.percents == [10]).unwrap();
    let own = [
        behind("none", 200),
        behind("none", 1000),
        behind("none", 2500),
    ];
    assert_eq!(set.variants, own);
}

#[test]
fn far_memory_is_of_the_experiments_kinds_unless_it_has_none() {
    let asked = |r: &mut Request| r.variants = Some(vec![far("2", &[]), Variant::Disk]);
    let all = crate::registry::workloads();
    let mut r = request(&["far"]);
    r.percents = None;
    asked(&mut r);
    // All variants, without those of programs that this host lacks.
    let plan = make(&r, &all, nothing).unwrap();
    let set = |workload: &str, percent: u32| {
        let found = plan
            .sets
            .iter()
            .find(|s| s.members[0].workload == workload && s.percents == [percent]);
        found.map(|s| s.variants.as_slice())
    };
    let dies = Variant::CanvasFar(FarBelow {
        donor_dies: true,
        ..FarBelow::copies("2")
    });
    let kinds = [far("2", &[]), far("1+disk", &[]), far("none", &[])];
    let links = [behind("none", 1000), behind("none", 2500)];
    let long = [12_500, 25_000].map(|ns| {
        Variant::CanvasFar(FarBelow {
            delay: Some(Delay::ns(ns)),
            ..FarBelow::copies("none")
        })
    });
    assert_eq!(
        set("random-read", 50).unwrap(),
        [&kinds[..], &[Variant::Disk], &links, &long, &[dies]].concat()
    );
    assert_eq!(
        set("sequential", 10).unwrap(),
        [&[far("none", &[])], &links[..], &[Variant::Disk]].concat()
    );
    // Elsewhere the request decides.
    let plan = made(&["touch"], asked, nothing).unwrap();
    assert_eq!(plan.sets[0].variants, [far("2", &[]), Variant::Disk]);
}

#[test]
fn far_memory_takes_flags_and_needs_a_limit() {
    let plan = made(
        &["touch"],
        |r| {
            r.variants = Some(vec![Variant::Local, far("2", &[])]);
            r.canvas_flags = vec![vec![], vec!["-o".into(), "links=1".into()]];
        },
        nothing,
    )
    .unwrap();
    let set = &plan.sets[0];
    let with = far("2", &["-o", "links=1"]);
    assert_eq!(set.variants, [Variant::Local, far("2", &[]), with.clone()]);
    assert_eq!(with.to_string(), "canvas-far[2 -o links=1]");
    let free = Set {
        beside: None,
        percents: vec![],
        ..set.clone()
    };
    let below: Vec<&Variant> = free.cells(0).iter().map(|c| c.variant).collect();
    assert_eq!(below, [&Variant::Local]);
}

#[test]
fn what_cannot_be_had_is_skipped_unless_it_is_all_that_was_asked_for() {
    let plan = made(&["touch"], |_| (), no_root).unwrap();
    assert_eq!(
        plan.sets[0].variants,
        [Variant::Local, Variant::Canvas(vec![])]
    );
    assert_eq!(plan.skips.len(), 4);
    assert_eq!(plan.skips[0].reason, "zram needs root");
    let only_kernel = |r: &mut Request| r.variants = Some(vec![Variant::Local, Variant::Zram]);
    assert_eq!(
        made(&["touch"], only_kernel, no_root)
            .unwrap_err()
            .to_string(),
        "zram needs root"
    );
}

#[test]
fn a_co_run_has_its_programs_alone_too() {
    let plan = made(&["touch", "twin"], |r| r.co_run = true, nothing).unwrap();
    let sizes: Vec<usize> = plan.sets.iter().map(|s| s.members.len()).collect();
    assert_eq!(sizes, [1, 1, 2]);
    let alone = made(&["touch"], |r| r.co_run = true, nothing);
    assert!(alone.unwrap_err().to_string().contains("two or more"));
}

#[test]
fn parts_of_an_experiment_are_chosen_by_what_runs_in_them() {
    let with = |names: &[&str], with: &[&str]| {
        let mut r = request(names);
        (r.variants, r.percents) = (None, None);
        r.with = with.iter().map(|w| (*w).to_owned()).collect();
        make(&r, &crate::registry::workloads(), nothing)
    };
    let planned = |workloads: &[&str]| with(&["isolation"], workloads);
    let plan = planned(&["sequential-write", "random-read"]).unwrap();
    let runs = |plan: &Plan, workload: &str| {
        plan.sets
            .iter()
            .filter(|s| s.members.iter().any(|m| m.workload == workload))
            .count()
    };
    assert!(runs(&plan, "random-read") > 0);
    // The company of the named program runs too.
    assert!(runs(&plan, "sequential") > 0);
    assert_eq!(runs(&plan, "snappy"), 0);
    // A part comes with its baselines, and with nothing else.
    let plan = planned(&["sequential-write"]).unwrap();
    let at_a_share = |plan: &Plan| {
        let cells = |s: &&Set| s.variants.iter().any(|v| v.to_string().contains("100mbit"));
        plan.sets.iter().filter(cells).count()
    };
    assert_eq!((runs(&plan, "memcached-get95"), at_a_share(&plan)), (2, 1));
    assert_eq!(at_a_share(&planned(&["snappy"]).unwrap()), 0);
    // The company names one part alone.
    let plan = planned(&["sequential+sequential+sequential+sequential"]).unwrap();
    assert_eq!(plan.sets.len(), 2, "with one that cheats and without");
    assert!(planned(&["sequential+zipf"]).is_err());
    let why = planned(&["random-read", "touch"]).unwrap_err().to_string();
    assert!(why.contains("--with touch"), "{why}");
    // A workload named by itself belongs to no part, and runs nevertheless.
    let plan = with(&["isolation", "snappy"], &["random-read"]).unwrap();
    assert!(runs(&plan, "snappy") > 0 && runs(&plan, "random-read") > 0);
    assert_eq!(runs(&plan, "xgboost"), 0);
}

/// Plan of the experiment `isolation`, as if this host had all of its programs.
fn isolation(canvas_knows_weights: bool) -> Plan {
    let mut r = request(&["isolation"]);
    (r.variants, r.percents) = (None, None);
    let mut plan = Plan::default();
    for part in experiments::find("isolation").unwrap().parts {
        let e = experiments::find("isolation").unwrap();
        let all = crate::registry::workloads();
        plan.sets.extend(sets_of(e, part, &[], &all, &r));
    }
    leave_out_tenants(&mut plan, |flags| {
        assert!(flags[1].starts_with("weight="));
        (!canvas_knows_weights).then(|| "no weights".to_owned())
    });
    plan
}

#[test]
fn company_does_not_run_alone_nor_do_equals() {
    let plan = isolation(true);
    assert_eq!(plan.skips, []);
    let members = |names: &[&str]| {
        let ours = |s: &&Set| {
            s.members
                .iter()
                .map(|m| m.workload.as_str())
                .eq(names.iter().copied())
        };
        plan.sets.iter().filter(ours).count()
    };
    // On all processors, on its share of them, and with agent and donors on processors of their own.
    assert_eq!(members(&["random-read"]), 3);
    assert_eq!(members(&["random-read", "sequential"]), 2);
    assert_eq!(members(&["sequential"]) + members(&["sequential-write"]), 0);
    assert_eq!(members(&["sequential", "random-read"]), 1, "figure 13");
    let four = plan.sets.iter().find(|s| s.members.len() == 4).unwrap();
    let weights = four.members.iter().map(|m| m.tenant_flags.join(" "));
    assert!(weights.eq(["1", "2", "4", "8"].map(|w| format!("-o weight={w}"))));
}

#[test]
fn cells_wait_for_the_flags_that_they_need() {
    let plan = isolation(false);
    let below = |v: &Variant| v.tenancy() == crate::variant::Tenancy::One;
    assert!(
        plan.sets
            .iter()
            .flat_map(|s| &s.variants)
            .all(|v| !below(v))
    );
    let weighted = |s: &Set| s.members.iter().any(|m| !m.tenant_flags.is_empty());
    assert!(!plan.sets.iter().any(weighted), "no variant of it is left");
    let sequentials = "sequential+sequential+sequential+sequential";
    let named = |s: &&Skip| s.workload.as_ref().is_some_and(|w| w.contains(sequentials));
    assert_eq!(
        plan.skips.iter().filter(named).count(),
        2,
        "isolated, and one tenant"
    );
    let one = plan
        .skips
        .iter()
        .filter(|s| s.variant.as_ref().is_some_and(below));
    assert_eq!(one.count(), 2, "a line for each link");
    assert!(plan.skips.iter().all(|s| s.reason == "no weights"));
    let beside = plan.sets.iter().find(|s| s.members.len() == 2).unwrap();
    assert_eq!(beside.variants.len(), 1, "isolated needs none");
}

#[test]
fn flags_that_canvas_does_not_know_are_missing() {
    let flags = ["-o".to_owned(), "weight=1".to_owned()];
    assert_eq!(flags_missing(Path::new("/bin/true"), &flags), None);
    let why = flags_missing(Path::new("/bin/false"), &flags).unwrap();
    assert!(why.contains("does not accept -o weight=1"), "{why}");
    assert!(
        flags_missing(Path::new("/nonexistent"), &flags)
            .unwrap()
            .contains("cannot be run")
    );
}

#[test]
fn an_experiment_without_its_workloads_is_an_error_and_not_yet_is_told() {
    // The test's workloads are not part of any experiment.
    assert!(
        made(&["canvas-fig2"], |_| (), nothing)
            .unwrap_err()
            .to_string()
            .contains("this build does not have it")
    );
    let plan = made(&["canvas-fig10"], |_| (), nothing).unwrap();
    assert!(plan.sets.is_empty() && plan.not_yet.len() == 1);
}

proptest! {
    /// Each repeat has each cell once; the rotation has each variant first in turn.
    #[test]
    fn repeats_differ_only_in_order(percents in prop::collection::vec(1u32..=100, 1..5), repeat in 0u32..20) {
        let mut percents = percents;
        percents.sort_unstable();
        percents.dedup();
        let plan = made(&["touch"], |r| r.percents = Some(percents.clone()), nothing).unwrap();
        let set = &plan.sets[0];
        let key = |c: &Cell| (c.variant.clone(), c.percent);
        let sorted = |r| {
            let mut v: Vec<_> = set.cells(r).iter().map(key).collect();
            v.sort();
            v
        };
        prop_assert_eq!(sorted(repeat), sorted(0));
        prop_assert_eq!(sorted(0).len(), 1 + 5 * percents.len());
        let first = set.cells(repeat)[0].variant.clone();
        let turn = &set.variants[repeat as usize % set.variants.len()];
        prop_assert!(first == *turn || *turn == Variant::Local);
    }
}

#[test]
fn quick_has_three_minutes_unless_told_otherwise() {
    let all = crate::registry::workloads();
    let of = |names: &[&str], given| {
        let mut r = request(names);
        r.time_max = given;
        make(&r, &all, |_| None).unwrap().time_max
    };
    let minutes = |n: u64| Some(std::time::Duration::from_secs(60 * n));
    assert_eq!(of(&["quick"], None), minutes(3));
    assert_eq!(of(&["quick"], minutes(10)), minutes(10));
    assert_eq!(of(&["zipf"], None), None);
    assert_eq!(of(&["quick", "zipf"], None), None);
}

#[test]
fn a_part_without_limits_runs_canvas_without_one_and_no_kernel_swap() {
    let mut r = request(&["pager"]);
    r.variants = None;
    // The request changes limits; this part has none.
    r.percents = Some(vec![40]);
    let all = crate::registry::workloads();
    let plan = make(&r, &all, nothing).unwrap();
    let of = |workload: &str, limited: bool| {
        let found = plan
            .sets
            .iter()
            .find(|s| s.members[0].workload == workload && s.percents.is_empty() != limited);
        found
            .unwrap_or_else(|| panic!("{workload} is not run"))
            .clone()
    };
    let shown = |set: &Set| {
        let cells = set.cells(0);
        let one = |c: &Cell| format!("{} {:?}", c.variant, c.percent);
        cells.iter().map(one).collect::<Vec<_>>()
    };
    assert_eq!(
        shown(&of("start-up", false)),
        ["local None", "canvas None", "canvas[--local 16G] None"]
    );
    assert_eq!(
        shown(&of("fill", true)),
        ["local None", "canvas Some(40)", "zram Some(40)"]
    );
    let mut set = of("start-up", false);
    set.variants.push(Variant::Zram);
    assert_eq!(set.cells(1).len(), 3, "zram is nothing without a limit");
}

#[test]
fn programs_side_by_side_have_the_first_variant_beside_each_of_the_others() {
    let mut r = request(&["slo"]);
    (r.variants, r.percents, r.with) = (None, None, vec!["tables".to_owned()]);
    let plan = make(&r, &registry::workloads(), nothing).unwrap();
    let [set] = &plan.sets[..] else {
        panic!("{:?}", plan.sets);
    };
    assert_eq!(set.beside, Some(Variant::Local));
    let cells = set.cells(0);
    assert_eq!((cells.len(), set.members.len()), (8, 1));
    assert!(
        cells
            .iter()
            .all(|c| !c.variant.is_local() && c.percent.is_none())
    );
    r.variants = Some(vec![Variant::Tmo(5)]);
    let plan = make(&r, &registry::workloads(), nothing).unwrap();
    let own = [2, 5, 10, 20].map(Variant::Tmo);
    assert_eq!(
        plan.sets[0].variants, own,
        "the experiment's own of the kind"
    );
}
