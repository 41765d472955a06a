//! Facts about the machine that the figures depend on, for the results file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use canvas_types::procfs::memory_bytes;

use super::cgroup::Controller;
use crate::record::Machine;

/// Settings to record, by name.
const SETTINGS: [(&str, &str); 20] = [
    ("thp", "/sys/kernel/mm/transparent_hugepage/enabled"),
    (
        "thp_64k",
        "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
    ),
    ("thp_defrag", "/sys/kernel/mm/transparent_hugepage/defrag"),
    ("swappiness", "/proc/sys/vm/swappiness"),
    ("page_cluster", "/proc/sys/vm/page-cluster"),
    ("overcommit_memory", "/proc/sys/vm/overcommit_memory"),
    ("max_map_count", "/proc/sys/vm/max_map_count"),
    ("vma_ra_enabled", "/sys/kernel/mm/swap/vma_ra_enabled"),
    ("lru_gen", "/sys/kernel/mm/lru_gen/enabled"),
    (
        "unprivileged_userfaultfd",
        "/proc/sys/vm/unprivileged_userfaultfd",
    ),
    ("zswap_enabled", "/sys/module/zswap/parameters/enabled"),
    (
        "zswap_compressor",
        "/sys/module/zswap/parameters/compressor",
    ),
    (
        "zswap_max_pool_percent",
        "/sys/module/zswap/parameters/max_pool_percent",
    ),
    (
        "zswap_shrinker",
        "/sys/module/zswap/parameters/shrinker_enabled",
    ),
    (
        "damon_kdamonds",
        "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds",
    ),
    ("damon", "/sys/kernel/mm/damon/admin/kdamonds/0/state"),
    (
        "governor",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    ),
    ("smt", "/sys/devices/system/cpu/smt/control"),
    (
        "clocksource",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    ),
    ("kernel_build", "/proc/sys/kernel/version"),
];

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Findings of `canvas doctor` about userfaultfd.
fn from_doctor(canvas: &Path, features: &mut BTreeMap<String, String>) {
    let Ok(out) = Command::new(canvas).args(["doctor", "--json"]).output() else {
        return;
    };
    let Ok(v) = serde_json::from_slice::<serde_json::Value>(&out.stdout) else {
        return;
    };
    let mode = v["mode"].as_str().unwrap_or("none");
    features.insert("canvas_mode".to_owned(), mode.to_owned());
    if let Some(names) = v["userfaultfd"]["features"].as_array() {
        let names: Vec<&str> = names.iter().filter_map(|n| n.as_str()).collect();
        features.insert("userfaultfd".to_owned(), names.join(" "));
    }
}

/// Gathers the facts. `canvas` is the path of the command.
pub fn machine(canvas: &Path) -> Machine {
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|l| l.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let meminfo = fs::read("/proc/meminfo").unwrap_or_default();
    let mut features: BTreeMap<String, String> = SETTINGS
        .iter()
        .filter_map(|(name, path)| Some(((*name).to_owned(), read(path)?)))
        .collect();
    from_doctor(canvas, &mut features);
    Machine {
        cpu: value("model name").unwrap_or_default(),
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        is_virtual: value("flags").is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
        memory_bytes: memory_bytes(&meminfo, "MemTotal").unwrap_or(0),
        kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
        cgroup_version: Controller::find().ok().map(|c| c.version),
        features,
        load_average: read("/proc/loadavg")
            .and_then(|t| t.split(' ').next()?.parse().ok())
            .unwrap_or(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let m = machine(Path::new("/nonexistent/canvas"));
        assert!(
            !m.kernel.is_empty() && m.cpus > 0 && m.memory_bytes > 0,
            "{m:?}"
        );
        assert!(m.features.contains_key("swappiness"), "{m:?}");
        assert!(
            !m.features.contains_key("canvas_mode"),
            "there is no such command"
        );
    }
}
