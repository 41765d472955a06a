//! The log: one line on standard error for each event, bounded so that no peer can fill a disk.
//!
//! Crates report events by `tracing`; this module gives them the form of lines. Control characters
//! are escaped: what a peer sends cannot forge a line, or drive a terminal.

use std::collections::HashMap;
use std::fmt::{self, Debug, Write as _};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

use crate::args::Command;

/// Most lines of a kind per period: of a daemon, and of a run's agent.
const LINES_OF_A_PERIOD: u32 = 5;
const LINES_OF_A_RUN: u32 = 1;
/// The period.
const PERIOD: Duration = Duration::from_secs(10);
/// Most kinds of lines that are counted separately by more than their place in the code.
const KINDS_MAX: usize = 4096;
/// Field that tells kinds of one place in the code apart, and is not written.
const ABOUT: &str = "about";
/// Field with the tenant's name; lines about each tenant are of their own kind.
const TENANT: &str = "tenant";

/// The form of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// For the user of a run, between the program's own lines: `canvas: ` and the sentence.
    Run,
    /// For a file or a terminal: time, level, sentence and fields.
    Readable,
    /// For systemd's journal, which adds the time: sd-daemon(3)'s prefix, sentence and fields.
    Journal,
}

/// Whether lines go to the journal.
static IS_JOURNAL: AtomicBool = AtomicBool::new(false);

/// Says why the command ends: to the journal as an error, elsewhere as any command does.
pub fn fatal(sentence: &str) {
    if IS_JOURNAL.load(Relaxed) {
        // A closed stderr is the caller's choice.
        let _ = writeln!(
            io::stderr(),
            "<{}>canvas: {}",
            priority(&Level::ERROR),
            Escaped(sentence)
        );
    } else {
        crate::error::say(sentence);
    }
}

/// Starts the log of a command.
pub fn start(command: &Command) {
    let name = match command {
        Command::Agent(_) => "agent: ",
        Command::Serve(_) => "serve: ",
        Command::Disk(_) | Command::DiskServer(_) => "disk: ",
        Command::AgentWorker(_) => "far memory: ",
        _ => "",
    };
    let is_of_run = match command {
        Command::AgentWorker(args) => !args.of_daemon,
        _ => name.is_empty(),
    };
    let form = match (is_of_run, stderr_is_journal()) {
        (true, _) => Form::Run,
        (false, false) => Form::Readable,
        (false, true) => Form::Journal,
    };
    IS_JOURNAL.store(form == Form::Journal, Relaxed);
    // Fails only if there is a log already.
    let _ = tracing::subscriber::set_global_default(subscriber(name, form, io::stderr));
}

fn subscriber<W>(name: &'static str, form: Form, to: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = Lines {
        name,
        form,
        kinds: Mutex::default(),
    };
    // Other crates' events are theirs: they are not bounded by what canvas knows of its peers.
    let ours = Targets::new().with_target("canvas", Level::INFO);
    tracing_subscriber::fmt()
        // A closed stderr is the caller's choice.
        .log_internal_errors(false)
        .event_format(lines)
        .with_writer(to)
        .finish()
        .with(ours)
}

/// Whether standard error is a stream to the journal that systemd named to this process: it may
/// also be inherited by one whose standard error is a file.
fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    nix::sys::stat::fstat(io::stderr())
        .is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// sd-daemon(3)'s number of a level.
fn priority(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Writes events as lines.
struct Lines {
    /// What each sentence begins with; empty for a run.
    name: &'static str,
    form: Form,
    /// By the place in the code, and a hash of the fields that tell its kinds apart.
    kinds: Mutex<HashMap<(Identifier, u64), Count>>,
}

/// Lines of a kind.
struct Count {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let suppressed = if self.name.is_empty() {
            // A run's own lines are few: no peer causes them.
            0
        } else {
            let mut kind = Kind::default();
            event.record(&mut kind);
            let kind = (event.metadata().callsite(), kind.0.finish());
            let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
            let most = match self.form {
                Form::Run => LINES_OF_A_RUN,
                Form::Readable | Form::Journal => LINES_OF_A_PERIOD,
            };
            let Some(suppressed) = admit(&mut kinds, kind, most, Instant::now()) else {
                return Ok(());
            };
            suppressed
        };
        // Only of lines that are written: a peer can cause many more.
        let mut read = Read::default();
        event.record(&mut read);
        let level = event.metadata().level();
        match self.form {
            Form::Run => to.write_str("canvas: ")?,
            Form::Readable => {
                SystemTime.format_time(&mut to)?;
                write!(to, " {level:>5} ")?;
            }
            Form::Journal => write!(to, "<{}>", priority(level))?,
        }
        write!(to, "{}{}", self.name, Escaped(&read.sentence))?;
        if self.form != Form::Run {
            write!(to, "{}", Escaped(&read.fields))?;
        }
        if suppressed > 0 {
            write!(to, " ({suppressed} more like it suppressed)")?;
        }
        writeln!(to)
    }
}

/// Whether to write a line, and how many of its kind were suppressed before it.
fn admit<Place: Eq + Hash>(
    kinds: &mut HashMap<(Place, u64), Count>,
    kind: (Place, u64),
    most: u32,
    now: Instant,
) -> Option<u64> {
    let is_over = |count: &Count| now.saturating_duration_since(count.since) >= PERIOD;
    let is_known = kinds.contains_key(&kind);
    if !is_known && kinds.len() >= KINDS_MAX {
        kinds.retain(|_, count| !is_over(count));
    }
    let kind = match is_known || kinds.len() < KINDS_MAX {
        true => kind,
        // There are few places.
        false => (kind.0, 0),
    };
    let count = kinds.entry(kind).or_insert(Count {
        since: now,
        lines: 0,
        suppressed: 0,
    });
    if is_over(count) {
        count.since = now;
        count.lines = 0;
    }
    if count.lines >= most {
        count.suppressed += 1;
        return None;
    }
    count.lines += 1;
    Some(std::mem::take(&mut count.suppressed))
}

/// A hash of the fields by which events of one place in the code are counted separately.
#[derive(Default)]
struct Kind(DefaultHasher);

impl Visit for Kind {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let name = field.name();
        if [ABOUT, TENANT].contains(&name) {
            format!("{name}={value:?}").hash(&mut self.0);
        }
    }
}

/// An event's text.
#[derive(Default)]
struct Read {
    sentence: String,
    /// ` name=value` of each other field.
    fields: String,
}

impl Visit for Read {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let name = field.name();
        // A String takes all that is written.
        let _ = match name {
            ABOUT => Ok(()),
            "message" => write!(self.sentence, "{value:?}"),
            _ => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Text without control characters.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c.is_control() {
                true => write!(f, "{}", c.escape_default())?,
                false => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tracing::{debug, error, info, warn};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that `events` make.
    fn lines(name: &'static str, form: Form, events: impl FnOnce()) -> Vec<String> {
        let written = Written::default();
        let to = written.clone();
        let subscriber = subscriber(name, form, move || to.clone());
        tracing::subscriber::with_default(subscriber, events);
        let bytes = written.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
        text.lines().map(str::to_owned).collect()
    }

    fn some_events() {
        info!("listening on {}", "127.0.0.1:7070");
        warn!(tenant = %"web", user = 1000, about = 7, "a request is refused");
        error!(tenant = %"web", "a copy is damaged");
        debug!("nobody reads this");
        warn!(target: "chitchat::server", "other crates' events are not written");
    }

    #[test]
    fn the_form_of_a_line_for_the_journal_and_for_a_run() {
        assert_eq!(
            lines("agent: ", Form::Journal, some_events),
            [
                "<6>agent: listening on 127.0.0.1:7070",
                "<4>agent: a request is refused tenant=web user=1000",
                "<3>agent: a copy is damaged tenant=web",
            ]
        );
        assert_eq!(
            lines("far memory: ", Form::Run, some_events),
            [
                "canvas: far memory: listening on 127.0.0.1:7070",
                "canvas: far memory: a request is refused",
                "canvas: far memory: a copy is damaged",
            ]
        );
    }

    #[test]
    fn a_readable_line_begins_with_time_and_level() {
        let rests = [
            "  INFO serve: listening on 127.0.0.1:7070",
            "  WARN serve: a request is refused tenant=web user=1000",
            " ERROR serve: a copy is damaged tenant=web",
        ];
        let lines = lines("serve: ", Form::Readable, some_events);
        assert_eq!(lines.len(), rests.len(), "{lines:?}");
        for (line, rest) in lines.iter().zip(rests) {
            let (time, of_it) = line.split_at(line.len() - rest.len());
            assert_eq!(of_it, rest);
            let shape: String = time
                .chars()
                .map(|c| if c.is_ascii_digit() { '0' } else { c })
                .collect();
            assert_eq!(shape, "0000-00-00T00:00:00.000000Z");
        }
    }

    /// A peer's text stays within its line, and reaches no terminal as a command.
    #[test]
    fn control_characters_of_a_peer_are_escaped() {
        let hostile = "a\n<0>forged\r\x1b[2J\u{9b}1m\u{7f}é";
        let lines = lines("agent: ", Form::Journal, || {
            warn!(tenant = %hostile, "the peer sent {hostile}");
        });
        let escaped = r"a\n<0>forged\r\u{1b}[2J\u{9b}1m\u{7f}é";
        let want = format!("<4>agent: the peer sent {escaped} tenant={escaped}");
        assert_eq!(lines, [want]);
    }

    #[test]
    fn a_kind_that_comes_too_often_is_suppressed_and_counted() {
        let events = || {
            let refuse = |tenant: &str, about: usize| {
                warn!(tenant = %tenant, about, "{about} is refused");
            };
            for _ in 0..100 {
                refuse("a", 1);
            }
            refuse("b", 1);
            refuse("a", 2);
            warn!("another line");
        };
        let mut want = vec!["<4>agent: 1 is refused tenant=a"; LINES_OF_A_PERIOD as usize];
        want.extend([
            "<4>agent: 1 is refused tenant=b",
            "<4>agent: 2 is refused tenant=a",
            "<4>agent: another line",
        ]);
        assert_eq!(lines("agent: ", Form::Journal, events), want);
        assert_eq!(
            lines("far memory: ", Form::Run, events),
            [
                "canvas: far memory: 1 is refused",
                "canvas: far memory: 1 is refused",
                "canvas: far memory: 2 is refused",
                "canvas: far memory: another line",
            ]
        );
    }

    #[test]
    fn a_new_period_says_how_many_were_suppressed() {
        let start = Instant::now();
        let mut kinds = HashMap::new();
        let mut admit = |fields, now| admit(&mut kinds, ("place", fields), LINES_OF_A_PERIOD, now);
        for _ in 0..LINES_OF_A_PERIOD {
            assert_eq!(admit(1, start), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(admit(1, start), None);
        }
        assert_eq!(admit(2, start), Some(0));
        assert_eq!(admit(1, start + PERIOD), Some(7));
        assert_eq!(admit(1, start + PERIOD), Some(0));
    }

    /// A peer that makes up names neither fills memory nor gets more lines for them.
    #[test]
    fn more_kinds_than_are_remembered_share_one_bound() {
        let start = Instant::now();
        let mut kinds = HashMap::new();
        let mut written = 0;
        for fields in 1..=2 * KINDS_MAX as u64 {
            let kind = ("place", fields);
            let count = admit(&mut kinds, kind, LINES_OF_A_PERIOD, start);
            written += usize::from(count.is_some());
        }
        assert_eq!(kinds.len(), KINDS_MAX + 1);
        assert_eq!(written, KINDS_MAX + LINES_OF_A_PERIOD as usize);
        // Those of the last period are forgotten.
        let later = start + PERIOD;
        let count = admit(&mut kinds, ("place", u64::MAX), LINES_OF_A_PERIOD, later);
        assert_eq!(count, Some(0));
        assert_eq!(kinds.len(), 1);
    }
}
