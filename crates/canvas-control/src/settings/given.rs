//! Values given for settings: on the command line, in the environment or in the file.

use std::collections::BTreeMap;
use std::fmt;

use super::{Command, Key, Setting, TABLE, Value, find};

/// Where a value comes from. Later ones win.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// The configuration file.
    File,
    /// `CANVAS_OPTIONS`.
    Options,
    /// The setting's own environment variable.
    Variable,
    /// The command line.
    CommandLine,
}

/// The environment variable with options.
pub const OPTIONS_VARIABLE: &str = "CANVAS_OPTIONS";

/// A value that was given.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Given {
    text: String,
    source: Source,
}

/// The values given to a command. Other settings have their defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    command: Command,
    given: BTreeMap<&'static str, Given>,
}

/// Why a setting is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingError {
    /// There is no setting of this name.
    #[error("{0}")]
    Unknown(String),
    /// The value is not valid.
    #[error("{written}: {why}")]
    Value {
        /// The setting with its value, as written.
        written: String,
        /// What is wrong with it.
        why: String,
    },
}

/// A setting that a joining run gives differently from its tenant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The setting as the user wrote it.
    pub setting: String,
    /// The run's value.
    pub asked: String,
    /// The tenant's value.
    pub has: String,
}

impl Settings {
    /// Without any values.
    pub fn of(command: Command) -> Settings {
        Settings {
            command,
            given: BTreeMap::new(),
        }
    }

    /// The command that they belong to.
    pub fn command(&self) -> Command {
        self.command
    }

    /// The row of `name`, or an error.
    fn row(&self, name: &str) -> Result<&'static Setting, SettingError> {
        find(self.command, name)
            .ok_or_else(|| SettingError::Unknown(super::unknown(self.command, name)))
    }

    /// Adds a value, unless a winning source gave one already.
    pub fn give(&mut self, name: &str, text: &str, source: Source) -> Result<(), SettingError> {
        let row = self.row(name)?;
        let text = row.read(text).map_err(|why| SettingError::Value {
            written: written(row, text, self.command, source),
            why,
        })?;
        let stays = self.given.get(row.name).is_some_and(|g| g.source > source);
        if !stays {
            self.given.insert(row.name, Given { text, source });
        }
        Ok(())
    }

    /// Adds options in the form of -o and `CANVAS_OPTIONS`. With `foreign`, options that only other
    /// commands have are ignored.
    pub fn give_options(
        &mut self,
        text: &str,
        source: Source,
        foreign: bool,
    ) -> Result<(), SettingError> {
        for (name, value) in options_in(text, source == Source::Options)? {
            if foreign
                && find(self.command, &name).is_none()
                && TABLE.iter().any(|row| row.name == name)
            {
                continue;
            }
            self.give(&name, &value, source)?;
        }
        Ok(())
    }

    /// Sets a value, whatever was given before.
    pub fn put<T: Value>(&mut self, key: Key<T>, value: &T) {
        let text = value.write();
        let source = Source::CommandLine;
        self.given.insert(key.name, Given { text, source });
    }

    /// The value that was given.
    pub fn get<T: Value>(&self, key: Key<T>) -> Option<T> {
        let given = self.given.get(key.name)?;
        // It was checked when it was given.
        T::read(&given.text).ok()
    }

    /// The value that was given, or the default.
    ///
    /// # Panics
    ///
    /// If the setting's default is not a value; a test checks this for all settings read this way.
    pub fn value<T: Value>(&self, key: Key<T>) -> T {
        self.get(key).unwrap_or_else(|| {
            let row = find(self.command, key.name);
            let default = row.and_then(|row| T::read(row.default).ok());
            default.unwrap_or_else(|| panic!("{} has no default", key.name))
        })
    }

    /// Whether a value was given.
    pub fn has<T>(&self, key: Key<T>) -> bool {
        self.given.contains_key(key.name)
    }

    /// The source of the given value.
    pub fn source<T>(&self, key: Key<T>) -> Option<Source> {
        Some(self.given.get(key.name)?.source)
    }

    /// Removes the given value.
    pub fn remove<T>(&mut self, key: Key<T>) {
        self.given.remove(key.name);
    }

    /// Names and values that were given.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.given.iter().map(|(name, g)| (*name, g.text.as_str()))
    }

    /// The setting as its user wrote it: `--pool`, `-o unit` or `CANVAS_LOCAL`.
    pub fn spelled<T>(&self, key: Key<T>) -> String {
        let source = self.source(key).unwrap_or(Source::CommandLine);
        match find(self.command, key.name) {
            Some(row) => spelled(row, self.command, source),
            None => key.name.to_owned(),
        }
    }

    /// The setting as its user wrote it, with its value.
    pub fn written<T>(&self, key: Key<T>) -> String {
        let text = self.given.get(key.name).map_or("", |g| g.text.as_str());
        let source = self.source(key).unwrap_or(Source::CommandLine);
        match find(self.command, key.name) {
            Some(row) => written(row, text, self.command, source),
            None => key.name.to_owned(),
        }
    }

    /// The first setting of a whole tenant that was given here and differs in `there`. Settings
    /// that `there` does not have are not compared.
    pub fn differs(&self, there: &Settings) -> Option<Difference> {
        let rows = TABLE.iter().filter(|row| row.is_tenants);
        rows.filter(|row| row.is_of(self.command)).find_map(|row| {
            let (asked, has) = (self.given.get(row.name)?, there.given.get(row.name)?);
            (!row.is_same(&asked.text, &has.text)).then(|| Difference {
                setting: spelled(row, self.command, asked.source),
                asked: asked.text.clone(),
                has: match has.text.as_str() {
                    "" => "none".to_owned(),
                    text => text.to_owned(),
                },
            })
        })
    }
}

/// A setting in the form of its source.
fn spelled(row: &Setting, command: Command, source: Source) -> String {
    match (source, row.variable) {
        (Source::Variable, Some(variable)) => variable.to_owned(),
        (Source::Options, _) => format!("{OPTIONS_VARIABLE}: {}", row.name),
        (Source::File, _) => row.key(),
        _ if row.is_flag_of(command) => format!("--{}", row.name),
        _ => format!("-o {}", row.name),
    }
}

/// A setting with its value, in the form of its source.
fn written(row: &Setting, text: &str, command: Command, source: Source) -> String {
    let spelled = spelled(row, command, source);
    match source {
        Source::File => format!("{spelled} = {text}"),
        Source::CommandLine if row.is_flag_of(command) && text.is_empty() => {
            format!("{spelled} ''")
        }
        Source::CommandLine if row.is_flag_of(command) => format!("{spelled} {text}"),
        _ => format!("{spelled}={text}"),
    }
}

/// Splits a list such as `unit=4K,numa=1=1G,2=2G` into names and values; in an environment
/// variable, spaces separate them as well. A piece that does not begin with `NAME=` belongs to the
/// value before it.
fn options_in(text: &str, spaces: bool) -> Result<Vec<(String, String)>, SettingError> {
    let parts = |c: char| c == ',' || spaces && c.is_whitespace();
    let mut found: Vec<(String, String)> = Vec::new();
    for piece in text.split(parts).filter(|piece| !piece.is_empty()) {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        };
        match (piece.split_once('='), found.last_mut()) {
            (Some((name, value)), _) if is_name(name) => {
                found.push((name.to_owned(), value.to_owned()));
            }
            (_, Some((_, value))) => {
                value.push(',');
                value.push_str(piece);
            }
            (_, None) => {
                return Err(SettingError::Unknown(format!(
                    "-o {piece} is no option; write NAME=VALUE (`canvas help tunables` lists the names)"
                )));
            }
        }
    }
    Ok(found)
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference {
            setting,
            asked,
            has,
        } = self;
        write!(
            f,
            "{setting} {asked} differs from the tenant's setting, {has}; leave it out, or change the tenant with `canvas set`"
        )
    }
}
