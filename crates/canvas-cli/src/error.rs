//! Errors, as one sentence on standard error.

use std::ffi::OsStr;
use std::fmt::Display;

use canvas_agent::daemon::error::DaemonError;
use canvas_runner::RunError;
use canvas_types::exit;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::Cli;
use canvas_control::settings::Command as Owner;
use canvas_control::settings::text::flag_replaced;

pub use canvas_control::text::say;

/// Failure of a command: a sentence and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// Exit code (see [`canvas_types::exit`]).
    pub code: i32,
    /// One sentence, without a final stop.
    pub sentence: String,
}

impl Failure {
    /// `canvas run` itself failed.
    pub fn run(sentence: impl Display) -> Failure {
        Failure {
            code: exit::RUN_FAILED,
            sentence: sentence.to_string(),
        }
    }
    /// Invalid input to another command.
    pub fn usage(sentence: impl Display) -> Failure {
        Failure {
            code: exit::USAGE,
            sentence: sentence.to_string(),
        }
    }
}

impl From<RunError> for Failure {
    fn from(e: RunError) -> Failure {
        Failure {
            code: e.code(),
            sentence: e.to_string(),
        }
    }
}

impl From<DaemonError> for Failure {
    fn from(e: DaemonError) -> Failure {
        Failure {
            code: match e {
                DaemonError::NotReplaced { .. } => exit::NEGATIVE,
                _ => exit::USAGE,
            },
            sentence: e.to_string(),
        }
    }
}

/// Prints the parser's message and returns the exit code.
pub fn parser_answer(error: &clap::Error, argv: &[std::ffi::OsString]) -> i32 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is the reader's choice.
            let _ = error.print();
            exit::OK
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            exit::USAGE
        }
        _ => {
            say(sentence(error, argv));
            // Flags before the command take no values, so the first word is the command.
            let command = argv
                .iter()
                .skip(1)
                .find(|a| !a.as_encoded_bytes().starts_with(b"-"));
            if command.is_some_and(|c| c == "run" || c == "dispatch") {
                exit::RUN_FAILED
            } else {
                exit::USAGE
            }
        }
    }
}

fn context(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(s)) => vec![s.clone()],
        Some(ContextValue::Strings(v)) => v.clone(),
        Some(ContextValue::StyledStr(s)) => vec![s.to_string()],
        Some(ContextValue::StyledStrs(v)) => v.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    }
}

/// What is wrong with a flag's value, without the flag's name.
pub fn value_sentence(error: &clap::Error) -> String {
    match error.kind() {
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error);
            // The standard library's text is about its own types.
            match why.and_then(|e| e.downcast_ref::<std::num::ParseIntError>()) {
                None => why.map(ToString::to_string).unwrap_or_default(),
                Some(_) => {
                    "it is not a whole number, or is too large; write one such as 2".to_owned()
                }
            }
        }
        ErrorKind::InvalidValue => {
            let valid = context(error, ContextKind::ValidValue).join(", ");
            if valid.is_empty() {
                return "it has no value".to_owned();
            }
            format!("write one of {valid}")
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    }
}

/// An error of the parser as one sentence.
pub fn sentence(error: &clap::Error, argv: &[std::ffi::OsString]) -> String {
    let first = |kind| context(error, kind).into_iter().next().unwrap_or_default();
    let flag = first(ContextKind::InvalidArg);
    let value = first(ContextKind::InvalidValue);
    let help = format!("{} --help", named_command(argv));
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let near = first(ContextKind::SuggestedArg);
            if let Some(new) = owner(argv).and_then(|owner| flag_replaced(owner, &flag)) {
                return new;
            }
            let did_you = if near.is_empty() {
                String::new()
            } else {
                format!("did you mean {near}? ")
            };
            let what = if flag.starts_with('-') {
                "flag"
            } else {
                "argument"
            };
            format!("there is no {what} {flag}; {did_you}see `{help}`")
        }
        // The settings table's text is a sentence already.
        ErrorKind::Format => {
            let text = error.to_string();
            // The parser may add its usage after an empty line.
            let said = text.split("\n\n").next().unwrap_or_default();
            said.trim_start_matches("error: ").trim_end().to_owned()
        }
        ErrorKind::InvalidSubcommand => {
            let unknown = first(ContextKind::InvalidSubcommand);
            match unknown.as_str() {
                "bench" => {
                    "measurements are made by the program `lab`: write `lab run` (lab/README.md)"
                        .to_owned()
                }
                "workload" | "replay" | "report" => {
                    format!(
                        "this is part of the program `lab`: write `lab {unknown}` (lab/README.md)"
                    )
                }
                _ => format!("there is no command {unknown}; see `canvas --help`"),
            }
        }
        ErrorKind::MissingRequiredArgument if argv.get(1).is_some_and(|a| a == "run") => {
            "there is no program to run; write it after the flags: canvas run --local 1G -- CMD"
                .to_owned()
        }
        ErrorKind::MissingRequiredArgument
            if argv.get(1).is_some_and(|a| a == "dispatch") && flag.contains("CMD") =>
        {
            "there is no program to run; write it after the flags: canvas dispatch -- CMD"
                .to_owned()
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = context(error, ContextKind::InvalidArg).join(", ");
            format!("{missing} is missing; see `{help}`")
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            format!("{} has no value; see `{help}`", flag_name(&flag))
        }
        ErrorKind::InvalidValue => {
            let valid = context(error, ContextKind::ValidValue).join(", ");
            format!("{}: write one of {valid}", origin(&flag, &value, argv))
        }
        // The sentence already names the option.
        ErrorKind::ValueValidation if flag.starts_with("-o ") => value_sentence(error),
        ErrorKind::ValueValidation => {
            let why = value_sentence(error);
            format!("{}: {why}", origin(&flag, &value, argv))
        }
        ErrorKind::ArgumentConflict => {
            let other = context(error, ContextKind::PriorArg).join(" and ");
            if other == flag {
                format!("{} is given twice; write it once", flag_name(&flag))
            } else {
                format!("{flag} and {other} exclude each other; write one of them")
            }
        }
        ErrorKind::TooManyValues => {
            format!("{} takes no value {value}; see `{help}`", flag_name(&flag))
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            format!("{}; see `{help}`", line.trim_start_matches("error: "))
        }
    }
}

/// The command, if it has settings.
fn owner(argv: &[std::ffi::OsString]) -> Option<Owner> {
    let mut words = argv.iter().skip(1).filter_map(|word| word.to_str());
    Owner::named(words.find(|word| !word.starts_with('-'))?)
}

/// The command with its subcommand: `canvas config check`.
fn named_command(argv: &[std::ffi::OsString]) -> String {
    let mut name = "canvas".to_owned();
    let mut command = Cli::command();
    for word in argv.iter().skip(1).map_while(|a| a.to_str()) {
        let Some(next) = command.find_subcommand(word) else {
            break;
        };
        name = format!("{name} {word}");
        command = next.clone();
    }
    name
}

/// `--local` of `--local <SIZE|N%>`.
fn flag_name(flag: &str) -> &str {
    flag.split([' ', '=', '[']).next().unwrap_or(flag)
}

/// How an invalid value was given: `--local 4X`, or `CANVAS_LOCAL=4X`.
fn origin(flag: &str, value: &str, argv: &[std::ffi::OsString]) -> String {
    let name = flag_name(flag);
    let is_flag = |a: &&std::ffi::OsString| {
        let a: &OsStr = a;
        a == name
            || a.as_encoded_bytes()
                .starts_with(format!("{name}=").as_bytes())
    };
    let written = argv
        .iter()
        .take_while(|a| *a != "--")
        .find(is_flag)
        .is_some();
    let long = name.trim_start_matches('-');
    let variable = Cli::command()
        .get_subcommands()
        .flat_map(|c| c.get_arguments())
        .find(|a| a.get_long() == Some(long))
        .and_then(|a| a.get_env().map(OsStr::to_owned));
    match variable {
        Some(variable) if !written => format!("{}={value}", variable.display()),
        _ if !name.starts_with('-') => format!("{name} {value}"),
        _ if value.is_empty() => format!("{name} ''"),
        _ => format!("{name} {value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_control::settings::settings_of;

    /// No flag or argument of any command reports an invalid number in the standard library's
    /// words.
    #[test]
    fn no_value_is_judged_in_words_of_the_standard_library() {
        let mut judged = 0;
        let mut all = Cli::command();
        all.build();
        for command in all.get_subcommands() {
            for arg in command
                .get_arguments()
                .filter(|a| a.get_action().takes_values())
            {
                let flag = arg.get_long().map(|long| format!("--{long}=x"));
                let argv: Vec<std::ffi::OsString> = ["canvas", command.get_name()]
                    .into_iter()
                    .map(Into::into)
                    .chain([flag.unwrap_or_else(|| "x".to_owned()).into()])
                    .collect();
                let Err(error) = Cli::command().try_get_matches_from(&argv) else {
                    continue;
                };
                judged += usize::from(error.kind() == ErrorKind::ValueValidation);
                let said = sentence(&error, &argv);
                assert!(!said.contains("invalid digit"), "{argv:?}: {said}");
            }
        }
        for setting in Owner::ALL.into_iter().flat_map(settings_of) {
            if let Err(said) = setting.read("x") {
                judged += 1;
                assert!(!said.contains("invalid digit"), "{}: {said}", setting.name);
            }
        }
        assert!(judged > 40, "{judged} values were judged");
    }
}
