//! Nested groups: a host's memory, and that of its programs.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::{CgroupError, Group, Step, Undo, figures_in, numbers, processes_in};

impl Group {
    /// Creates a child group without limits. With v2, a group with children has no processes of its own.
    pub fn within(&self, name: &str, undo: &Arc<Undo>) -> Result<Group, CgroupError> {
        let path = self.path.join(name);
        let fail = |what: &Path, source| CgroupError::SetUp {
            path: what.to_owned(),
            source,
        };
        if self.version == 2 {
            let enabled = self.path.join("cgroup.subtree_control");
            fs::write(&enabled, "+memory").map_err(|e| fail(&enabled, e))?;
        }
        let held = undo.hold(Step::RemoveCgroup { path: path.clone() })?;
        fs::create_dir(&path).map_err(|e| fail(&path, e))?;
        Ok(Group {
            version: self.version,
            path,
            _held: held,
        })
    }

    /// Limits the group's memory.
    pub fn limit(&self, bytes: u64) -> Result<(), CgroupError> {
        let name = match self.version {
            1 => "memory.limit_in_bytes",
            _ => "memory.max",
        };
        let path = self.path.join(name);
        let set = fs::write(&path, bytes.to_string());
        set.map_err(|source| CgroupError::SetUp { path, source })
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path.join(name)).unwrap_or_default()
    }

    /// Memory of the group and its descendants, without the page cache, which the kernel can reclaim.
    pub fn used_bytes(&self) -> u64 {
        let (usage, prefix) = match self.version {
            1 => ("memory.usage_in_bytes", "total_"),
            _ => ("memory.current", ""),
        };
        let usage: u64 = self.read(usage).trim().parse().unwrap_or(0);
        let text = self.read("memory.stat");
        let all = numbers(&text);
        let files = ["active_file", "inactive_file"];
        let files = files
            .iter()
            .filter_map(|name| all.get(format!("{prefix}{name}").as_str()));
        usage.saturating_sub(files.sum())
    }

    /// Anonymous memory of the group and its descendants.
    pub fn anonymous_bytes(&self) -> u64 {
        figures_in(self.version, &self.read("memory.stat")).anonymous_bytes
    }

    /// Swapped memory of the group and its descendants.
    pub fn swapped_bytes(&self) -> u64 {
        if self.version == 2 {
            return self.read("memory.swap.current").trim().parse().unwrap_or(0);
        }
        let text = self.read("memory.stat");
        numbers(&text).get("total_swap").copied().unwrap_or(0)
    }

    /// Processes of the group and its descendants.
    pub fn all_processes(&self) -> Vec<u32> {
        let mut groups = vec![self.path.clone()];
        let mut found = Vec::new();
        while let Some(group) = groups.pop() {
            found.extend(processes_in(&group));
            let entries = fs::read_dir(&group).into_iter().flatten().flatten();
            groups.extend(entries.map(|e| e.path()).filter(|p| p.is_dir()));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::Controller;
    use super::*;
    use crate::engine::tests::{one_journal, request};
    use std::process::Command;

    #[test]
    fn processes_of_groups_within_are_found_and_their_memory_counts() {
        if !canvas_testing::has_root("control groups within each other") {
            return;
        }
        let Ok(controller) = Controller::find() else {
            canvas_testing::skip("no memory controller of control groups is mounted");
            return;
        };
        let _one = one_journal();
        let undo = Undo::begin(&crate::host::reverse::Host, &request(&[]).guardian).unwrap();
        let bound = Group::new(&controller, &undo, "nested", Some(64 << 20), true).unwrap();
        let inner = bound.within("inner", &undo).unwrap();
        inner.limit(32 << 20).unwrap();
        let argv = crate::workload::Argv {
            argv: ["sleep", "60"].map(str::to_owned).to_vec(),
            env: Vec::new(),
        };
        let argv = inner.wrap(&argv).argv;
        let mut child = Command::new(&argv[0]).args(&argv[1..]).spawn().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while bound.all_processes() != [child.id()] && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(bound.all_processes(), [child.id()]);
        assert!(bound.used_bytes() > 0 && bound.swapped_bytes() == 0);
        crate::processes::kill_all(&bound.all_processes());
        child.wait().unwrap();
        let path = bound.path.clone();
        drop((inner, bound));
        assert!(!path.exists());
        assert_eq!(undo.finish(), [""; 0]);
    }
}
