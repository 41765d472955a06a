//! The configuration file: flags of `canvas agent`, `canvas serve`, `canvas run --tenant NAME` and
//! `canvas disk --tenant NAME`, in TOML.
//!
//! Its keys are the flags' own names, with underscores; a value is what would stand behind the flag, as
//! a string, a number, true or a list. So nothing is defined twice: what a section adds is put in front
//! of the command's words and parsed with them. A flag or a CANVAS_* variable that is there wins.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use canvas_agent::daemon::shared::{self, HostShared};
use canvas_types::exit;
use canvas_types::units::{Size, UnitError};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::args::{Cli, Command, ConfigAction, ConfigArgs};
use crate::error::{Failure, say, value_sentence};
use crate::reason;
use crate::tenant_flags as flags;
use canvas_control::hello::SMALL_MIN;
use canvas_control::terms::Terms;

/// The file that is read when nobody names one.
const DEFAULT: &str = "/etc/canvas/canvas.toml";
/// Names another one.
const VARIABLE: &str = "CANVAS_CONFIG";
/// Larger files are no configuration.
const BYTES_MAX: u64 = 1 << 20;
/// Sections with a name, which `--tenant` says, and whose command's flags they have.
const NAMED: [(&str, &str); 2] = [("tenant", "run"), ("disk", "disk")];
/// Flags that make no sense in a file.
const NOT_HERE: [&str; 5] = ["config", "replace", "help", "command", "tenant"];

/// Keys of [tenant.NAME] that only the operator of an agent has: a run cannot ask for them.
const OPERATORS: [&str; 2] = ["pool_floor", "shared_floor"];
/// What all tenants' shared memory has: a section of the agent's, whose keys are no flags.
const SHARED: &str = "shared";
/// Its keys.
const SHARED_KEYS: [&str; 3] = ["local", "floor", "ceiling"];

/// What is wrong with a command line.
pub enum Wrong {
    /// Its words.
    Arguments(clap::Error),
    /// The file that it names.
    File(Failure),
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum FileError {
    /// The system does not let it be read.
    #[error("{} cannot be read: {}", .path.display(), reason(.source))]
    System {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is larger than any configuration.
    #[error(
        "{} cannot be read: it is larger than 1M; name a configuration file",
        .0.display()
    )]
    TooLarge(PathBuf),
}

/// Why the value of a key is not taken.
#[derive(Debug, thiserror::Error)]
enum ValueError {
    /// The flag takes no value.
    #[error("it is a switch; write true or false")]
    Switch,
    /// An item of its list is something else.
    #[error("its list is to hold strings")]
    List,
    /// It cannot stand behind a flag.
    #[error(
        "its value is neither a string nor a number; write it as behind the flag, in quotes: \
         \"4G\""
    )]
    Kind,
    /// The flag is not taken with it.
    #[error("{}", value_sentence(.0))]
    Refused(#[source] clap::Error),
}

/// Why a bound that only an operator has is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum BoundError {
    /// Its text is no size.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Nothing could work with it.
    #[error("it is too little to work with; write {min} or more", min = SMALL_MIN)]
    TooLittle,
}

/// Parses a command line, and what a configuration file adds to it.
pub fn parse(argv: &[OsString]) -> Result<Cli, Wrong> {
    parse_words(&words(argv)?)
}

/// The words of a command line with those that a configuration file adds.
pub fn words(argv: &[OsString]) -> Result<Vec<OsString>, Wrong> {
    Ok(match addition(argv)? {
        None => argv.to_vec(),
        Some((at, flags)) => [&argv[..=at], &flags, &argv[at + 1..]].concat(),
    })
}

/// Parses words to which nothing is added.
pub fn parse_words(words: &[OsString]) -> Result<Cli, Wrong> {
    let matches = Cli::command().try_get_matches_from(words);
    matches
        .and_then(|m| Cli::from_arg_matches(&m))
        .map_err(Wrong::Arguments)
}

/// Flags that say how far memory is kept. In a file or a variable they are for the runs that have any.
const ABOUT_FAR: [&str; 10] = [
    "far_dir",
    "copies",
    "far_reserve",
    "far_spin",
    "far_wait",
    "key_file",
    "lanes",
    "links",
    "spill_at",
    "unit",
];

/// Notes which of the flags about far memory stand in the command line itself.
pub fn note_about_far(argv: &[OsString], cli: &mut Cli) {
    let beyond = match &mut cli.command {
        Command::Run(args) => &mut args.beyond,
        Command::Disk(args) => &mut args.beyond,
        _ => return,
    };
    let Ok(matches) = Cli::command().try_get_matches_from(argv) else {
        return;
    };
    let Some((_, given)) = matches.subcommand() else {
        return;
    };
    let written = |id: &&&str| given.value_source(id) == Some(ValueSource::CommandLine);
    let first = ABOUT_FAR.iter().find(written);
    beyond.about_far = first.map(|id| format!("--{}", id.replace('_', "-")));
}

/// Flags that the file adds, and behind which word they go. What is wrong with the words themselves
/// shows when they are parsed.
fn addition(argv: &[OsString]) -> Result<Option<(usize, Vec<OsString>)>, Wrong> {
    let first = argv.iter().skip(1).position(|word| !is_flag(word));
    let Some(at) = first.map(|n| n + 1) else {
        return Ok(None);
    };
    let Some(name) = argv[at]
        .to_str()
        .filter(|n| ["agent", "serve", "run", "disk"].contains(n))
    else {
        return Ok(None);
    };
    // What is required may stand in the file.
    let lenient = Cli::command().mut_subcommand(name, |c| c.mut_args(|a| a.required(false)));
    let Ok(matches) = lenient.try_get_matches_from(argv) else {
        return Ok(None);
    };
    let Some((_, given)) = matches.subcommand() else {
        return Ok(None);
    };
    let by_tenant = NAMED.iter().find(|(_, command)| *command == name);
    let (file, section) = if let Some((kind, _)) = by_tenant {
        let Some(tenant) = given.get_one::<String>("tenant") else {
            return Ok(None);
        };
        match default_file() {
            Some(file) => (file, vec![(*kind).to_owned(), tenant.clone()]),
            None => return Ok(None),
        }
    } else {
        match given.get_one::<PathBuf>("config") {
            Some(file) => (file.clone(), vec![name.to_owned()]),
            None => return Ok(None),
        }
    };
    let code = if name == "run" {
        exit::RUN_FAILED
    } else {
        exit::USAGE
    };
    let wrong = |sentence| Wrong::File(Failure { code, sentence });
    let text = match read(&file) {
        Ok(text) => text,
        // The host's file is its operator's; the program starts without what it says.
        Err(why) if by_tenant.is_some() && file == Path::new(DEFAULT) => {
            say(format_args!("{why}; this {name} goes without it"));
            return Ok(None);
        }
        Err(why) => return Err(wrong(why.to_string())),
    };
    let alone = |errors| match &section[..] {
        [kind, tenant] => judge(&alone(&text, kind, tenant)).map_err(|_| errors),
        _ => Err(errors),
    };
    let sections = judge(&text).or_else(alone).map_err(|errors| {
        let n = errors.len();
        let more = match n {
            1 => String::new(),
            n => format!(
                " ({n} errors: see `canvas config check {}`)",
                file.display()
            ),
        };
        let first = errors.into_iter().next().unwrap_or_default();
        wrong(format!("{}:{first}{more}", file.display()))
    })?;
    let settings = sections.into_iter().find(|s| s.name == section);
    let flags = settings.map_or_else(Vec::new, |s| s.flags_beside(given));
    Ok(Some((at, flags)))
}

fn is_flag(word: &OsStr) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}

/// The file that counts when no flag names one.
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

/// What an agent's file settles for its tenants.
#[derive(Default)]
pub struct Settled {
    /// Sections [tenant.NAME], by name.
    pub terms: BTreeMap<String, Terms>,
    /// Section [shared].
    pub shared: Option<shared::Section>,
}

/// Reads what an agent's file settles for its tenants.
pub fn settled(file: &Path) -> Result<Settled, Failure> {
    let text = read(file).map_err(Failure::usage)?;
    // The file was right when the command line was parsed.
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
        [kind, name] if kind == "tenant" => Some((name.clone(), flags::terms_of(s.values()))),
        _ => None,
    };
    sections.iter().filter_map(terms).collect()
}

/// Section [shared], where there is one with a bound.
fn shared_in(sections: &[Section]) -> Option<shared::Section> {
    let section = sections.iter().find(|s| s.name == [SHARED])?;
    let size = |wanted: &str| {
        let value = section.values().find(|(key, _)| *key == wanted)?.1;
        value.parse::<Size>().ok()
    };
    let [local, floor, ceiling] = SHARED_KEYS.map(size);
    Some(shared::Section {
        local: local?,
        floor,
        ceiling,
    })
}

/// Says where section [shared] makes no sense as a whole.
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

/// `canvas config`.
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

/// One section of a file, all right in itself.
#[derive(Debug)]
struct Section {
    /// Its name, in parts.
    name: Vec<String>,
    /// Key and flag.
    flags: Vec<(String, String)>,
}

impl Section {
    /// Keys and values, without switches.
    fn values(&self) -> impl Iterator<Item = (&str, &str)> {
        self.flags.iter().filter_map(|(key, flag)| {
            let (_, value) = flag.split_once('=')?;
            Some((key.as_str(), value))
        })
    }

    /// Its flags, but those that the words or the environment have.
    fn flags_beside(self, given: &ArgMatches) -> Vec<OsString> {
        let wins = |key: &str| {
            matches!(
                given.value_source(key),
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            )
        };
        self.flags
            .into_iter()
            .filter(|(key, _)| !OPERATORS.contains(&key.as_str()) && !wins(key))
            .map(|(_, flag)| flag.into())
            .collect()
    }
}

/// A file in which all lines but those of section [KIND.NAME] (or of a section [KIND]) are empty: what is
/// wrong in other sections is nothing to a tenant.
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

/// Judges a whole file: its sections, or each error as "LINE: SENTENCE".
fn judge(text: &str) -> Result<Vec<Section>, Vec<String>> {
    let at = |place: usize| text[..place.min(text.len())].matches('\n').count() + 1;
    let (table, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        let line = |e: &toml::de::Error| {
            let place = e.span().map_or(0, |s| s.start);
            let why = e.message().lines().next().unwrap_or_default();
            format!("{}: it is no TOML: {why}", at(place))
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
                sections.push(section(name, named, keys, &at, &mut errors));
            }
            ("tenant" | "disk", DeValue::Table(tenants)) => {
                let command = NAMED.iter().find(|(kind, _)| *kind == named);
                let command = command.map_or("", |(_, command)| command);
                for (tenant, value) in tenants {
                    let line = at(tenant.span().start);
                    let kind = named;
                    let named = tenant.get_ref().as_ref();
                    if let Err(why) = canvas_control::names::judge_name(named) {
                        errors.push((line, format!("[{kind}.{named}]: {why}")));
                    } else if let DeValue::Table(keys) = value.get_ref() {
                        let name = vec![kind.to_owned(), named.to_owned()];
                        sections.push(section(name, command, keys, &at, &mut errors));
                    } else {
                        errors.push((
                            line,
                            format!("{kind}.{named} is no section; write [{kind}.{named}]"),
                        ));
                    }
                }
            }
            ("agent" | "serve" | SHARED | "tenant" | "disk", _) => errors.push((
                line,
                format!("{named} is no key but a section; write [{named}]"),
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

/// Of a tenant that is a disk its agent's operator settles less than of a run.
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
                    "[tenant.{name}] {named}: {name} is a disk ([disk.{name}]), of which only {} and {last} are settled; leave it out",
                    first.join(", ")
                );
                errors.push((at(key.span().start), why));
            }
        }
    }
}

/// One section, whose keys are the flags of `canvas COMMAND`.
fn section(
    name: Vec<String>,
    command: &str,
    keys: &DeTable,
    at: &dyn Fn(usize) -> usize,
    errors: &mut Vec<(usize, String)>,
) -> Section {
    let shown = name.join(".");
    let cli = Cli::command();
    let mut known: Vec<&Arg> = cli
        .find_subcommand(command)
        .map(|c| c.get_arguments().collect())
        .unwrap_or_default();
    let own = match command {
        "run" => OPERATORS.map(bound_arg).to_vec(),
        SHARED => SHARED_KEYS.map(bound_arg).to_vec(),
        _ => Vec::new(),
    };
    known.extend(&own);
    let mut flags = Vec::new();
    for (key, value) in keys {
        let line = at(key.span().start);
        let named = key.get_ref().as_ref();
        let arg = known.iter().find(|a| {
            a.get_id() == named
                && a.get_long().is_some()
                && !a.is_hide_set()
                && !NOT_HERE.contains(&named)
        });
        let Some(arg) = arg else {
            let near = nearest(named, &known);
            let all = match command {
                SHARED => "its keys are local, floor and ceiling".to_owned(),
                _ => format!("see `canvas {command} --help`: its flags are the keys, with _ for -"),
            };
            let why = format!("there is no key {named} in [{shown}]{near}; {all}");
            errors.push((line, why));
            continue;
        };
        let taken = flag(arg, value).and_then(|flag| match flag {
            Some(flag) => try_flag(&known, &flag).map(|()| Some(flag)),
            None => Ok(None),
        });
        match taken {
            Ok(Some(flag)) => flags.push((named.to_owned(), flag)),
            Ok(None) => {}
            Err(why) => errors.push((line, format!("[{shown}] {named}: {why}"))),
        }
    }
    Section { name, flags }
}

/// A key that is no flag of a command's, whose value is a size.
fn bound_arg(key: &'static str) -> Arg {
    let size = |text: &str| match text.parse::<Size>()? {
        size if size < SMALL_MIN => Err(BoundError::TooLittle),
        size => Ok(size),
    };
    Arg::new(key).long(key).value_parser(size)
}

/// A key that is written nearly so.
fn nearest(named: &str, known: &[&Arg]) -> String {
    let same = |a: &str, b: &str| {
        let plain = |s: &str| s.replace(['-', '_'], "").to_lowercase();
        let (a, b) = (plain(a), plain(b));
        a == b || a.trim_end_matches('s') == b.trim_end_matches('s')
    };
    let near = known.iter().map(|a| a.get_id().as_str());
    let near = near.filter(|id| !NOT_HERE.contains(id));
    near.into_iter()
        .find(|id| same(id, named))
        .map_or_else(String::new, |id| format!("; did you mean {id}"))
}

/// The flag that a value stands for, as one word; `None` for one that is not to be given.
fn flag(arg: &Arg, value: &Spanned<DeValue>) -> Result<Option<String>, ValueError> {
    let long = arg.get_long().unwrap_or_default();
    let switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let may_be_bare = arg.get_num_args().is_some_and(|n| n.min_values() == 0);
    let text = match value.get_ref() {
        DeValue::Boolean(on) if switch || may_be_bare => {
            return Ok(on.then(|| format!("--{long}")));
        }
        _ if switch => return Err(ValueError::Switch),
        DeValue::Array(items) if arg.get_value_delimiter().is_some() => {
            let items: Option<Vec<String>> = items.iter().map(|i| plain(i.get_ref())).collect();
            let items = items.ok_or(ValueError::List)?;
            if items.is_empty() {
                return Ok(None);
            }
            items.join(",")
        }
        value => plain(value).ok_or(ValueError::Kind)?,
    };
    Ok(Some(format!("--{long}={text}")))
}

fn plain(value: &DeValue) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(n) => Some(n.as_str().replace('_', "")),
        DeValue::Float(n) => Some(n.as_str().to_owned()),
        _ => None,
    }
}

/// Would the flag be taken, beside the flags that it asks for?
fn try_flag(known: &[&Arg], flag: &str) -> Result<(), ValueError> {
    let all = known.iter().map(|arg| (*arg).clone().required(false));
    let command = clap::Command::new("canvas")
        .disable_help_flag(true)
        .args(all);
    match command.try_get_matches_from(["canvas", flag]) {
        Err(e) if e.kind() != ErrorKind::MissingRequiredArgument => Err(ValueError::Refused(e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;

    /// There is one error in it, which begins so.
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
far_max = "64G"
timeliness = "off"
servers = ["a:1", "b:2"]
copies = 2
[serve]
listen = "127.0.0.1:0"
memory = "1G"
links = 16
gossip = "127.0.0.1:0"
seeds = ["a:3"]
[disk.vm]
size = "8G"
nbd = "/run/disk.sock"
far = "16G"
agent = true
[tenant.web]
local = "25%"
far = "4G"
spill_at = 70
far_timeliness = "off"
no_prefetch = true
agent = true
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
                "1: agent is no key but a section; write [agent]",
            ),
            (
                "\n\n[serve]\nmemry = \"1G\"\n",
                "4: there is no key memry in [serve]; see `canvas serve --help`",
            ),
            (
                "[agent]\nserver = [\"a:1\"]\n",
                "2: there is no key server in [agent]; did you mean servers; see",
            ),
            (
                "[agent]\nreplace = true\n",
                "2: there is no key replace in [agent]",
            ),
            (
                "[tenant.a]\nno_prefetch = 1\n",
                "2: [tenant.a] no_prefetch: it is a switch; write true or false",
            ),
            (
                "[tenant.\"a b\"]\n",
                "1: [tenant.a b]: it is no name of a tenant",
            ),
            (
                "[tenant]\nlocal = \"1G\"\n",
                "2: tenant.local is no section; write [tenant.local]",
            ),
            (
                "[agent]\nfar_max = true\n",
                "2: [agent] far_max: its value is neither a string nor a number",
            ),
            ("[agent\n", "1: it is no TOML: "),
            (
                "[agent]\ntimeliness = \"no\"\n",
                "2: [agent] timeliness: write one of on, off",
            ),
            (
                "[agent]\nspin = \"1ms\"\nspin = \"2ms\"\n",
                "3: it is no TOML: ",
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
                "{line}: [tenant.vm] {key}: vm is a disk ([disk.vm]), of which only pool, pool_floor, far, copies, \
                 weight, swap_in_limit and swap_out_limit are settled; leave it out"
            )
        };
        let got = errors(&format!("{disk}{wrong}"));
        assert_eq!(got, [want(4, "local"), want(5, "slo")]);
    }

    #[test]
    fn what_only_an_operator_settles_is_no_flag_of_a_run() {
        let text = "[tenant.web]\npool = \"1G\"\npool_floor = \"8M\"\n";
        let mut sections = judge(text).unwrap();
        let argv = ["canvas", "run", "--", "true"];
        let given = Cli::command().try_get_matches_from(argv).unwrap();
        let (_, given) = given.subcommand().unwrap();
        assert_eq!(sections.remove(0).flags_beside(given), ["--pool=1G"]);
        let small = "[tenant.web]\npool_floor = \"8K\"\n";
        let want = "2: [tenant.web] pool_floor: it is too little to work with; write 1M or more";
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
        // What a run of that tenant gets of it is the flag alone.
        let given = Cli::command().try_get_matches_from(["canvas", "run", "--", "true"]);
        let given = given.unwrap();
        let of_a = judge(all).unwrap().remove(1);
        assert_eq!(
            of_a.flags_beside(given.subcommand().unwrap().1),
            ["--shared=2G"]
        );
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
                "1: shared is no key but a section; write [shared]",
            ),
            (
                "[shared]\nlocal = \"31M\"\n",
                "2: [shared]: local 31M is too little for several tenants; write 32M or more",
            ),
            (
                "[shared]\nlocal = \"64M\"\nfloor = \"512K\"\n",
                "3: [shared] floor: it is too little to work with; write 1M or more",
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
            "[serve]\nlisten = \"127.0.0.1:7\"\nmemory = \"2G\"\nlease = \"9s\"\nlinks = 3\n",
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
        assert_eq!((args.memory.bytes, args.lease.ns), (1 << 30, 9_000_000_000));
        assert_eq!((args.links, args.drain.ns), (3, 5_000_000_000));
    }
}
