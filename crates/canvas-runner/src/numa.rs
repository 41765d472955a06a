//! NUMA nodes of this host: which have memory, and whether canvas may use it (`--numa`).

use std::fs;
use std::path::Path;

use canvas_sys::numa;
use canvas_types::NodeBound;
use nix::errno::Errno;
use serde::Serialize;

/// The kernel's directory of nodes.
const NODES: &str = "/sys/devices/system/node";

/// Why pages cannot go to a node.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NumaError {
    /// The kernel reports no nodes.
    #[error("this kernel reports no NUMA nodes ({}); leave out --numa", NODES)]
    NoNodes,
    /// The node does not exist or is offline.
    #[error("--numa {bound}: there is no NUMA node {} here; nodes with memory are {there}", .bound.node)]
    NoNode {
        /// The setting.
        bound: NodeBound,
        /// The nodes with memory.
        there: String,
    },
    /// The node has only processors or devices.
    #[error("--numa {bound}: NUMA node {} has no memory; nodes with memory are {there}", .bound.node)]
    NoMemory {
        /// The setting.
        bound: NodeBound,
        /// The nodes with memory.
        there: String,
    },
    /// The kernel refuses.
    #[error(
        "--numa {bound}: memory of NUMA node {} cannot be requested (mbind: {}): {}, or leave out --numa",
        .bound.node, .why.desc(), way_out(*.why)
    )]
    Refused {
        /// The setting.
        bound: NodeBound,
        /// The kernel's error.
        why: Errno,
    },
}

fn way_out(why: Errno) -> &'static str {
    match why {
        Errno::EINVAL => "let the cpuset of this control group have the node (cpuset.mems)",
        Errno::ENOSYS => "use a kernel with CONFIG_NUMA",
        _ => "start this with a seccomp profile that allows mbind and get_mempolicy",
    }
}

/// An online node.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The kernel's number.
    pub node: u32,
    /// Its memory; 0 if it has none.
    pub memory_bytes: u64,
    /// Whether it has processors.
    pub has_processors: bool,
}

/// The online nodes; none if the kernel reports none.
pub fn nodes() -> Vec<Node> {
    nodes_in(Path::new(NODES))
}

fn nodes_in(dir: &Path) -> Vec<Node> {
    let online = fs::read_to_string(dir.join("online")).unwrap_or_default();
    let node = |node: u32| {
        let file = |name: &str| {
            fs::read_to_string(dir.join(format!("node{node}/{name}"))).unwrap_or_default()
        };
        Node {
            node,
            memory_bytes: total_bytes(&file("meminfo")),
            has_processors: !numbers(&file("cpulist")).is_empty(),
        }
    };
    numbers(&online).into_iter().map(node).collect()
}

/// Parses the kernel's lists: `0-2,5`.
fn numbers(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse::<u32>().ok()?);
        Some(first..=last.min(first + numa::NODES))
    };
    let parts = list.trim().split(',');
    parts.filter_map(range).flatten().collect()
}

/// Parses `Node 1 MemTotal:  65536 kB`.
fn total_bytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find(|l| l.contains(" MemTotal:"));
    let kib = line.and_then(|l| l.split_whitespace().rev().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Checks whether pages can go to these nodes.
pub fn check(wanted: &[NodeBound]) -> Result<(), NumaError> {
    if wanted.is_empty() {
        return Ok(());
    }
    judge(wanted, &nodes())?;
    for bound in wanted {
        numa::check(bound.node).map_err(|e| NumaError::Refused {
            bound: *bound,
            why: Errno::from_raw(e.0),
        })?;
    }
    Ok(())
}

fn judge(wanted: &[NodeBound], nodes: &[Node]) -> Result<(), NumaError> {
    if nodes.is_empty() {
        return Err(NumaError::NoNodes);
    }
    for bound in wanted {
        let bound = *bound;
        let with_memory = nodes.iter().filter(|n| n.memory_bytes > 0);
        let there: Vec<String> = with_memory.map(|n| n.node.to_string()).collect();
        let there = there.join(", ");
        match nodes.iter().find(|n| n.node == bound.node) {
            None => return Err(NumaError::NoNode { bound, there }),
            Some(n) if n.memory_bytes == 0 => return Err(NumaError::NoMemory { bound, there }),
            Some(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_as_the_kernel_tells_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        assert_eq!(nodes_in(dir.path()), []);
        write("online", "0-1,4\n");
        write("node0/cpulist", "0-3\n");
        write(
            "node0/meminfo",
            "Node 0 MemTotal:  65536 kB\nNode 0 MemFree: 1 kB\n",
        );
        write("node1/cpulist", "\n");
        write("node1/meminfo", "Node 1 MemTotal:  1024 kB\n");
        write("node4/cpulist", "4\n");
        write("node4/meminfo", "Node 4 MemTotal:  0 kB\n");
        let found = nodes_in(dir.path());
        let node = |node, memory_bytes, has_processors| Node {
            node,
            memory_bytes,
            has_processors,
        };
        let want = [
            node(0, 64 << 20, true),
            node(1, 1 << 20, false),
            node(4, 0, true),
        ];
        assert_eq!(found, want);
        let judged =
            |text: &str| judge(&[text.parse().unwrap()], &found).map_err(|e| e.to_string());
        assert_eq!(judged("1=1M"), Ok(()));
        let why = judged("2=1M").unwrap_err();
        assert!(
            why.contains("no NUMA node 2 here; nodes with memory are 0, 1"),
            "{why}"
        );
        let why = judged("4=1M").unwrap_err();
        assert!(why.contains("NUMA node 4 has no memory"), "{why}");
        assert_eq!(judge(&[], &[]), Err(NumaError::NoNodes));
    }

    #[test]
    fn the_way_out_fits_what_the_kernel_says() {
        let bound = "1=1M".parse().unwrap();
        for (why, want) in [
            (Errno::EPERM, "a seccomp profile that allows mbind"),
            (Errno::EINVAL, "cpuset.mems"),
            (Errno::ENOSYS, "CONFIG_NUMA"),
        ] {
            let text = NumaError::Refused { bound, why }.to_string();
            assert!(text.contains(want), "{text}");
        }
    }
}
