//! Tenants that run at the same time: what one takes from the others.

use super::{Below, Experiment, FAR, FarParts, How, NO_PROGRAM, Part, Program, REPEATS, program};
use crate::rate::Rate;
use crate::targets;
use crate::variant::Tenancy;

/// One copy over donors behind a link of `mbit` Mbit/s, and one agent with a tenant per program.
const fn isolated(mbit: u32) -> FarParts {
    FarParts {
        link: Some(Rate::mbit(mbit)),
        tenancy: Tenancy::Each,
        ..FAR
    }
}

/// As [`isolated`], but all programs are one tenant.
const fn one_tenant(mbit: u32) -> Below {
    Below::CanvasFar(FarParts {
        tenancy: Tenancy::One,
        ..isolated(mbit)
    })
}

const ISOLATED: Below = Below::CanvasFar(isolated(targets::isolation::LINK_MBIT));
/// Reads ahead are never dropped.
const NOTHING_DROPPED: Below = Below::CanvasFar(FarParts {
    agent_flags: targets::isolation::NOTHING_DROPPED,
    ..isolated(targets::isolation::LINK_MBIT)
});
const ONE_TENANT: Below = one_tenant(targets::isolation::LINK_MBIT);
/// Half of the link: the fair share of each of two tenants.
const AT_ITS_SHARE: FarParts = isolated(targets::isolation::LINK_MBIT / 2);
const ISOLATED_AT_ITS_SHARE: Below = Below::CanvasFar(AT_ITS_SHARE);
/// Half of the link and half of the processors.
const AT_ITS_SHARE_OF_BOTH: Below = Below::CanvasFar(FarParts {
    cpu_percent: Some(50),
    ..AT_ITS_SHARE
});
const AT_ITS_SHARE_OF_PROCESSORS: Below = Below::CanvasFar(FarParts {
    cpu_percent: Some(50),
    ..isolated(targets::isolation::LINK_MBIT)
});

/// As [`isolated`], with agent and donors on processors of their own.
const fn apart(mbit: u32) -> Below {
    Below::CanvasFar(FarParts {
        apart: true,
        ..isolated(mbit)
    })
}

/// Two contended links, and one that is not: losses there are due to the processors.
const APART: &[Below] = &[
    apart(targets::isolation::LINK_MBIT),
    apart(targets::isolation::GIGABIT_MBIT),
    apart(targets::isolation::FAST_LINK_MBIT),
];
const APART_AT_ITS_SHARE: Below = apart(targets::isolation::LINK_MBIT / 2);

/// For Canvas's table 3; the programs do not contend for the link.
const TABLE_3: &[Below] = &[
    Below::Local,
    Below::LocalOnHalf,
    Below::Zram,
    one_tenant(targets::isolation::FAST_LINK_MBIT),
    // Canvas's isolation without the parts that adapt to each tenant (its 5.1 to 5.3).
    Below::CanvasFar(FarParts {
        flags: targets::isolation::NOT_ADAPTIVE,
        agent_flags: targets::isolation::NOTHING_DROPPED,
        ..isolated(targets::isolation::FAST_LINK_MBIT)
    }),
    Below::CanvasFar(isolated(targets::isolation::FAST_LINK_MBIT)),
    apart(targets::isolation::FAST_LINK_MBIT),
];

const WEIGHTED_ARGS: &[&str] = &["--mib", "128", "--seconds", "30"];

/// A reader in address order, with a weight.
const fn weighted(
    parameters: &'static [(&'static str, &'static str)],
    tenant_flags: &'static [&'static str],
) -> Program {
    Program {
        workload: "sequential",
        args: WEIGHTED_ARGS,
        parameters,
        tenant_flags,
        ..NO_PROGRAM
    }
}

const WEIGHTED: &[Program] = &[
    weighted(&[("weight", "1")], &["-o", "weight=1"]),
    weighted(&[("weight", "2")], &["-o", "weight=2"]),
    weighted(&[("weight", "4")], &["-o", "weight=4"]),
    weighted(&[("weight", "8")], &["-o", "weight=8"]),
];

/// Weighted readers, of which the one with the least weight cheats.
const WEIGHTED_WITH_CHEAT: &[Program] = &[
    Program {
        args: &["--mib", "128", "--seconds", "30", "--cheat"],
        ..weighted(
            &[
                ("weight", "1"),
                (targets::isolation::CHEAT, targets::isolation::CHEATS),
            ],
            &["-o", "weight=1"],
        )
    },
    weighted(
        &[("weight", "2"), (targets::isolation::CHEAT, "beside")],
        &["-o", "weight=2"],
    ),
    weighted(
        &[("weight", "4"), (targets::isolation::CHEAT, "beside")],
        &["-o", "weight=4"],
    ),
    weighted(
        &[("weight", "8"), (targets::isolation::CHEAT, "beside")],
        &["-o", "weight=8"],
    ),
];

const VICTIM: Program = Program {
    workload: "random-read",
    args: &["--mib", "128", "--seconds", "20"],
    ..NO_PROGRAM
};

/// For Canvas's figure 13: four threads read in address order, so that many reads ahead are queued; another
/// program's demand reads compete with them.
const AHEAD: &[Program] = &[
    Program {
        workload: "sequential",
        args: &["--mib", "128", "--seconds", "30", "--threads", "4"],
        parameters: &[("threads", "4")],
        ..NO_PROGRAM
    },
    Program {
        workload: "random-read",
        args: &["--mib", "128", "--seconds", "30"],
        ..NO_PROGRAM
    },
];

/// Company that runs as long as the others, a day at most.
const fn neighbour(workload: &'static str) -> Program {
    Program {
        workload,
        args: &["--mib", "256"],
        company: Some(&["--seconds", "86400"]),
        ..NO_PROGRAM
    }
}

const fn with_spark(spark: &'static str) -> [Program; 4] {
    [
        program("snappy"),
        program("memcached-get95"),
        program("xgboost"),
        program(spark),
    ]
}

const fn table_3(programs: &'static [Program]) -> Part {
    Part {
        programs,
        variants: TABLE_3,
        percents: &[50, 25],
        how: How::Together,
    }
}

/// Definition of the experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: targets::isolation::EXPERIMENT,
    about: "tenants of one agent over donors behind a link: fair shares, latency next to a prefetcher and a writer, prefetching with and without the timeliness rule, co-runs with Spark",
    paper: Some("Canvas (NSDI '23), table 3, figure 13 and sections 5.3, 6.2 and 6.3"),
    parts: &[
        Part {
            programs: &[VICTIM, neighbour("sequential")],
            variants: &[ISOLATED, ONE_TENANT],
            percents: &[25],
            how: How::Together,
        },
        Part {
            programs: WEIGHTED,
            variants: &[ISOLATED, ONE_TENANT],
            percents: &[10],
            how: How::OnlyTogether,
        },
        Part {
            programs: WEIGHTED_WITH_CHEAT,
            variants: &[ISOLATED],
            percents: &[10],
            how: How::OnlyTogether,
        },
        Part {
            programs: &[program("memcached-get95"), neighbour("sequential-write")],
            variants: &[ISOLATED, ONE_TENANT],
            percents: &[50],
            how: How::Together,
        },
        // Alone on its fair share of a link for two.
        Part {
            programs: &[program("memcached-get95")],
            variants: &[ISOLATED_AT_ITS_SHARE, AT_ITS_SHARE_OF_BOTH],
            percents: &[50],
            how: How::Alone,
        },
        Part {
            programs: &[VICTIM],
            variants: &[AT_ITS_SHARE_OF_PROCESSORS],
            percents: &[25],
            how: How::Alone,
        },
        Part {
            programs: &[VICTIM, neighbour("sequential")],
            variants: APART,
            percents: &[25],
            how: How::Together,
        },
        Part {
            programs: &[program("memcached-get95"), neighbour("sequential-write")],
            variants: APART,
            percents: &[50],
            how: How::Together,
        },
        Part {
            programs: &[program("memcached-get95")],
            variants: &[APART_AT_ITS_SHARE],
            percents: &[50],
            how: How::Alone,
        },
        Part {
            programs: AHEAD,
            variants: &[ISOLATED, NOTHING_DROPPED],
            percents: &[25],
            how: How::OnlyTogether,
        },
        table_3(&with_spark("spark-lr")),
        table_3(&with_spark("spark-kmeans")),
        table_3(&with_spark("spark-bayes")),
        table_3(&with_spark("spark-skewed-groupby")),
        table_3(&with_spark("spark-pagerank")),
        table_3(&with_spark("spark-cc")),
        table_3(&with_spark("spark-sssp")),
        table_3(&with_spark("spark-triangles")),
    ],
    not_yet: &[],
    repeats: REPEATS,
    scale: 1.0,
    time_max: None,
};
