//! The configuration file: settings of `canvas agent`, `canvas serve`, `canvas run --tenant NAME` and
//! `canvas disk --tenant NAME`, in TOML.
//!
//! Its keys are the names of the settings, with underscores; a value is a string, a number, true or
//! a list, as after the flag. The command line and environment variables win over the file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use canvas_agent::daemon::shared::{self, HostShared};
use canvas_types::exit;
use canvas_types::units::Size;
use clap::{CommandFactory, FromArgMatches};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::args::{Cli, Command, ConfigAction, ConfigArgs};
use crate::error::{Failure, say};
use crate::reason;
use crate::tenant_flags as flags;
use canvas_control::settings::table::{POOL_FLOOR, TENANT};
use canvas_control::settings::text::{replaced, variable_replaced};
use canvas_control::settings::{
    Command as Owner, Setting, Settings, Shape, Source, find, settings_of,
};
use canvas_control::terms::Terms;

/// The default file.
const DEFAULT: &str = "/etc/canvas/canvas.toml";
/// The environment variable that names another file.
const VARIABLE: &str = "CANVAS_CONFIG";
/// Larger files are refused.
const BYTES_MAX: u64 = 1 << 20;
/// Settings that a file cannot have.
const NOT_HERE: [&str; 1] = [TENANT.name];

/// Limits on all tenants' shared memory: a section of the agent's file, whose keys are not flags.
const SHARED: &str = "shared";
/// Its keys.
const SHARED_KEYS: [&str; 3] = ["local", "floor", "ceiling"];

/// What is wrong with a command line.
pub enum Wrong {
    /// Its arguments.
    Arguments(clap::Error),
    /// The file that it names.
    File(Failure),
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
enum FileError {
    /// The system call failed.
    #[error("{} cannot be read: {}", .path.display(), reason(.source))]
    System {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is too large for a configuration.
    #[error(
        "{} cannot be read: it is larger than 1M; name a configuration file",
        .0.display()
    )]
    TooLarge(PathBuf),
}

/// Why the value of a key is refused.
#[derive(Debug, thiserror::Error)]
enum ValueError {
    /// The setting is a switch.
    #[error("it is a switch; write true or false")]
    Switch,
    /// The list has an item that is not a string.
    #[error("its list must hold strings")]
    List,
    /// It is neither a string nor a number.
    #[error(
        "its value is neither a string nor a number; write it as after the flag, in quotes: \
         \"4G\""
    )]
    Kind,
    /// The setting refuses it.
    #[error("{0}")]
    Refused(String),
}

/// Parses a command line, and adds the settings of the configuration file.
pub fn parse(argv: &[OsString]) -> Result<Cli, Wrong> {
    let matches = Cli::command().try_get_matches_from(argv);
    let cli = matches.and_then(|m| Cli::from_arg_matches(&m));
    let mut cli = cli.map_err(Wrong::Arguments)?;
    let (name, code) = match &cli.command {
        Command::Run(_) => ("run", exit::RUN_FAILED),
        _ => ("disk", exit::USAGE),
    };
    let wrong = |sentence| Wrong::File(Failure { code, sentence });
    let added = match &mut cli.command {
        Command::Run(args) => judge_environment().and_then(|()| {
            let of_tenant = args.settings.get(TENANT).map(|tenant| ("tenant", tenant));
            add_tenants(&mut args.settings, of_tenant, name)
        }),
        Command::Disk(args) => judge_environment().and_then(|()| {
            let of_disk = args.settings.get(TENANT).map(|tenant| ("disk", tenant));
            add_tenants(&mut args.settings, of_disk, name)
        }),
        Command::Agent(args) => add(&mut args.settings, args.config.as_deref(), "agent"),
        Command::Serve(args) => add(&mut args.settings, args.config.as_deref(), "serve"),
        _ => Ok(()),
    };
    added.map_err(wrong)?;
    Ok(cli)
}

/// Refuses variables that no longer set anything.
fn judge_environment() -> Result<(), String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut wrong: Vec<String> = names.filter_map(|n| variable_replaced(&n)).collect();
    wrong.sort();
    match wrong.into_iter().next() {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

/// Adds the section with the tenant's name, if the file has one.
fn add_tenants(
    given: &mut Settings,
    section: Option<(&str, String)>,
    command: &str,
) -> Result<(), String> {
    let (Some((kind, tenant)), Some(file)) = (section, default_file()) else {
        return Ok(());
    };
    let text = match read(&file) {
        Ok(text) => text,
        // The host's file belongs to its operator; if it cannot be read, the program starts without
        // it.
        Err(why) if file == Path::new(DEFAULT) => {
            say(format_args!("{why}; this {command} ignores the file"));
            return Ok(());
        }
        Err(why) => return Err(why.to_string()),
    };
    let alone = |errors| judge(&alone(&text, kind, &tenant)).map_err(|_| errors);
    let sections = judge(&text).or_else(alone).map_err(|e| summary(&file, e))?;
    add_section(given, &sections, &[kind, &tenant])
}

/// Adds the command's section, if a file is named.
fn add(given: &mut Settings, file: Option<&Path>, command: &str) -> Result<(), String> {
    let Some(file) = file else {
        return Ok(());
    };
    let text = read(file).map_err(|why| why.to_string())?;
    let sections = judge(&text).map_err(|errors| summary(file, errors))?;
    add_section(given, &sections, &[command])
}

fn add_section(given: &mut Settings, sections: &[Section], name: &[&str]) -> Result<(), String> {
    let section = sections.iter().find(|s| s.name == *name);
    for (name, value) in section.into_iter().flat_map(|s| s.settings.iter()) {
        (given.give(name, value, Source::File)).map_err(|why| why.to_string())?;
    }
    Ok(())
}

/// The first of a file's errors, and how many there are.
fn summary(file: &Path, errors: Vec<String>) -> String {
    let file = file.display();
    let more = match errors.len() {
        1 => String::new(),
        n => format!(" ({n} errors: see `canvas config check {file}`)"),
    };
    let first = errors.into_iter().next().unwrap_or_default();
    format!("{file}:{first}{more}")
}

/// The file that is used when no flag names one.
fn default_file() -> Option<PathBuf> {
    match std::env::var_os(VARIABLE) {
        Some(file) if !file.is_empty() => Some(file.into()),
        _ => Some(PathBuf::from(DEFAULT)).filter(|f| f.exists()),
    }
}

fn read(file: &Path) -> Result<String, FileError> {
    let fail = |source| FileError::System {
        path: file.to_owned(),
        source,
    };
    let meta = std::fs::metadata(file).map_err(fail)?;
    if meta.len() > BYTES_MAX {
        return Err(FileError::TooLarge(file.to_owned()));
    }
    std::fs::read_to_string(file).map_err(fail)
}

/// The part of an agent's file about its tenants.
#[derive(Default)]
pub struct Settled {
    /// Sections [tenant.NAME], by name.
    pub terms: BTreeMap<String, Terms>,
    /// Section [shared].
    pub shared: Option<shared::Section>,
}

/// Reads the part of an agent's file about its tenants.
pub fn settled(file: &Path) -> Result<Settled, Failure> {
    let text = read(file).map_err(Failure::usage)?;
    // The file was valid when the command line was parsed.
    let sections = judge(&text).map_err(|errors| {
        let first = errors.into_iter().next().unwrap_or_default();
        Failure::usage(format!("{}:{first}", file.display()))
    })?;
    Ok(Settled {
        terms: terms_in(&sections),
        shared: shared_in(&sections),
    })
}

fn terms_in(sections: &[Section]) -> BTreeMap<String, Terms> {
    let terms = |s: &Section| match &s.name[..] {
        [kind, name] if kind == "tenant" => {
            Some((name.clone(), flags::terms_of(&s.settings, &s.floors)))
        }
        _ => None,
    };
    sections.iter().filter_map(terms).collect()
}

/// Section [shared], if it is there and has a limit.
fn shared_in(sections: &[Section]) -> Option<shared::Section> {
    let section = sections.iter().find(|s| s.name == [SHARED])?;
    let size = |wanted: &str| section.sizes.get(wanted).copied();
    let [local, floor, ceiling] = SHARED_KEYS.map(size);
    Some(shared::Section {
        local: local?,
        floor,
        ceiling,
    })
}

/// Checks section [shared] as a whole.
fn judge_shared(
    sections: &[Section],
    table: &DeTable,
    at: &dyn Fn(usize) -> usize,
    errors: &mut Vec<(usize, String)>,
) {
    let Some((name, value)) = (table.iter()).find(|(name, _)| name.get_ref().as_ref() == SHARED)
    else {
        return;
    };
    let DeValue::Table(keys) = value.get_ref() else {
        return;
    };
    let line = |wanted: &str| {
        let key = (keys.keys()).find(|key| key.get_ref().as_ref() == wanted);
        at(key.map_or(name.span().start, |key| key.span().start))
    };
    if !keys
        .keys()
        .any(|key| key.get_ref().as_ref() == SHARED_KEYS[0])
    {
        let why = "[shared]: local is missing; write how much of all tenants' shared memory may be in memory, such as local = \"1G\"";
        errors.push((line(""), why.to_owned()));
    } else if let Err(why) = HostShared::new(shared_in(sections), &terms_in(sections)) {
        errors.push((line(why.key()), format!("[shared]: {why}")));
    }
}

/// Runs `canvas config`.
pub fn run(args: &ConfigArgs) -> Result<i32, Failure> {
    let ConfigAction::Check { file } = &args.action;
    let Some(file) = file.clone().or_else(default_file) else {
        return Err(Failure::usage(format!(
            "there is no {DEFAULT}; write the name of a file: canvas config check FILE"
        )));
    };
    let text = read(&file).map_err(Failure::usage)?;
    match judge(&text) {
        Ok(_) => {
            println!("ok");
            Ok(exit::OK)
        }
        Err(errors) => {
            for error in errors {
                say(format_args!("{}:{error}", file.display()));
            }
            Ok(exit::USAGE)
        }
    }
}

/// A valid section of a file.
#[derive(Debug)]
struct Section {
    /// Its name, in parts.
    name: Vec<String>,
    /// Settings of the command.
    settings: Settings,
    /// Settings that only the operator of an agent has.
    floors: Settings,
    /// The keys of section [shared].
    sizes: BTreeMap<String, Size>,
}

/// The file with all lines empty except those of section [KIND.NAME] (or of section [KIND]), so
/// that errors in other sections do not affect a tenant.
fn alone(text: &str, kind: &str, name: &str) -> String {
    let mut is_its = false;
    let line = |line| {
        if let Some(header) = str::trim_start(line).strip_prefix('[') {
            let header = header.split([']', '#']).next().unwrap_or_default();
            let mut parts = header
                .split('.')
                .map(|part| part.trim().trim_matches(['"', '\'']));
            is_its = parts.next() == Some(kind);
            let below = parts
                .next()
                .map(|first| parts.fold(first.to_owned(), |a, b| a + "." + b));
            is_its &= below.is_none_or(|below| below == name);
        }
        if is_its { line } else { "" }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Parses and checks a whole file: its sections, or each error as "LINE: SENTENCE".
fn judge(text: &str) -> Result<Vec<Section>, Vec<String>> {
    let at = |place: usize| text[..place.min(text.len())].matches('\n').count() + 1;
    let (table, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        let line = |e: &toml::de::Error| {
            let place = e.span().map_or(0, |s| s.start);
            let why = e.message().lines().next().unwrap_or_default();
            format!("{}: it is not TOML: {why}", at(place))
        };
        return Err(syntax.iter().map(line).collect());
    }
    let mut sections = Vec::new();
    let mut errors: Vec<(usize, String)> = Vec::new();
    for (name, value) in table.get_ref() {
        let line = at(name.span().start);
        let named = name.get_ref().as_ref();
        match (named, value.get_ref()) {
            ("agent" | "serve" | SHARED, DeValue::Table(keys)) => {
                let name = vec![named.to_owned()];
                sections.push(section(name, Owner::named(named), keys, &at, &mut errors));
            }
            ("tenant" | "disk", DeValue::Table(tenants)) => {
                let command = match named {
                    "disk" => Owner::Disk,
                    _ => Owner::Run,
                };
                for (tenant, value) in tenants {
                    let line = at(tenant.span().start);
                    let kind = named;
                    let named = tenant.get_ref().as_ref();
                    if let Err(why) = canvas_control::names::judge_name(named) {
                        errors.push((line, format!("[{kind}.{named}]: {why}")));
                    } else if let DeValue::Table(keys) = value.get_ref() {
                        let name = vec![kind.to_owned(), named.to_owned()];
                        sections.push(section(name, Some(command), keys, &at, &mut errors));
                    } else {
                        errors.push((
                            line,
                            format!("{kind}.{named} is not a section; write [{kind}.{named}]"),
                        ));
                    }
                }
            }
            ("agent" | "serve" | SHARED | "tenant" | "disk", _) => errors.push((
                line,
                format!("{named} is a section, not a key; write [{named}]"),
            )),
            _ => errors.push((
                line,
                format!(
                    "there is no section {named}; write [agent], [shared], [serve], [tenant.NAME] or [disk.NAME], and keys below one of them"
                ),
            )),
        }
    }
    tenants_that_are_disks(table.get_ref(), &at, &mut errors);
    if errors.is_empty() {
        judge_shared(&sections, table.get_ref(), &at, &mut errors);
    }
    if errors.is_empty() {
        return Ok(sections);
    }
    errors.sort();
    let show = |(line, sentence): (usize, String)| format!("{line}: {sentence}");
    Err(errors.into_iter().map(show).collect())
}

/// Refuses keys that a tenant cannot have because it is a disk.
fn tenants_that_are_disks(
    table: &DeTable,
    at: &dyn Fn(usize) -> usize,
    errors: &mut Vec<(usize, String)>,
) {
    let below = |kind: &str| match table.get(kind).map(Spanned::get_ref) {
        Some(DeValue::Table(sections)) => Some(sections),
        _ => None,
    };
    let (Some(tenants), Some(disks)) = (below("tenant"), below("disk")) else {
        return;
    };
    for (name, value) in tenants {
        let name = name.get_ref().as_ref();
        let (true, DeValue::Table(keys)) = (disks.contains_key(name), value.get_ref()) else {
            continue;
        };
        let all = flags::KEYS_OF_DISKS;
        for key in keys.keys() {
            let named = key.get_ref().as_ref();
            if !all.contains(&named) {
                let (last, first) = all.split_last().unwrap_or((&"", &[]));
                let why = format!(
                    "[tenant.{name}] {named}: {name} is a disk ([disk.{name}]), for which only {} and {last} can be set here; leave it out",
                    first.join(", ")
                );
                errors.push((at(key.span().start), why));
            }
        }
    }
}

/// Parses a section whose keys are the settings of `command`, or those of section [shared] without
/// one.
fn section(
    name: Vec<String>,
    command: Option<Owner>,
    keys: &DeTable,
    at: &dyn Fn(usize) -> usize,
    errors: &mut Vec<(usize, String)>,
) -> Section {
    let shown = name.join(".");
    let mut section = Section {
        name,
        settings: Settings::of(command.unwrap_or(Owner::Run)),
        floors: Settings::of(Owner::Operator),
        sizes: BTreeMap::new(),
    };
    for (key, value) in keys {
        let named = key.get_ref().as_ref();
        let line = at(key.span().start);
        let taken = match command {
            Some(command) => take(&mut section, command, named, value.get_ref(), &shown),
            None => take_size(&mut section, named, value.get_ref(), &shown),
        };
        if let Err(why) = taken {
            errors.push((line, why));
        }
    }
    section
}

/// Adds a key of a command's section.
fn take(
    section: &mut Section,
    command: Owner,
    key: &str,
    value: &DeValue,
    shown: &str,
) -> Result<(), String> {
    let name = key.replace('_', "-");
    let row = find(command, &name).filter(|row| row.key() == key && !NOT_HERE.contains(&row.name));
    // Keys of [tenant.NAME] that only the operator of an agent has: a run cannot request them.
    let of_operator = match command {
        Owner::Run => find(Owner::Operator, &name).filter(|row| row.key() == key),
        _ => None,
    };
    let Some(row) = row.or(of_operator) else {
        return Err(no_key(command, key, shown));
    };
    let wrong = |why: ValueError| format!("[{shown}] {key}: {why}");
    let Some(text) = text_of(row, value).map_err(wrong)? else {
        return Ok(());
    };
    let text = row
        .read(&text)
        .map_err(|why| wrong(ValueError::Refused(why)))?;
    let settings = match row.is_of(Owner::Operator) {
        true => &mut section.floors,
        false => &mut section.settings,
    };
    (settings.give(row.name, &text, Source::File)).map_err(|why| why.to_string())
}

/// Adds a key of section [shared].
fn take_size(section: &mut Section, key: &str, value: &DeValue, shown: &str) -> Result<(), String> {
    if !SHARED_KEYS.contains(&key) {
        let near = nearest(key, SHARED_KEYS.into_iter().map(str::to_owned));
        return Err(format!(
            "there is no key {key} in [{shown}]{near}; its keys are local, floor and ceiling"
        ));
    }
    let wrong = |why: ValueError| format!("[{shown}] {key}: {why}");
    let text = plain(value).ok_or_else(|| wrong(ValueError::Kind))?;
    // The least value is that of the other limits that only an operator has.
    let row = find(Owner::Operator, POOL_FLOOR.name);
    let text = row.map_or(Ok(text.clone()), |row| row.read(&text));
    let text = text.map_err(|why| wrong(ValueError::Refused(why)))?;
    if let Ok(size) = text.parse() {
        section.sizes.insert(key.to_owned(), size);
    }
    Ok(())
}

/// The error for an unknown key.
fn no_key(command: Owner, key: &str, shown: &str) -> String {
    let name = key.replace('_', "-");
    if let Some((row, value)) = replaced(command, &name).filter(|(row, _)| row.key() != key) {
        let new = row.key();
        return format!("there is no key {key} in [{shown}]; write {new} = \"{value}\"");
    }
    let keys = settings_of(command).map(Setting::key);
    let near = nearest(key, keys);
    format!(
        "there is no key {key} in [{shown}]{near}; see `canvas {} --help` and `canvas help tunables`: \
         their names are the keys, with _ for -",
        command.name()
    )
}

/// A hint at a key with a similar name.
fn nearest(named: &str, mut known: impl Iterator<Item = String>) -> String {
    let same = |a: &str, b: &str| {
        let plain = |s: &str| s.replace(['-', '_'], "").to_lowercase();
        let (a, b) = (plain(a), plain(b));
        a == b || a.trim_end_matches('s') == b.trim_end_matches('s')
    };
    let near = known.find(|key| same(key, named) && !NOT_HERE.contains(&key.as_str()));
    near.map_or_else(String::new, |key| format!("; did you mean {key}"))
}

/// A value as text; `None` for an empty list.
fn text_of(row: &Setting, value: &DeValue) -> Result<Option<String>, ValueError> {
    let is_switch = row.shape == Shape::Switch;
    match value {
        DeValue::Boolean(on) if is_switch || row.values == "on|off" => {
            Ok(Some(if *on { "on" } else { "off" }.to_owned()))
        }
        _ if is_switch => Err(ValueError::Switch),
        DeValue::Array(items) if row.shape == Shape::List => {
            let items: Option<Vec<String>> = items.iter().map(|i| plain(i.get_ref())).collect();
            let items = items.ok_or(ValueError::List)?;
            Ok((!items.is_empty()).then(|| items.join(",")))
        }
        value => plain(value).map(Some).ok_or(ValueError::Kind),
    }
}

fn plain(value: &DeValue) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(n) => Some(n.as_str().replace('_', "")),
        DeValue::Float(n) => Some(n.as_str().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_control::settings::table::*;

    /// The text has exactly one error, which begins with `want`.
    fn has_one_error(text: &str, want: &str) {
        let got = errors(text);
        assert_eq!(got.len(), 1, "{text}: {got:?}");
        assert!(got[0].starts_with(want), "{text}: {got:?}");
    }

    fn errors(text: &str) -> Vec<String> {
        judge(text).err().unwrap_or_default()
    }

    #[test]
    fn a_right_file_is_right() {
        assert_eq!(errors(include_str!("../../../etc/canvas.toml")), [""; 0]);
        assert_eq!(errors(""), [""; 0]);
        let all = r#"
[agent]
far = "64G"
timeliness = "off"
to = ["a:1", "b:2"]
copies = 2
[serve]
listen = "127.0.0.1:0"
memory = "1G"
connections = 16
gossip = "127.0.0.1:0"
join = ["a:3"]
[disk.vm]
size = "8G"
nbd = "/run/disk.sock"
far = "16G"
to = "agent"
[tenant.web]
local = "25%"
far = "4G"
spill_at = 70
timeliness = false
prefetch = "none"
require = true
to = ["agent"]
"#;
        assert_eq!(errors(all), [""; 0]);
    }

    #[test]
    fn each_error_has_its_line_and_says_what_to_write() {
        for (text, want) in [
            ("[agent]\nspin = \"10x\"\n", "2: [agent] spin: "),
            (
                "far = 1\n",
                "1: there is no section far; write [agent], [shared], [serve], [tenant.NAME] or [disk.NAME]",
            ),
            (
                "agent = 1\n",
                "1: agent is a section, not a key; write [agent]",
            ),
            (
                "\n\n[serve]\nmemry = \"1G\"\n",
                "4: there is no key memry in [serve]; see `canvas serve --help`",
            ),
            (
                "[agent]\nservers = [\"a:1\"]\n",
                "2: there is no key servers in [agent]; write to = \"HOST:PORT\"",
            ),
            (
                "[tenant.a]\nunits = \"4K\"\n",
                "2: there is no key units in [tenant.a]; did you mean unit; see",
            ),
            (
                "[agent]\nreplace = true\n",
                "2: there is no key replace in [agent]",
            ),
            (
                "[tenant.a]\nrequire = 1\n",
                "2: [tenant.a] require: it is a switch; write true or false",
            ),
            (
                "[tenant.\"a b\"]\n",
                "1: [tenant.a b]: it is not a tenant's name",
            ),
            (
                "[tenant]\nlocal = \"1G\"\n",
                "2: tenant.local is not a section; write [tenant.local]",
            ),
            (
                "[agent]\nfar = true\n",
                "2: [agent] far: its value is neither a string nor a number",
            ),
            ("[agent\n", "1: it is not TOML: "),
            (
                "[agent]\ntimeliness = \"maybe\"\n",
                "2: [agent] timeliness: it is neither; write on or off",
            ),
            (
                "[agent]\nspin = \"1ms\"\nspin = \"2ms\"\n",
                "3: it is not TOML: ",
            ),
            (
                "[agent]\ncopies = \"4\"\n",
                "2: [agent] copies: write one of 1+disk, 1+disk-async, 2",
            ),
        ] {
            has_one_error(text, want);
        }
        let two = errors("[agent]\nx = 1\n[serve]\ny = 2\n");
        assert!(
            two[0].starts_with("2: ") && two[1].starts_with("4: "),
            "{two:?}"
        );
    }

    #[test]
    fn what_makes_no_sense_for_a_disk_is_not_settled_for_one() {
        let disk = "[disk.vm]\nsize = \"8G\"\n";
        let all = "[tenant.vm]\npool = \"1G\"\npool_floor = \"8M\"\nfar = \"2G\"\ncopies = 2\nweight = 9\n\
                   swap_in_limit = \"1M/s\"\nswap_out_limit = \"1M/s\"\n[tenant.web]\nlocal = \"1G\"\n";
        assert_eq!(errors(&format!("{disk}{all}")), [""; 0]);
        let wrong = "[tenant.vm]\nlocal = \"1G\"\nslo = \"2%\"\n";
        assert_eq!(errors(wrong), [""; 0]);
        let want = |line: u32, key: &str| {
            format!(
                "{line}: [tenant.vm] {key}: vm is a disk ([disk.vm]), for which only pool, pool_floor, far, copies, \
                 weight, swap_in_limit and swap_out_limit can be set here; leave it out"
            )
        };
        let got = errors(&format!("{disk}{wrong}"));
        assert_eq!(got, [want(4, "local"), want(5, "slo")]);
    }

    #[test]
    fn what_only_an_operator_settles_is_no_flag_of_a_run() {
        let text = "[tenant.web]\npool = \"1G\"\npool_floor = \"8M\"\n";
        let mut sections = judge(text).unwrap();
        let section = sections.remove(0);
        assert_eq!(
            section.settings.iter().collect::<Vec<_>>(),
            [("pool", "1G")]
        );
        assert_eq!(
            section.floors.iter().collect::<Vec<_>>(),
            [("pool-floor", "8M")]
        );
        let small = "[tenant.web]\npool_floor = \"8K\"\n";
        let want = "2: [tenant.web] pool_floor: it is too small; write 1M or more";
        assert_eq!(errors(small), [want]);
    }

    #[test]
    fn the_bound_on_all_tenants_shared_memory_is_read_and_judged_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            settled(&file).unwrap_or_else(|e| panic!("{}", e.sentence))
        };
        let mib = |mib: u64| Size::from_bytes(mib << 20);
        let all = "[shared]\nlocal = \"1G\"\nfloor = \"32M\"\nceiling = \"512M\"\n[tenant.a]\nshared = \"2G\"\n\
                   shared_floor = \"64M\"\n";
        let now = read(all);
        let want = shared::Section {
            local: mib(1024),
            floor: Some(mib(32)),
            ceiling: Some(mib(512)),
        };
        assert_eq!(now.shared, Some(want));
        assert_eq!(now.terms["a"].shared_floor_bytes, Some(64 << 20));
        // A run of this tenant gets only the flag.
        let of_a = judge(all).unwrap().remove(1);
        assert_eq!(of_a.settings.iter().collect::<Vec<_>>(), [("shared", "2G")]);
        let bare = read("[shared]\nlocal = 67_108_864\n").shared.unwrap();
        assert_eq!(
            (bare.local, bare.floor, bare.ceiling),
            (mib(64), None, None)
        );
        assert_eq!(read("[agent]\n").shared, None);
        for (text, want) in [
            (
                "[shared]\n",
                "1: [shared]: local is missing; write how much of all tenants' shared memory may be in memory, such as local = \"1G\"",
            ),
            (
                "\n[shared]\nfloor = \"8M\"\n",
                "2: [shared]: local is missing; write ",
            ),
            (
                "shared = \"1G\"\n",
                "1: shared is a section, not a key; write [shared]",
            ),
            (
                "[shared]\nlocal = \"31M\"\n",
                "2: [shared]: local 31M is too small for several tenants; write 32M or more",
            ),
            (
                "[shared]\nlocal = \"64M\"\nfloor = \"512K\"\n",
                "3: [shared] floor: it is too small; write 1M or more",
            ),
            ("[shared]\nlocal = \"much\"\n", "2: [shared] local: "),
            (
                "[shared]\nlocal = true\n",
                "2: [shared] local: its value is neither a string nor a number",
            ),
            (
                "[shared]\nlocal = \"64M\"\n\nfloor = \"49M\"\n",
                "4: [shared]: floor 49M is more than three quarters of local 64M",
            ),
            (
                "[shared]\nlocal = \"64M\"\nceiling = \"65M\"\n",
                "3: [shared]: ceiling 65M is more than local 64M; write 64M or less",
            ),
            (
                "[shared]\nlocals = \"64M\"\n",
                "2: there is no key locals in [shared]; did you mean local; its keys are local, floor and ceiling",
            ),
            (
                "[tenant.a]\nshared_floor = \"50M\"\n[shared]\nlocal = \"64M\"\n",
                "4: [shared]: the floors of all tenants (shared_floor) come to 50M, which is more than three quarters of local 64M",
            ),
        ] {
            has_one_error(text, want);
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(
            &file,
            "[serve]\nlisten = \"127.0.0.1:7\"\nmemory = \"2G\"\nlease = \"9s\"\nconnections = 3\n",
        )
        .unwrap();
        let name = file.to_str().unwrap();
        let parse = |words: &[&str]| {
            let argv: Vec<OsString> = words.iter().map(OsString::from).collect();
            match parse(&argv) {
                Ok(cli) => match cli.command {
                    Command::Serve(args) => args,
                    _ => panic!("another command"),
                },
                Err(_) => panic!("it does not parse"),
            }
        };
        let args = parse(&["canvas", "serve", "--config", name, "--memory", "1G"]);
        let given = args.settings;
        assert_eq!(given.get(MEMORY).unwrap().bytes, 1 << 30);
        assert_eq!(given.value(LEASE).ns, 9_000_000_000);
        assert_eq!(given.value(CONNECTIONS), 3);
        assert_eq!(given.value(DRAIN).ns, 5_000_000_000);
    }
}
