//! Servers and a program that run for a time, not for an amount of work: side-by-side comparisons use their
//! rates.

use super::error::WorkloadError;
use super::files;
use super::python::{self, text};
use super::tools;
use super::{patience_s, scaled};
use crate::workload::{Argv, Place, Plan, Workload};

/// Seconds of work before the measurement, and of the measurement, at scale 1.
const SETTLE_S: u64 = 20;
const COUNTED_S: u64 = 20;
const LEAST_S: u64 = 5;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Redis,
    Memcached,
    /// Tables of Python objects, without a server.
    Tables,
}

/// A server under load, or a program.
struct Load {
    name: &'static str,
    about: &'static str,
    kind: Kind,
    /// Change of the request rate over time.
    shape: &'static str,
}

const ALL: [Load; 5] = [
    Load {
        name: "redis-load",
        about: "redis for 20 s after a warm-up of 20 s: zipf 1.2, values of 1 KiB, one write in twenty",
        kind: Kind::Redis,
        shape: "steady",
    },
    Load {
        name: "redis-phases",
        about: "redis under that load; the popular keys change every 20 s",
        kind: Kind::Redis,
        shape: "phases",
    },
    Load {
        name: "redis-diurnal",
        about: "redis under that load; days of 40 s, with a tenth of the requests at night",
        kind: Kind::Redis,
        shape: "diurnal",
    },
    Load {
        name: "memcached-load",
        about: "memcached for 20 s after a warm-up of 20 s: zipf 1.2, values of 1 KiB, one write in twenty",
        kind: Kind::Memcached,
        shape: "steady",
    },
    Load {
        name: "tables",
        about: "tables of rows in Python objects for 20 s after a warm-up of 20 s, zipf 1.2",
        kind: Kind::Tables,
        shape: "steady",
    },
];

/// All loads.
pub fn all() -> Vec<Box<dyn Workload>> {
    let boxed = |l| Box::new(l) as Box<dyn Workload>;
    ALL.into_iter().map(boxed).collect()
}

impl Load {
    /// The server's program, which is also the name of its package.
    fn server(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Redis => Some("redis-server"),
            Kind::Memcached => Some("memcached"),
            Kind::Tables => None,
        }
    }

    /// The client, or the program itself.
    fn script(&self, place: &Place, socket: &str) -> Result<Argv, WorkloadError> {
        let (word, keys, size) = match self.kind {
            Kind::Redis => ("redis", 160_000, 1024),
            Kind::Memcached => ("memcached", 160_000, 1024),
            Kind::Tables => ("tables", 300_000, 512),
        };
        let numbers = [
            scaled(place, keys, 8_000),
            size,
            place.seed % (1 << 32),
            scaled(place, SETTLE_S, LEAST_S),
            scaled(place, COUNTED_S, LEAST_S),
        ];
        let mut argv = vec![
            text(&tools::need("python3", "python3")?),
            text(&python::script(place, "load.py")),
            word.to_owned(),
            socket.to_owned(),
        ];
        argv.extend(numbers.map(|n| n.to_string()));
        argv.push(self.shape.to_owned());
        Ok(Argv {
            argv,
            env: vec![("PYTHONDONTWRITEBYTECODE".into(), "1".into())],
        })
    }
}

impl Workload for Load {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn missing(&self, _: &Place) -> Option<WorkloadError> {
        let server = self.server().and_then(|name| tools::missing(name, name));
        server.or_else(|| tools::missing("python3", "python3"))
    }

    fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        let _lock = files::lock(&place.cache)?;
        python::prepare_scripts(place)
    }

    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, WorkloadError> {
        files::make_dir(&place.scratch)?;
        let (dir, path) = (text(&place.scratch), text(&place.scratch.join("socket")));
        let words: Vec<&str> = match self.kind {
            Kind::Redis => vec![
                "--port",
                "0",
                "--unixsocket",
                &path,
                "--save",
                "",
                "--dir",
                &dir,
            ],
            // Disables the crawler of expired items: nothing expires here, and a minute after the start it
            // would touch all memory, in the middle of a measurement.
            Kind::Memcached => vec![
                "-s",
                &path,
                "-m",
                "2048",
                "-t",
                "1",
                "-u",
                "root",
                "-o",
                "no_lru_crawler",
            ],
            Kind::Tables => return self.script(place, "-").map(Plan::Program),
        };
        let name = self.server().unwrap_or_default();
        let mut argv = vec![text(&tools::need(name, name)?)];
        argv.extend(words.into_iter().map(str::to_owned));
        Ok(Plan::Server {
            server: Argv { argv, env: vec![] },
            socket: format!("unix:{path}"),
            clients: vec![self.script(place, &path)?],
        })
    }

    fn timeout_s(&self, place: &Place) -> u64 {
        patience_s(place)
    }
}
