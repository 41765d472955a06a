//! Prepares an external workload and prints how to run it once: what the end-to-end tests drive.
//!
//! ```text
//! external list
//! external plan NAME --cache DIR --scratch DIR --scale N --seed N
//! ```
//!
//! Prints one JSON object. Exit code 3 and a sentence when the workload is missing something.

use std::env;
use std::process::ExitCode;

use canvas_bench::external;
use canvas_bench::workload::{Argv, Place, Plan, WorkloadError};
use serde_json::{Value, json};

fn argv(a: &Argv) -> Value {
    json!({ "argv": a.argv, "env": a.env })
}

fn place(options: &[String]) -> Result<Place, String> {
    let value = |name: &str| {
        options
            .chunks(2)
            .find(|c| c[0] == name)
            .and_then(|c| c.get(1))
            .ok_or(format!("{name} is missing"))
    };
    let number = |name: &str| {
        let text = value(name)?;
        text.parse::<f64>()
            .map_err(|_| format!("{name} {text} is not a number"))
    };
    Ok(Place {
        cache: value("--cache")?.into(),
        scratch: value("--scratch")?.into(),
        scale: number("--scale")?,
        seed: number("--seed")? as u64,
        canvas: "canvas".into(),
        lab: "lab".into(),
        huge_pages: false,
    })
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let all = external::all();
    let result = match args.split_first().map(|(a, rest)| (a.as_str(), rest)) {
        Some(("list", [])) => {
            let names: Vec<_> = all.iter().map(|w| json!([w.name(), w.about()])).collect();
            Ok(json!({ "workloads": names }))
        }
        Some(("plan", [name, options @ ..])) => place(options).and_then(|place| {
            let workload = all
                .iter()
                .find(|w| w.name() == name)
                .ok_or(format!("no workload {name}"))?;
            let said = |e: WorkloadError| e.to_string();
            if let Some(reason) = workload.missing(&place) {
                println!("{reason}");
                std::process::exit(3);
            }
            workload.prepare(&place).map_err(said)?;
            Ok(match workload.plan(&place, 0).map_err(said)? {
                Plan::Program(program) => json!({ "program": argv(&program) }),
                Plan::Server {
                    server,
                    socket,
                    clients,
                } => json!({
                    "server": argv(&server),
                    "socket": socket,
                    "clients": clients.iter().map(argv).collect::<Vec<_>>(),
                }),
            })
        }),
        _ => Err(
            "external list | external plan NAME --cache DIR --scratch DIR --scale N --seed N"
                .into(),
        ),
    };
    match result {
        Ok(v) => {
            println!("{v}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("external: {e}");
            ExitCode::from(2)
        }
    }
}
