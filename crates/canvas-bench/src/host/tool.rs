//! Tools of the system that the bench calls.

use std::process::Command;

/// Runs a tool; an error is one sentence with what the tool said.
pub fn run(argv: &[&str]) -> Result<String, String> {
    let missing = |e: std::io::Error| format!("{} cannot be run: {e}", argv[0]);
    let out = Command::new(argv[0])
        .args(&argv[1..])
        .output()
        .map_err(missing)?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let line = said.lines().last().unwrap_or("").trim().to_owned();
    Err(format!("{} failed: {line}", argv.join(" ")))
}

/// Whether PATH has it.
pub fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|d| d.join(name).is_file())
}
