//! Makes flags, and `-o` for other settings, from the table of settings.

use std::ops::{Deref, DerefMut};

use canvas_control::settings::text::sentence;
use canvas_control::settings::{
    Command as Owner, OPTIONS_VARIABLE, Setting, SettingError, Settings, Shape, Source, settings_of,
};
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};

/// The settings given to a command by flags and environment variables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given<const OWNER: u8>(pub Settings);

/// Settings of `canvas run`.
pub type RunSettings = Given<{ Owner::Run as u8 }>;
/// Settings of `canvas disk`.
pub type DiskSettings = Given<{ Owner::Disk as u8 }>;
/// Settings of `canvas agent`.
pub type AgentSettings = Given<{ Owner::Agent as u8 }>;
/// Settings of `canvas serve`.
pub type ServeSettings = Given<{ Owner::Serve as u8 }>;

/// The argument id of `-o`.
const OPTION: &str = "option";
const OPTION_HELP: &str =
    "Set tunables, such as -o spill-at=70,unit=64K; `canvas help tunables` lists them.";
const OPTION_HELP_VARIABLE: &str = "Set tunables, such as -o spill-at=70,unit=64K; `canvas help tunables` lists them. CANVAS_OPTIONS holds more of them.";

impl<const OWNER: u8> Given<OWNER> {
    /// The command.
    fn owner() -> Owner {
        let is = |command: &Owner| *command as u8 == OWNER;
        Owner::ALL.into_iter().find(is).unwrap_or(Owner::Run)
    }

    /// Whether the command reads environment variables.
    fn reads_environment() -> bool {
        matches!(Self::owner(), Owner::Run | Owner::Disk)
    }
}

impl<const OWNER: u8> Deref for Given<OWNER> {
    type Target = Settings;
    fn deref(&self) -> &Settings {
        &self.0
    }
}

impl<const OWNER: u8> DerefMut for Given<OWNER> {
    fn deref_mut(&mut self) -> &mut Settings {
        &mut self.0
    }
}

impl<const OWNER: u8> Args for Given<OWNER> {
    fn augment_args(command: Command) -> Command {
        let owner = Self::owner();
        let rows = settings_of(owner).filter(|row| row.is_flag_of(owner));
        let help = match Self::reads_environment() {
            true => OPTION_HELP_VARIABLE,
            false => OPTION_HELP,
        };
        let option = Arg::new(OPTION)
            .short('o')
            .value_name("NAME=VALUE,...")
            .action(ArgAction::Append)
            .value_parser(move |text: &str| options(owner, text))
            .help(help);
        command
            .args(rows.map(|row| arg(row, Self::reads_environment())))
            .arg(option)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const OWNER: u8> FromArgMatches for Given<OWNER> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        given(Self::owner(), matches, Self::reads_environment())
            .map(Given)
            .map_err(|why| refused(&why))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Checks the text after `-o` while arguments are parsed.
fn options(owner: Owner, text: &str) -> Result<String, SettingError> {
    Settings::of(owner).give_options(text, Source::CommandLine, false)?;
    Ok(text.to_owned())
}

/// An error that the parser passes on.
fn refused(why: &SettingError) -> clap::Error {
    clap::Error::raw(ErrorKind::Format, why)
}

/// The flag for a row.
fn arg(row: &'static Setting, has_environment: bool) -> Arg {
    let mut arg = Arg::new(row.name).long(row.name).help(sentence(row));
    arg = match row.shape {
        Shape::Switch => return arg.action(ArgAction::SetTrue),
        Shape::List => arg.action(ArgAction::Append),
        Shape::One => arg.action(ArgAction::Set),
    };
    if let Some(variable) = row.variable.filter(|_| has_environment) {
        arg = arg.env(variable).hide_env_values(true);
    }
    if ["PATH", "FILE", "FILE.json"].contains(&row.values) {
        arg = arg.value_hint(ValueHint::AnyPath);
    }
    let is_word = |word: &str| word.bytes().all(|b| b.is_ascii_lowercase());
    let words: Vec<&'static str> = row.values.split('|').collect();
    if words.len() > 1 && words.iter().all(|word| is_word(word)) {
        arg = arg
            .value_parser(PossibleValuesParser::new(words))
            .hide_possible_values(true);
    }
    arg.value_name(row.values)
}

/// Collects settings from flags and environment variables.
fn given(
    owner: Owner,
    matches: &ArgMatches,
    has_environment: bool,
) -> Result<Settings, SettingError> {
    let mut settings = Settings::of(owner);
    let variable = std::env::var(OPTIONS_VARIABLE).unwrap_or_default();
    if has_environment {
        settings.give_options(&variable, Source::Options, true)?;
    }
    for row in settings_of(owner).filter(|row| row.is_flag_of(owner)) {
        let source = match matches.value_source(row.name) {
            Some(ValueSource::CommandLine) => Source::CommandLine,
            Some(ValueSource::EnvVariable) => Source::Variable,
            _ => continue,
        };
        if row.shape == Shape::Switch {
            if matches.get_flag(row.name) {
                settings.give(row.name, "on", source)?;
            }
            continue;
        }
        let values = matches.get_many::<String>(row.name);
        let values: Vec<&str> = values.into_iter().flatten().map(String::as_str).collect();
        settings.give(row.name, &values.join(","), source)?;
    }
    for options in matches.get_many::<String>(OPTION).into_iter().flatten() {
        settings.give_options(options, Source::CommandLine, false)?;
    }
    Ok(settings)
}

/// Arguments that give the settings again, to another process.
pub fn words(settings: &Settings) -> Vec<String> {
    let owner = settings.command();
    let word = |(name, value): (&'static str, &str)| {
        let row = canvas_control::settings::find(owner, name);
        let is_flag = row.is_some_and(|row| row.is_flag_of(owner));
        match row.map(|row| row.shape) {
            Some(Shape::Switch) if is_flag => (value == "on").then(|| format!("--{name}")),
            _ if is_flag => Some(format!("--{name}={value}")),
            _ => Some(format!("-o{name}={value}")),
        }
    };
    settings.iter().filter_map(word).collect()
}
