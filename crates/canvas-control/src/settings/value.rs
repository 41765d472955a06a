//! Values of settings: parsing and printing.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use canvas_place::replicas::Policy;
use canvas_shm::Mode;
use canvas_types::units::{Amount, RateLimit, Size, Span};
use canvas_types::{AppTier, Codec, NodeBound, Prefetch, ReadUnit, Slo, Threshold};

/// A value of a setting. Parsing a printed value gives the same value.
pub trait Value: Sized {
    /// Parses it; the error says what is wrong and what to write.
    fn read(text: &str) -> Result<Self, String>;
    /// Prints it.
    fn write(&self) -> String;
}

/// Values that use their own `FromStr` and `Display`.
macro_rules! as_displayed {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|e| format!("{e}"))
            }
            fn write(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
as_displayed!(Amount, Size, Span, RateLimit, NodeBound, ReadUnit, Slo);

/// Values out of a few names.
macro_rules! named {
    ($($type:ty: $all:expr, $name:expr;)*) => {$(
        impl Value for $type {
            fn read(text: &str) -> Result<Self, String> {
                let name: fn($type) -> &'static str = $name;
                let found = $all.into_iter().find(|value| name(*value) == text);
                found.ok_or_else(|| format!("write one of {}", $all.map(name).join(", ")))
            }
            fn write(&self) -> String {
                let name: fn($type) -> &'static str = $name;
                name(*self).to_owned()
            }
        }
    )*};
}
named! {
    Prefetch: Prefetch::ALL, Prefetch::name;
    AppTier: AppTier::ALL, AppTier::name;
    Codec: [Codec::Lz4, Codec::None], |codec| match codec {
        Codec::Lz4 => "lz4",
        Codec::None => "none",
    };
    Faults: [Faults(None), Faults(Some(Mode::Signal)), Faults(Some(Mode::Thread))], |faults| match faults.0 {
        None => "auto",
        Some(Mode::Signal) => "signal",
        Some(Mode::Thread) => "thread",
    };
}

/// How faults are delivered; `None` to choose the best mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults(pub Option<Mode>);

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switch(pub bool);

/// Memory to leave free; `None` for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve(pub Option<Amount>);

/// Number of serving threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threads {
    /// As many as needed, at most one per processor.
    Auto,
    /// This number.
    Fixed(usize),
}

/// Destination of far memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Destination {
    /// A directory on a disk of this host.
    Disk(PathBuf),
    /// A donor: HOST:PORT, or rdma://HOST:PORT.
    Donor(String),
    /// A member of the donors' gossip.
    Gossip(String),
    /// The host's agent; `None` for its usual socket.
    Agent(Option<PathBuf>),
}

impl Value for Threshold {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|e| format!("{e}, or off"))
    }
    fn write(&self) -> String {
        self.to_string()
    }
}

impl Value for Policy {
    fn read(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Err("one copy at a donor and no other is written 1".to_owned());
        }
        Policy::named(text).ok_or_else(|| format!("write one of {}", Policy::names()))
    }
    fn write(&self) -> String {
        self.to_string()
    }
}

impl Value for Switch {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "1" | "true" | "yes" | "on" => Ok(Switch(true)),
            "0" | "false" | "no" | "off" => Ok(Switch(false)),
            _ => Err("it is neither; write on or off".to_owned()),
        }
    }
    fn write(&self) -> String {
        if self.0 { "on" } else { "off" }.to_owned()
    }
}

impl Value for Reserve {
    fn read(text: &str) -> Result<Self, String> {
        if ["0", "0%"].contains(&text) {
            return Ok(Reserve(None));
        }
        Amount::read(text).map(|amount| Reserve(Some(amount)))
    }
    fn write(&self) -> String {
        self.0.map_or("0".to_owned(), |amount| amount.to_string())
    }
}

impl Value for Threads {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Threads::Auto),
            text => match number::<usize>(text, 1..=super::THREADS_MAX) {
                Ok(n) => Ok(Threads::Fixed(n)),
                Err(_) => Err(format!(
                    "write auto, or a number from 1 to {}",
                    super::THREADS_MAX
                )),
            },
        }
    }
    fn write(&self) -> String {
        match self {
            Threads::Auto => "auto".to_owned(),
            Threads::Fixed(n) => n.to_string(),
        }
    }
}

impl Value for Destination {
    fn read(text: &str) -> Result<Self, String> {
        let is_path = |path: &str| path.contains('/');
        if let Some(dir) = text.strip_prefix("disk:") {
            return match dir {
                "" => Err("a directory is missing; write disk:DIR".to_owned()),
                dir => Ok(Destination::Disk(PathBuf::from(dir))),
            };
        }
        if text == "agent" {
            return Ok(Destination::Agent(None));
        }
        if let Some(path) = text.strip_prefix("agent:") {
            return match is_path(path) {
                true => Ok(Destination::Agent(Some(PathBuf::from(path)))),
                false => Err(
                    "it is not the path of a socket; write one such as agent:/run/canvas/agent.sock"
                        .to_owned(),
                ),
            };
        }
        let (host, gossip) = match text.strip_prefix("gossip:") {
            Some(host) => (host, true),
            None => (text, false),
        };
        let port = host.rsplit_once(':').map(|(_, port)| port);
        if port.is_none_or(|port| port.parse::<u16>().is_err()) {
            return Err(
                "it is not a destination of far memory; write disk:DIR, HOST:PORT, rdma://HOST:PORT, gossip:HOST:PORT or agent"
                    .to_owned(),
            );
        }
        Ok(match gossip {
            true => Destination::Gossip(host.to_owned()),
            false => Destination::Donor(host.to_owned()),
        })
    }
    fn write(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Disk(dir) => write!(f, "disk:{}", dir.display()),
            Destination::Donor(host) => f.write_str(host),
            Destination::Gossip(host) => write!(f, "gossip:{host}"),
            Destination::Agent(None) => f.write_str("agent"),
            Destination::Agent(Some(path)) => write!(f, "agent:{}", path.display()),
        }
    }
}

impl Value for SocketAddr {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            "it is not an address with a port; write one such as 10.0.0.5:7070 or [::1]:7070"
                .to_owned()
        })
    }
    fn write(&self) -> String {
        self.to_string()
    }
}

impl Value for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("nothing is written there; write a path".to_owned()),
            text => Ok(PathBuf::from(text)),
        }
    }
    fn write(&self) -> String {
        self.display().to_string()
    }
}

impl Value for String {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("nothing is written there".to_owned()),
            text => Ok(text.to_owned()),
        }
    }
    fn write(&self) -> String {
        self.clone()
    }
}

/// Whole numbers.
macro_rules! whole {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| {
                    "it is not a whole number, or is too large; write one such as 2".to_owned()
                })
            }
            fn write(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
whole!(u8, u16, u32, u64, usize);

impl<T: Value> Value for Vec<T> {
    fn read(text: &str) -> Result<Self, String> {
        text.split(',').map(T::read).collect()
    }
    fn write(&self) -> String {
        let all: Vec<_> = self.iter().map(T::write).collect();
        all.join(",")
    }
}

/// Parses a number within bounds.
pub fn number<T: Value + PartialOrd + fmt::Display>(
    text: &str,
    range: RangeInclusive<T>,
) -> Result<T, String> {
    let n = T::read(text)?;
    match range.contains(&n) {
        true => Ok(n),
        false => Err(format!(
            "it is out of range; write {} to {}",
            range.start(),
            range.end()
        )),
    }
}

/// Parses a size within bounds.
pub fn size(text: &str, range: RangeInclusive<Size>) -> Result<Size, String> {
    let size = Size::read(text)?;
    if size < *range.start() {
        return Err(too_little(range.start()));
    }
    if size > *range.end() {
        return Err(format!("it is too large; write {} or less", range.end()));
    }
    Ok(size)
}

/// The error for a size below the least.
pub fn too_little(least: &Size) -> String {
    format!("it is too small; write {least} or more")
}
