//! Every setting of `canvas run`, `canvas disk`, `canvas agent` and `canvas serve`, in one table.
//!
//! A row has the name, the values, the default, one sentence, the commands that have the setting,
//! whether it is a flag of each, and where it can be changed at run time. The flags, `-o
//! NAME=VALUE`, `CANVAS_OPTIONS`, the keys of the configuration file and of `canvas set`, help,
//! manual, completions and docs/TUNABLES.md are made from the rows: to add a setting, add a row to
//! [`table`] and use it where it takes effect.

pub mod given;
pub mod table;
pub mod text;
pub mod value;

use std::marker::PhantomData;

pub use given::{Difference, OPTIONS_VARIABLE, SettingError, Settings, Source};
pub use table::TABLE;
pub use value::{Destination, Faults, Reserve, Switch, Threads, Value};

/// Most serving threads of an agent.
pub const THREADS_MAX: usize = 64;
/// Most tenants that an agent keeps prepared.
pub const WARM_MAX: u8 = 16;
/// Most queues of a disk.
pub const QUEUES_MAX: u16 = 32;

/// A command with settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Command {
    /// `canvas run`.
    Run = 1,
    /// `canvas disk`.
    Disk = 2,
    /// `canvas agent`.
    Agent = 4,
    /// `canvas serve`.
    Serve = 8,
    /// Not a command: what an agent's operator sets for a tenant, in addition to settings of
    /// `canvas run`.
    Operator = 16,
}

impl Command {
    /// The real commands.
    pub const ALL: [Command; 4] = [Command::Run, Command::Disk, Command::Agent, Command::Serve];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Command::Run => "run",
            Command::Disk => "disk",
            Command::Agent => "agent",
            Command::Serve => "serve",
            Command::Operator => "operator",
        }
    }

    /// The command with this name.
    pub fn named(name: &str) -> Option<Command> {
        Command::ALL.into_iter().find(|c| c.name() == name)
    }
}

/// The form of a setting's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One value.
    One,
    /// Values separated by commas.
    List,
    /// Nothing: a flag that is there or not.
    Switch,
}

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name: the flag without `--`, the option, the key of `canvas set`.
    pub name: &'static str,
    /// The form of its values, for help.
    pub values: &'static str,
    /// The default: a value, or a description; empty if there is none.
    pub default: &'static str,
    /// Its purpose, in a sentence or two.
    pub text: &'static str,
    /// The form of its values.
    pub shape: Shape,
    /// Its own environment variable.
    pub variable: Option<&'static str>,
    /// Whether it may change or be removed in any version.
    pub experimental: bool,
    /// Whether it belongs to the whole tenant: runs that join must agree.
    pub is_tenants: bool,
    of: u8,
    flag_of: u8,
    live_in: u8,
    read: fn(&str) -> Result<String, String>,
    same: fn(&str, &str) -> bool,
}

/// The name of a setting, with the type of its values.
#[derive(Debug)]
pub struct Key<T> {
    /// The name.
    pub name: &'static str,
    values: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    const fn new(name: &'static str) -> Key<T> {
        Key {
            name,
            values: PhantomData,
        }
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl Setting {
    const fn new<T: Value>(key: Key<T>, values: &'static str, text: &'static str) -> Setting {
        Setting {
            name: key.name,
            values,
            default: "",
            text,
            shape: Shape::One,
            variable: None,
            experimental: false,
            is_tenants: false,
            of: 0,
            flag_of: 0,
            live_in: 0,
            read: |text| T::read(text).map(|value| value.write()),
            same: |a, b| a == b,
        }
    }

    /// Sets the parser, which also checks the range.
    const fn read_by(mut self, read: fn(&str) -> Result<String, String>) -> Setting {
        self.read = read;
        self
    }

    /// Sets when two values count as equal.
    const fn same_by(mut self, same: fn(&str, &str) -> bool) -> Setting {
        self.same = same;
        self
    }

    const fn default(mut self, default: &'static str) -> Setting {
        self.default = default;
        self
    }

    const fn variable(mut self, variable: &'static str) -> Setting {
        self.variable = Some(variable);
        self
    }

    const fn list(mut self) -> Setting {
        self.shape = Shape::List;
        self
    }

    const fn switch(mut self) -> Setting {
        self.shape = Shape::Switch;
        self
    }

    const fn experimental(mut self) -> Setting {
        self.experimental = true;
        self
    }

    const fn of_tenants(mut self) -> Setting {
        self.is_tenants = true;
        self
    }

    /// Makes it a flag of these commands.
    const fn flag(mut self, commands: u8) -> Setting {
        self.of |= commands;
        self.flag_of |= commands;
        self
    }

    /// Makes it an option of these commands.
    const fn option(mut self, commands: u8) -> Setting {
        self.of |= commands;
        self
    }

    /// Lets `canvas set` change it for what these commands started.
    const fn live(mut self, commands: u8) -> Setting {
        self.live_in |= commands;
        self
    }

    /// Whether the command has it.
    pub const fn is_of(&self, command: Command) -> bool {
        self.of & command as u8 != 0
    }

    /// Whether it is a flag of the command.
    pub const fn is_flag_of(&self, command: Command) -> bool {
        self.flag_of & command as u8 != 0
    }

    /// Whether it is an option of the command, not a flag.
    pub const fn is_tunable_of(&self, command: Command) -> bool {
        self.is_of(command) && !self.is_flag_of(command)
    }

    /// Whether it can be changed while the command runs.
    pub const fn is_live_in(&self, command: Command) -> bool {
        self.live_in & command as u8 != 0
    }

    /// Its key in the configuration file.
    pub fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// Parses a value into its stored form; the error says what is wrong with it.
    pub fn read(&self, text: &str) -> Result<String, String> {
        (self.read)(text)
    }

    /// Whether the two values are equal in effect.
    pub fn is_same(&self, a: &str, b: &str) -> bool {
        (self.same)(a, b)
    }
}

/// The command's setting of this name.
pub fn find(command: Command, name: &str) -> Option<&'static Setting> {
    settings_of(command).find(|row| row.name == name)
}

/// The settings of a command.
pub fn settings_of(command: Command) -> impl Iterator<Item = &'static Setting> {
    TABLE.iter().filter(move |row| row.is_of(command))
}

/// Names of the settings that can be changed at run time.
pub fn live_in(command: Command) -> Vec<&'static str> {
    let rows = TABLE.iter().filter(|row| row.is_live_in(command));
    rows.map(|row| row.name).collect()
}

/// The error for an unknown option.
fn unknown(command: Command, name: &str) -> String {
    if let Some(new) = text::renamed(command, name) {
        return new;
    }
    if let Some(row) = TABLE.iter().find(|row| row.name == name) {
        let commands: Vec<String> = Command::ALL
            .into_iter()
            .filter(|c| row.is_of(*c))
            .map(|c| format!("canvas {}", c.name()))
            .collect();
        return format!(
            "`canvas {}` has no option {name}, which is one of {}",
            command.name(),
            commands.join(" and ")
        );
    }
    let plain = |s: &str| s.replace(['-', '_'], "").to_lowercase();
    let same = |row: &&Setting| {
        let (a, b) = (plain(row.name), plain(name));
        a == b || a.trim_end_matches('s') == b.trim_end_matches('s')
    };
    let near = settings_of(command).find(same);
    let near = near.map_or(String::new(), |row| format!("did you mean {}? ", row.name));
    format!("there is no option {name}; {near}see `canvas help tunables`")
}

#[cfg(test)]
mod tests;
