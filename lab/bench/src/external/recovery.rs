//! Time until a program regains its speed when local memory becomes free.

use super::error::WorkloadError;
use super::files;
use super::python;
use super::tools;
use super::ycsb;
use super::{patience_s, scaled};
use crate::workload::{Argv, Place, Plan, Workload};

/// Event that frees memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freed {
    /// A sibling of the server exits.
    SiblingExits,
    /// `canvas set local=SIZE`.
    LimitRaised,
}

struct Recovery(Freed);

/// Redis with a sibling that exits, and redis under a limit that is raised.
pub fn all() -> Vec<Box<dyn Workload>> {
    let boxed = |freed| Box::new(Recovery(freed)) as Box<dyn Workload>;
    vec![boxed(Freed::SiblingExits), boxed(Freed::LimitRaised)]
}

impl Recovery {
    /// A key needs about 1.2 KiB in redis.
    fn keys(place: &Place) -> u64 {
        scaled(place, 120_000, 2_000)
    }

    /// Memory of the sibling: a third more than redis's.
    fn sibling_mib(place: &Place) -> u64 {
        scaled(place, 190, 4)
    }

    fn words(place: &Place) -> Result<[String; 2], WorkloadError> {
        let script = python::script(place, "redis_recovery.py");
        Ok([
            python::text(&tools::need("python3", "python3")?),
            python::text(&script),
        ])
    }

    /// Command line of the server, with its sibling if there is one.
    fn server(&self, place: &Place, port: u16) -> Result<Argv, WorkloadError> {
        let redis = ycsb::redis_server(place, port)?;
        if self.0 == Freed::LimitRaised {
            return Ok(redis);
        }
        let [python, script] = Self::words(place)?;
        let beside = r#""$1" "$2" sibling "$3" "$4" & shift 4; exec "$@""#;
        let mut argv = ["sh", "-c", beside, "sh"].map(String::from).to_vec();
        argv.extend([
            python,
            script,
            python::text(&place.scratch),
            Self::sibling_mib(place).to_string(),
        ]);
        argv.extend(redis.argv);
        Ok(Argv { argv, ..redis })
    }

    fn client(&self, place: &Place, port: u16) -> Result<Argv, WorkloadError> {
        let mut argv = Self::words(place)?.to_vec();
        let how = match self.0 {
            Freed::SiblingExits => "exits",
            Freed::LimitRaised => "raised",
        };
        let keys = Self::keys(place);
        argv.extend([
            "client".into(),
            how.into(),
            port.to_string(),
            keys.to_string(),
        ]);
        match self.0 {
            Freed::SiblingExits => argv.push(python::text(&place.scratch)),
            Freed::LimitRaised => {
                argv.push(python::text(&place.canvas));
                argv.push((keys * 2048).max(16 << 20).to_string());
            }
        }
        Ok(Argv {
            argv,
            env: vec![("PYTHONDONTWRITEBYTECODE".into(), "1".into())],
        })
    }
}

impl Workload for Recovery {
    fn name(&self) -> &str {
        match self.0 {
            Freed::SiblingExits => "redis-sibling-exits",
            Freed::LimitRaised => "redis-limit-raised",
        }
    }

    fn about(&self) -> &str {
        match self.0 {
            Freed::SiblingExits => {
                "redis with a sibling that exits: time until random GETs are as fast as all-local ones"
            }
            Freed::LimitRaised => {
                "redis whose --local is raised: time until random GETs are as fast as all-local ones"
            }
        }
    }

    fn missing(&self, _: &Place) -> Option<WorkloadError> {
        tools::missing("redis-server", "redis-server")
            .or_else(|| tools::missing("python3", "python3"))
    }

    fn prepare(&self, place: &Place) -> Result<(), WorkloadError> {
        let _lock = files::lock(&place.cache)?;
        python::prepare_scripts(place)
    }

    fn plan(&self, place: &Place, _run: u32) -> Result<Plan, WorkloadError> {
        files::make_dir(&place.scratch)?;
        let port = tools::free_port()?;
        Ok(Plan::Server {
            server: self.server(place, port)?,
            socket: format!("127.0.0.1:{port}"),
            clients: vec![self.client(place, port)?],
        })
    }

    fn timeout_s(&self, place: &Place) -> u64 {
        patience_s(place)
    }
}
