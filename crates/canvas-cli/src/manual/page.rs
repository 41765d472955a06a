//! docs/CLI.md, made from the definitions of the flags.

use std::fmt::Write;

use canvas_control::settings::text::wrapped;
use clap::{Arg, Command, CommandFactory};

use crate::args::Cli;

/// Columns per line.
const WIDTH: usize = 100;
const INTRO: &str = "This page is generated from the definitions of the flags (`crates/canvas-cli/src/args.rs` and \
    `crates/canvas-control/src/settings/table.rs`); `canvas COMMAND --help` and the manual pages say the same. Settings \
    that are not flags are [tunables](TUNABLES.md), written `-o NAME=VALUE`. [The guide](guide/README.md) shows how to \
    use the commands.";

/// Contents of docs/CLI.md.
fn page() -> String {
    let mut canvas = Cli::command().disable_help_subcommand(true);
    canvas.build();
    let mut page = String::from("# The `canvas` command\n\n");
    add_paragraph(&mut page, INTRO);
    page += "| command | what it does |\n|---|---|\n";
    for command in commands(&canvas) {
        let about = command.get_about().map(ToString::to_string);
        let name = command.get_name();
        let about = prose(&about.unwrap_or_default());
        let _ = writeln!(page, "| [`canvas {name}`](#canvas-{name}) | {about} |");
    }
    page += "\n## Exit codes and quantities\n\n";
    add_notes(&mut page, &canvas);
    for command in commands(&canvas) {
        add_command(&mut page, command);
        for inner in commands(command) {
            add_command(&mut page, inner);
        }
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

/// The commands for users below a command.
fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set())
}

/// Adds the section of a command.
fn add_command(page: &mut String, command: &Command) {
    let mut command = command.clone();
    let usage = command.render_usage().to_string();
    let name = command.get_bin_name().unwrap_or_default();
    let _ = writeln!(page, "## `{name}`\n");
    let about = command.get_long_about().or(command.get_about());
    for part in about
        .map(ToString::to_string)
        .unwrap_or_default()
        .split("\n\n")
    {
        add_paragraph(page, &finished(part, ""));
    }
    page.push_str("```\n");
    for line in usage.lines() {
        let _ = writeln!(page, "{}", line.trim_start_matches("Usage:").trim());
    }
    page.push_str("```\n\n");
    let before = page.len();
    let is_listed =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    for arg in command.get_arguments().filter(is_listed) {
        add_argument(page, arg);
    }
    if page.len() > before {
        page.push('\n');
    }
    add_notes(page, &command);
}

/// Adds an argument or flag.
fn add_argument(page: &mut String, arg: &Arg) {
    let short = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(_)) => format!("-{short}, "),
        _ => String::new(),
    };
    let mut remarks = String::new();
    let values: Vec<_> = arg
        .get_possible_values()
        .iter()
        .map(|v| v.get_name().to_owned())
        .collect();
    if !values.is_empty() && !arg.is_hide_possible_values_set() {
        let _ = write!(remarks, " [possible values: {}]", values.join(", "));
    }
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|v| v.to_string_lossy())
        .collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        let _ = write!(remarks, " [default: {}]", defaults.join(","));
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(remarks, " [env: {}]", variable.to_string_lossy());
    }
    let help = arg.get_long_help().or(arg.get_help());
    let help = finished(&help.map(ToString::to_string).unwrap_or_default(), &remarks);
    let text = format!("* `{short}{arg}`: {}", prose(&help));
    for (i, line) in wrapped(&text, WIDTH - 2).into_iter().enumerate() {
        let _ = writeln!(page, "{}{line}", if i == 0 { "" } else { "  " });
    }
}

/// Adds what help prints after the flags: paragraphs, and indented lines as blocks.
fn add_notes(page: &mut String, command: &Command) {
    let notes = command
        .get_after_long_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    for part in notes.split("\n\n") {
        let lines: Vec<&str> = part.lines().collect();
        for lines in lines.chunk_by(|a, b| is_block(a) == is_block(b)) {
            if !lines.first().is_some_and(|line| is_block(line)) {
                add_paragraph(page, &lines.join(" "));
                continue;
            }
            page.push_str("```\n");
            for line in lines {
                let _ = writeln!(page, "{}", line.strip_prefix("  ").unwrap_or(line));
            }
            page.push_str("```\n\n");
        }
    }
}

/// Whether a line of notes is part of a block.
fn is_block(line: &str) -> bool {
    line.starts_with("  ")
}

/// Adds a paragraph.
fn add_paragraph(page: &mut String, text: &str) {
    for line in wrapped(&prose(text), WIDTH) {
        let _ = writeln!(page, "{line}");
    }
    page.push('\n');
}

/// A sentence with remarks before its full stop.
fn finished(text: &str, remarks: &str) -> String {
    format!("{}{remarks}.", text.trim_end_matches('.'))
}

/// Text of help in Markdown: documents are links.
fn prose(text: &str) -> String {
    let mut pieces = text.split("docs/");
    let mut out = pieces
        .next()
        .unwrap_or_default()
        .replace("CANVAS_*", "`CANVAS_*`");
    for piece in pieces {
        match piece.split_once(".md") {
            Some((name, after)) => {
                let _ = write!(out, "[{name}.md]({name}.md){after}");
            }
            None => {
                let _ = write!(out, "docs/{piece}");
            }
        }
    }
    out
}

#[test]
fn the_page_about_commands_is_what_help_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CLI.md");
    if std::env::var_os("CANVAS_WRITE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    assert!(
        std::fs::read_to_string(path).unwrap() == page(),
        "docs/CLI.md is not what --help says; run this test with CANVAS_WRITE_DOCS=1"
    );
}
