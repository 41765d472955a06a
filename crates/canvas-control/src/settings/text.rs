//! Texts made from the table: `canvas help tunables`, docs/TUNABLES.md, and hints at renamed
//! settings.

use std::fmt::Write;

use super::{Command, Setting, Shape, TABLE, find, settings_of};

/// Columns per line.
const WIDTH: usize = 100;

/// Former flags and keys: their commands, and what to write now.
const RENAMED: &[(&str, &[Command], &str, &str)] = {
    use Command::{Agent, Disk, Run, Serve};
    &[
        ("server", &[Run, Disk, Agent], "to", "HOST:PORT"),
        ("servers", &[Run, Disk, Agent], "to", "HOST:PORT"),
        ("seed", &[Run, Disk, Agent], "to", "gossip:HOST:PORT"),
        ("seeds", &[Run, Disk, Agent], "to", "gossip:HOST:PORT"),
        ("seed", &[Serve], "join", "HOST:PORT"),
        ("seeds", &[Serve], "join", "HOST:PORT"),
        ("far-dir", &[Run, Disk, Agent], "to", "disk:DIR"),
        ("agent", &[Run, Disk], "to", "agent"),
        ("far-max", &[Agent], "far", "SIZE"),
        ("far-spin", &[Run, Disk], "spin", "TIME"),
        ("far-timeliness", &[Run, Disk], "timeliness", "on|off"),
        ("no-prefetch", &[Run], "prefetch", "none"),
        ("links", &[Serve], "connections", "N"),
    ]
};

/// The replacement of a former flag or key: a setting and its value.
pub fn replaced(command: Command, name: &str) -> Option<(&'static Setting, &'static str)> {
    let old = RENAMED
        .iter()
        .find(|(old, commands, ..)| *old == name && commands.contains(&command));
    if let Some((_, _, new, value)) = old {
        return Some((find(command, new)?, value));
    }
    let row = find(command, name)?;
    Some((row, row.values))
}

/// The error for a renamed option.
pub fn renamed(command: Command, name: &str) -> Option<String> {
    let (row, value) = replaced(command, name)?;
    let new = row.name;
    Some(format!("there is no option {name}; write {new}={value}"))
}

/// The error for a flag that was replaced.
pub fn flag_replaced(command: Command, flag: &str) -> Option<String> {
    let (row, value) = replaced(command, flag.strip_prefix("--")?)?;
    let new = match row.is_flag_of(command) {
        true => format!("--{} {value}", row.name),
        false => format!("-o {}={value}", row.name),
    };
    Some(format!("there is no flag {flag}; write {new}"))
}

/// The error for a variable that was replaced.
pub fn variable_replaced(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("CANVAS_")?;
    let name = name.to_lowercase().replace('_', "-");
    let (row, value) = replaced(Command::Run, &name)?;
    if row.variable == Some(variable) {
        return None;
    }
    let new = match row.variable {
        Some(own) => format!("{own}={value}"),
        None => format!("CANVAS_OPTIONS={}={value}", row.name),
    };
    Some(format!("{variable} is not read; write {new}, or unset it"))
}

/// The sentence of a setting, followed by its default.
pub fn sentence(row: &Setting) -> String {
    let default = match (row.default, row.shape) {
        ("", _) | (_, Shape::Switch) => String::new(),
        (default, _) => format!(" [default: {default}]"),
    };
    // The default goes before the full stop.
    match (default.as_str(), row.text.strip_suffix('.')) {
        ("", _) | (_, None) => format!("{}{default}", row.text),
        (default, Some(text)) => format!("{text}{default}."),
    }
}

/// The commands that have a setting as an option.
fn commands(row: &Setting) -> String {
    let all = Command::ALL.into_iter().filter(|c| row.is_tunable_of(*c));
    all.map(Command::name).collect::<Vec<_>>().join(", ")
}

/// The remarks after the name of a tunable.
fn remarks(row: &Setting) -> String {
    let mut all = vec![commands(row)];
    if !row.default.is_empty() {
        all.push(format!("default {}", row.default));
    }
    if Command::ALL.into_iter().any(|c| row.is_live_in(c)) {
        all.push("canvas set".to_owned());
    }
    if row.experimental {
        all.push("experimental".to_owned());
    }
    all.join("; ")
}

/// The rows that are a tunable of some command.
fn tunables() -> impl Iterator<Item = &'static Setting> {
    let is = |row: &&Setting| Command::ALL.into_iter().any(|c| row.is_tunable_of(c));
    TABLE.iter().filter(is)
}

/// Output of `canvas help tunables`.
pub fn help() -> String {
    let mut out = String::from(
        "Tunables: settings that canvas usually decides by itself. Each is written\n\n  \
         -o NAME=VALUE[,NAME=VALUE]...\n\n\
         after `canvas run`, `disk`, `agent` or `serve`; in CANVAS_OPTIONS (for run and disk); as a key of\n\
         the configuration file, with _ for -; and, where marked `canvas set`, for a run or disk while it runs.\n\
         Flags can be written there, too (CANVAS_OPTIONS=pool=2G).\n",
    );
    for row in tunables() {
        let _ = write!(out, "\n  {}={}  ({})\n", row.name, row.values, remarks(row));
        for line in wrapped(row.text, WIDTH - 6) {
            let _ = writeln!(out, "      {line}");
        }
    }
    out
}

/// Contents of docs/TUNABLES.md.
pub fn markdown() -> String {
    let mut out = String::from("# Tunables\n\n");
    let intro = [
        "This page is generated from the table of settings (`crates/canvas-control/src/settings/table.rs`); \
         `canvas help tunables` prints the same.",
        "A tunable is a setting that most people never change: canvas decides it by itself, or its default suits \
         ([what canvas decides by itself](design/automatic.md)). It is written `-o NAME=VALUE[,NAME=VALUE]...` after \
         `canvas run`, `canvas disk`, `canvas agent` or `canvas serve`; in `CANVAS_OPTIONS`, in the same form or separated \
         by spaces, for `run` and `disk`; or as a key of the [configuration file](CONFIG.md), with `_` for `-`. Those that \
         are marked *live* can be changed by `canvas set`. Experimental ones can change or go with any version. Flags are \
         taken as options, too: `CANVAS_OPTIONS=pool=2G`.",
    ];
    for paragraph in intro {
        for line in wrapped(paragraph, WIDTH) {
            let _ = writeln!(out, "{line}");
        }
        out.push('\n');
    }
    for command in Command::ALL {
        let _ = writeln!(out, "## `canvas {}`\n", command.name());
        for row in settings_of(command).filter(|row| row.is_tunable_of(command)) {
            let mut marks = String::new();
            if !row.default.is_empty() {
                let _ = write!(marks, "; default: {}", row.default);
            }
            if row.is_live_in(command) {
                marks += "; *live*";
            }
            if row.experimental {
                marks += "; experimental";
            }
            let values = match row.values.rsplit_once('|') {
                Some((first, last)) => format!("{} or {last}", first.replace('|', ", ")),
                None => row.values.to_owned(),
            };
            let text = format!("* **`{}`**: {values}{marks}. {}", row.name, row.text);
            for (i, line) in wrapped(&text, WIDTH - 2).into_iter().enumerate() {
                let _ = writeln!(out, "{}{line}", if i == 0 { "" } else { "  " });
            }
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// The settings for the manual page, in roff.
pub fn roff() -> String {
    let mut out = String::from(
        ".TH canvas-tunables 7\n.SH NAME\ncanvas-tunables \\- settings that canvas usually decides by itself\n.SH DESCRIPTION\n\
         Written \\-o NAME=VALUE[,NAME=VALUE]... after canvas run, disk, agent or serve, in CANVAS_OPTIONS (run and disk), \
         or as a key of the configuration file, with _ for \\-.\n.SH TUNABLES\n",
    );
    let plain = |text: &str| text.replace('\\', "\\\\").replace('-', "\\-");
    for row in tunables() {
        let _ = writeln!(
            out,
            ".TP\n\\fB{}\\fR={}",
            plain(row.name),
            plain(row.values)
        );
        let _ = writeln!(out, "{} ({})", plain(row.text), plain(&remarks(row)));
    }
    out
}

/// Splits words into lines of at most `width` columns.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().map_or(0, |l| l.chars().count());
        if line > 0 && line + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
