//! redis and memcached under YCSB.
//!
//! Maven Central has YCSB's core but not its bindings for the two servers, which the stores in `java/`
//! replace. They also make and check the values (`Values.java`): YCSB's `dataintegrity` writes the same bytes
//! with each update, which would neither reveal a lost update nor make a page dirty. YCSB's request
//! generators cannot be seeded; keys and values follow from the seed.

use nix::unistd::geteuid;

use super::error::WorkloadError;
use super::files;
use super::jars;
use super::python;
use super::tools;
use super::{patience_s, scaled};
use crate::workload::{Argv, Place, Plan, Workload};

/// Number of client threads, which divides the number of operations.
const THREADS: u64 = 8;

/// The server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Redis,
    Memcached,
}

/// One of YCSB's mixes of requests; proportions sum to 1.
struct Mix {
    /// Suffix of the workload's name.
    name: &'static str,
    about: &'static str,
    read: f64,
    update: f64,
    insert: f64,
    scan: f64,
    read_modify_write: f64,
    /// Choice of records: "zipfian" or "latest".
    distribution: &'static str,
    /// Number of requests at scale 1.
    operations_at_one: u64,
    /// Whether records have one small value of skewed size, instead of ten fields of 100 bytes.
    plain: bool,
}

const NONE: Mix = Mix {
    name: "",
    about: "",
    read: 0.0,
    update: 0.0,
    insert: 0.0,
    scan: 0.0,
    read_modify_write: 0.0,
    distribution: "zipfian",
    operations_at_one: 300_000,
    plain: false,
};

const MIXES: [Mix; 7] = [
    Mix {
        name: "ycsb-a",
        about: "YCSB A: half reads, half updates, zipf",
        read: 0.5,
        update: 0.5,
        ..NONE
    },
    Mix {
        name: "ycsb-b",
        about: "YCSB B: 95 % reads, 5 % updates, zipf",
        read: 0.95,
        update: 0.05,
        ..NONE
    },
    Mix {
        name: "ycsb-c",
        about: "YCSB C: reads only, zipf",
        read: 1.0,
        ..NONE
    },
    Mix {
        name: "ycsb-d",
        about: "YCSB D: 95 % reads of the latest records, 5 % inserts",
        read: 0.95,
        insert: 0.05,
        distribution: "latest",
        ..NONE
    },
    Mix {
        name: "ycsb-e",
        about: "YCSB E: 95 % scans of up to 100 records, 5 % inserts, zipf",
        scan: 0.95,
        insert: 0.05,
        operations_at_one: 15_000,
        ..NONE
    },
    Mix {
        name: "ycsb-f",
        about: "YCSB F: half reads, half reads with a write of what was read, zipf",
        read: 0.5,
        read_modify_write: 0.5,
        operations_at_one: 200_000,
        ..NONE
    },
    Mix {
        name: "get95",
        about: "95 % GET, 5 % SET, zipf, sizes of values as in Facebook's ETC pool",
        read: 0.95,
        update: 0.05,
        plain: true,
        ..NONE
    },
];

/// One mix on one server.
struct Ycsb {
    store: Store,
    mix: &'static Mix,
    name: String,
    about: String,
}

/// All mixes on both servers; memcached has no scans, so only redis runs E.
pub fn all() -> Vec<Box<dyn Workload>> {
    let mut all: Vec<Box<dyn Workload>> = Vec::new();
    for (store, word) in [(Store::Redis, "redis"), (Store::Memcached, "memcached")] {
        for mix in &MIXES {
            if store == Store::Memcached && mix.scan > 0.0 {
                continue;
            }
            let mut about = format!("{word}, {}", mix.about);
            if store == Store::Memcached && !mix.plain {
                about.push_str(" (memcached has no scans, so there is no E)");
            }
            all.push(Box::new(Ycsb {
                store,
                mix,
                name: format!("{word}-{}", mix.name),
                about,
            }));
        }
    }
    all
}

impl Ycsb {
    /// Number of records: a record needs about 1.9 KiB in redis and 1.2 KiB in memcached; a plain one a third
    /// of a KiB on average, plus the server's overhead.
    fn records(&self, place: &Place) -> u64 {
        let at_one = match (self.mix.plain, self.store) {
            (true, _) => 900_000,
            (false, Store::Redis) => 200_000,
            (false, Store::Memcached) => 320_000,
        };
        scaled(place, at_one, 1_000)
    }

    fn operations(&self, place: &Place) -> u64 {
        scaled(place, self.mix.operations_at_one, 800).next_multiple_of(THREADS)
    }

    fn properties(&self, place: &Place, port: u16) -> Vec<(&'static str, String)> {
        let mix = self.mix;
        let (fields, length) = if mix.plain { (1, 300) } else { (10, 100) };
        vec![
            ("workload", "site.ycsb.workloads.CoreWorkload".into()),
            ("recordcount", self.records(place).to_string()),
            ("operationcount", self.operations(place).to_string()),
            ("fieldcount", fields.to_string()),
            ("fieldlength", length.to_string()),
            ("readproportion", mix.read.to_string()),
            ("updateproportion", mix.update.to_string()),
            ("insertproportion", mix.insert.to_string()),
            ("scanproportion", mix.scan.to_string()),
            (
                "readmodifywriteproportion",
                mix.read_modify_write.to_string(),
            ),
            ("requestdistribution", mix.distribution.into()),
            ("maxscanlength", "100".into()),
            // memcached can replace only whole items.
            (
                "writeallfields",
                (self.store == Store::Memcached).to_string(),
            ),
            ("status.interval", "1".into()),
            ("hdrhistogram.fileoutput", "true".into()),
            ("canvas.port", port.to_string()),
            ("canvas.seed", (place.seed >> 1).to_string()),
            ("canvas.plain", mix.plain.to_string()),
            ("canvas.skewedsizes", mix.plain.to_string()),
        ]
    }

    /// Command line of YCSB's loading (`load`) or of its measured part (`requests`).
    fn client(&self, place: &Place, port: u16, phase: &str) -> Result<Argv, WorkloadError> {
        let (mode, store) = (
            if phase == "load" { "-load" } else { "-t" },
            match self.store {
                Store::Redis => "canvasbench.RedisRecords",
                Store::Memcached => "canvasbench.MemcachedRecords",
            },
        );
        let python = tools::need("python3", "python3")?;
        let mut argv = vec![
            python::text(&python),
            python::text(&python::script(place, "ycsb.py")),
            "run".into(),
            phase.into(),
            self.records(place).to_string(),
            self.operations(place).to_string(),
            python::text(&place.scratch),
            "--".into(),
            python::text(&jars::java_program()?),
            "-XX:-UsePerfData".into(),
            format!("-Xmx{}m", 256 + scaled(place, 512, 0)),
            "-cp".into(),
            jars::class_path(place),
            "site.ycsb.Client".into(),
            mode.into(),
            "-s".into(),
            "-threads".into(),
            THREADS.to_string(),
            "-db".into(),
            store.into(),
        ];
        for (name, value) in self.properties(place, port) {
            argv.extend(["-p".into(), format!("{name}={value}")]);
        }
        Ok(Argv {
            argv,
            env: vec![("PYTHONDONTWRITEBYTECODE".into(), "1".into())],
        })
    }

    fn server(&self, place: &Place, port: u16) -> Result<Argv, WorkloadError> {
        match self.store {
            Store::Redis => redis_server(place, port),
            Store::Memcached => self.memcached(place, port),
        }
    }

    fn memcached(&self, place: &Place, port: u16) -> Result<Argv, WorkloadError> {
        let (name, package) = self.program();
        let mut argv = vec![python::text(&tools::need(name, package)?)];
        if geteuid().is_root() {
            // memcached refuses to run as root.
            argv.extend(["-u".into(), "nobody".into()]);
        }
        let port = port.to_string();
        // Room for all records, with those inserted; -M gives an error instead of evicting records when it is
        // full.
        let mib = (64 + self.records(place) / 256).to_string();
        let rest = [
            "-l",
            "127.0.0.1",
            "-p",
            &port,
            "-U",
            "0",
            "-t",
            "4",
            "-M",
            "-m",
            &mib,
        ];
        argv.extend(rest.map(String::from));
        Ok(Argv { argv, env: vec![] })
    }

    /// The server's program and its Debian package.
    fn program(&self) -> (&'static str, &'static str) {
        match self.store {
            Store::Redis => ("redis-server", "redis-server"),
            Store::Memcached => ("memcached", "memcached"),
        }
    }
}

/// A redis that keeps all data in memory; any files are in the scratch directory.
pub fn redis_server(place: &Place, port: u16) -> Result<Argv, WorkloadError> {
    let server = python::text(&tools::need("redis-server", "redis-server")?);
    let port = port.to_string();
    let scratch = python::text(&place.scratch);
    let argv = [
        &server,
        "--bind",
        "127.0.0.1",
        "--port",
        &port,
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--dir",
        &scratch,
    ];
    Ok(Argv {
        argv: argv.map(String::from).into(),
        env: vec![],
    })
}

impl Workload for Ycsb {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    fn missing(&self, place: &Place) -> Option<WorkloadError> {
        let (name, package) = self.program();
        tools::missing(name, package)
            .or_else(|| tools::missing("python3", "python3"))
            .or_else(|| jars::missing(place))
    }

    fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        let _lock = files::lock(&place.cache)?;
        python::prepare_scripts(place)?;
        jars::prepare(place)
    }

    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, WorkloadError> {
        files::make_dir(&place.scratch)?;
        let port = tools::free_port()?;
        Ok(Plan::Server {
            server: self.server(place, port)?,
            socket: format!("127.0.0.1:{port}"),
            clients: vec![
                self.client(place, port, "load")?,
                self.client(place, port, "requests")?,
            ],
        })
    }

    fn timeout_s(&self, place: &Place) -> u64 {
        patience_s(place)
    }
}
