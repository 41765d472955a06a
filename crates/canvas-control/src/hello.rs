//! Messages on the host agent's socket: one JSON object per message, with descriptors attached.
//!
//! | from | message | descriptors |
//! |---|---|---|
//! | runner | [`Ask::Begin`] | – |
//! | agent | [`Answer::Vacant`] | – ; it closes the connection, and the runner makes a segment |
//! | agent | [`Answer::Joins`] | segment; journal, backing files, both read-only: for the next agent |
//! | runner | [`Ask::Tenant`] | segment; when another agent had it: journal, backing files |
//! | agent | [`Answer::Serves`] | journal, backing files, both read-only |
//! | agent | [`Answer::Refused`] | – ; it closes the connection |
//! | runner | [`Ask::Offers`] | – |
//! | agent | [`Answer::Offers`] | – ; it closes the connection |
//! | runner | [`Ask::Take`] | – |
//! | agent | [`Answer::Prepared`] | as with [`Answer::Joins`] |
//! | agent | [`Answer::NonePrepared`] | – ; it closes the connection |
//! | runner | [`Ask::Change`] | – |
//! | agent | [`Answer::Changed`], [`Answer::Unchanged`] | – |
//! | runner | [`Ask::Over`] | – ; the agent closes the connection when everything is freed |
//! | operator | [`Ask::End`] | – |
//! | agent | [`Answer::Changed`] | – ; it closes the connection when everything is freed |
//! | new agent | [`Ask::Leave`] | – |
//! | old agent | [`Answer::Leaves`], then as many [`Answer::Tenant`] | listening socket and its lock; segment, journal, backing files, and its runners' connections |
//! | new agent | [`Ask::Taken`] | – |
//! | old agent | [`Answer::Goes`] | – ; it ends, and the new one serves |
//!
//! Every message is validated here before anything in it is used.

use serde::{Deserialize, Serialize};

use canvas_place::replicas::{Code, Policy};
use canvas_shm::far::SLABS_MAX;
use canvas_types::units::Size;

use crate::names::{NameError, judge_name};
use crate::share::{RATE_MIN, WEIGHT_MAX};
use crate::terms::Terms;

/// Version of these messages.
pub const VERSION: u32 = 2;
/// Most bytes of a message.
pub const BYTES_MAX: usize = 4096;
/// Smallest pool, and smallest of other limits.
pub const SMALL_MIN: Size = Size::from_bytes(1 << 20);
/// Most runners of a tenant.
pub const LINKS_MAX: usize = 64;

/// A request to an agent.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// Ask whether a tenant exists; if so, become one of its runners.
    Begin {
        /// [`VERSION`].
        version: u32,
        /// The tenant's name.
        name: String,
        /// Whether the user chose the name; a run with a made-up name joins no existing tenant.
        join: bool,
    },
    /// Serve a new tenant.
    Tenant(Hello),
    /// Ask what a new tenant could have.
    Offers {
        /// [`VERSION`].
        version: u32,
    },
    /// Become the first runner of a prepared tenant.
    Take(Take),
    /// Change this connection's tenant.
    Change(Change),
    /// Stop serving this connection's tenant, which has no process left.
    Over {
        /// [`VERSION`].
        version: u32,
    },
    /// End a tenant that has no runner any more.
    End {
        /// [`VERSION`].
        version: u32,
        /// The tenant's name.
        name: String,
        /// End it even if it has processes.
        force: bool,
    },
    /// Hand all tenants over to the sender, a new agent.
    Leave {
        /// [`VERSION`].
        version: u32,
    },
    /// All messages of the handover have arrived.
    Taken {
        /// [`VERSION`].
        version: u32,
    },
}

/// A tenant's description by its runner.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// The tenant's name.
    pub name: String,
    /// Most slabs that it may use.
    pub slabs: usize,
    /// Its copies; `None` for the agent's default.
    pub copies: Option<Wanted>,
    /// Its requested share.
    #[serde(default)]
    pub asked: Asked,
}

/// What a run requests of the prepared tenant that it takes.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// [`VERSION`].
    pub version: u32,
    /// Most slabs that it may use.
    pub slabs: usize,
    /// Its copies; `None` to keep the prepared tenant's.
    pub copies: Option<Wanted>,
    /// Limit on its pool, in bytes.
    pub pool_bytes: u64,
    /// Its requested share.
    #[serde(default)]
    pub asked: Asked,
}

/// A tenant's requested share; `None` stands for the operator's value, or the default.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Its weight.
    pub weight: Option<u32>,
    /// Limit on reads from far memory, in bytes per second.
    pub swap_in_limit: Option<u64>,
    /// Limit on writes to far memory, in bytes per second.
    pub swap_out_limit: Option<u64>,
}

/// A change of a served tenant: all fields with a value are changed, or nothing is.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// [`VERSION`].
    pub version: u32,
    /// Most slabs that it may use.
    pub slabs: Option<usize>,
    /// Its weight.
    pub weight: Option<u32>,
    /// Limit on reads, in bytes per second; 0 for no limit.
    pub swap_in_limit: Option<u64>,
    /// Limit on writes, in bytes per second; 0 for no limit.
    pub swap_out_limit: Option<u64>,
    /// Limit on its part of the host's pool, where that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_bytes: Option<u64>,
    /// Its copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<Wanted>,
    /// Number of the change on this connection, which the answer repeats.
    #[serde(default, skip_serializing_if = "is_none")]
    pub id: u64,
}

/// Whether a message has no number: from an older runner, or an answer to a request without one.
fn is_none(id: &u64) -> bool {
    *id == 0
}

/// The copies of a tenant.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// Number of donors with a copy each.
    pub donors: usize,
    /// Whether there is a copy on disk.
    pub disk: bool,
    /// Whether the copy on disk is made after the write has completed.
    #[serde(default)]
    pub late: bool,
    /// Erasure code of the donors' shards: number of data shards and of parity shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<(usize, usize)>,
}

impl From<Policy> for Wanted {
    fn from(p: Policy) -> Wanted {
        Wanted {
            donors: p.donors,
            disk: p.disk,
            late: p.late,
            code: p.code.map(|code| (code.data(), code.parity())),
        }
    }
}

impl From<Wanted> for Policy {
    fn from(w: Wanted) -> Policy {
        if let Some(code) = w.code.and_then(|(data, parity)| Code::new(data, parity)) {
            return Policy::coded(code);
        }
        Policy {
            donors: w.donors,
            disk: w.disk,
            late: w.late,
            code: None,
        }
    }
}

/// An agent's answer.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(tag = "answer", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// There is no tenant of that name.
    Vacant {
        /// [`VERSION`].
        version: u32,
        /// The operator's terms for it.
        terms: Terms,
    },
    /// The tenant exists, and the runner has joined it.
    Joins(Settled),
    /// The agent serves the tenant.
    Serves(Settled),
    /// What a new tenant could have.
    Offers(Offers),
    /// The runner has a prepared tenant and is its only runner.
    Prepared {
        /// The tenant's name.
        name: String,
        /// The tenant's settings.
        settled: Settled,
        /// [`VERSION`].
        version: u32,
    },
    /// There is no prepared tenant.
    NonePrepared {
        /// [`VERSION`].
        version: u32,
    },
    /// The agent refuses.
    Refused {
        /// [`VERSION`].
        version: u32,
        /// The reason, in one sentence.
        why: String,
        /// Another run of this user has the name, so it can be joined.
        taken: bool,
    },
    /// The request is done.
    Changed {
        /// [`VERSION`].
        version: u32,
        /// The change's number ([`Change::id`]).
        #[serde(default, skip_serializing_if = "is_none")]
        id: u64,
    },
    /// Nothing was changed.
    Unchanged {
        /// [`VERSION`].
        version: u32,
        /// The reason, in one sentence.
        why: String,
        /// The change's number.
        #[serde(default, skip_serializing_if = "is_none")]
        id: u64,
    },
    /// The agent hands over; its tenants follow.
    Leaves {
        /// [`VERSION`].
        version: u32,
        /// Number of tenants that follow.
        tenants: usize,
    },
    /// One of these tenants.
    Tenant(Given),
    /// The agent serves nothing from now on.
    Goes {
        /// [`VERSION`].
        version: u32,
    },
}

/// A tenant's settings at its agent.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Settled {
    /// [`VERSION`].
    pub version: u32,
    /// Its copies.
    pub copies: Wanted,
    /// Most slabs that it may use.
    pub slabs: usize,
    /// The operator's terms for it.
    pub terms: Terms,
}

/// What a new tenant could have at an agent.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Offers {
    /// [`VERSION`].
    pub version: u32,
    /// Copies of a tenant that requests none.
    pub copies: Wanted,
    /// Whether copies on donors are possible.
    pub has_donors: bool,
    /// Whether copies on a disk of the host are possible.
    pub has_disk: bool,
    /// Most slabs that it could use.
    pub slabs: usize,
    /// Copies of the prepared tenants.
    pub prepared: Vec<Wanted>,
}

/// A tenant, as one agent hands it over to the next.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// [`VERSION`].
    pub version: u32,
    /// Its runner's description, with the copies in effect.
    pub hello: Hello,
    /// Its user.
    pub uid: u32,
    /// Number of its connected runners: the last descriptors are their connections.
    pub links: usize,
}

/// Why a message is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// It has no version, or is not a JSON object.
    #[error("it is not a message of canvas")]
    Alien,
    /// It is of another [`VERSION`].
    #[error(
        "it is of version {0}, and this canvas speaks {ours}; use the same release of canvas on both sides", ours = VERSION
    )]
    Version(u32),
    /// It has the right version, but is not one of its messages; the text is the decoder's.
    #[error("it cannot be understood: {0}")]
    Unknown(String),
    /// It has an invalid tenant name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It requests an invalid number of slabs.
    #[error("{0} slabs are out of range; use 1 to {max}", max = SLABS_MAX)]
    Slabs(usize),
    /// It requests an invalid weight.
    #[error("weight {0} is out of range; write 1 to {max}", max = WEIGHT_MAX)]
    Weight(u32),
    /// It requests too low a limit on a rate, in bytes per second.
    #[error("{0} bytes a second are too few; the least is {min}", min = RATE_MIN)]
    Rate(u64),
    /// It requests too small a pool, in bytes.
    #[error("a pool of {0} bytes is too small; the least is {min}", min = SMALL_MIN)]
    Pool(u64),
    /// It requests no copies, or an invalid kind of them.
    #[error("there is no such kind of copies")]
    Copies,
    /// It hands over a tenant with too many runners.
    #[error("{0} runners are too many")]
    Runners(usize),
}

/// Only the fields that every version has.
#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageError> {
    // (The decoder would also accept a list.)
    let is_object = bytes.trim_ascii_start().starts_with(b"{");
    let version = serde_json::from_slice::<AnyVersion>(bytes)
        .ok()
        .filter(|_| is_object)
        .ok_or(MessageError::Alien)?
        .version;
    if version != VERSION {
        return Err(MessageError::Version(version));
    }
    serde_json::from_slice(bytes).map_err(|e| MessageError::Unknown(e.to_string()))
}

impl Ask {
    /// Decodes and validates a message.
    pub fn decode(bytes: &[u8]) -> Result<Ask, MessageError> {
        let ask = decode(bytes)?;
        match &ask {
            Ask::Tenant(hello) => hello.judge()?,
            Ask::Begin { name, .. } | Ask::End { name, .. } => judge_name(name)?,
            Ask::Change(change) => change.judge()?,
            Ask::Take(take) => take.judge()?,
            _ => {}
        }
        Ok(ask)
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl Answer {
    /// Decodes and validates a message.
    pub fn decode(bytes: &[u8]) -> Result<Answer, MessageError> {
        let answer = decode(bytes)?;
        match &answer {
            Answer::Tenant(given) => {
                given.hello.judge()?;
                if given.links > LINKS_MAX {
                    return Err(MessageError::Runners(given.links));
                }
            }
            Answer::Prepared { name, .. } => judge_name(name)?,
            _ => {}
        }
        Ok(answer)
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl Hello {
    fn judge(&self) -> Result<(), MessageError> {
        judge_name(&self.name)?;
        judge_slabs(self.slabs)?;
        self.asked.judge()?;
        judge_copies(self.copies)
    }
}

impl Take {
    fn judge(&self) -> Result<(), MessageError> {
        judge_slabs(self.slabs)?;
        self.asked.judge()?;
        if self.pool_bytes < SMALL_MIN.bytes {
            return Err(MessageError::Pool(self.pool_bytes));
        }
        judge_copies(self.copies)
    }
}

impl Asked {
    fn judge(&self) -> Result<(), MessageError> {
        judge_weight(self.weight)?;
        judge_rates([self.swap_in_limit, self.swap_out_limit])
    }
}

impl Change {
    fn judge(&self) -> Result<(), MessageError> {
        self.slabs.map_or(Ok(()), judge_slabs)?;
        judge_weight(self.weight)?;
        judge_copies(self.copies)?;
        if let Some(bytes) = self.pool_bytes.filter(|b| *b < SMALL_MIN.bytes) {
            return Err(MessageError::Pool(bytes));
        }
        let bound = |limit: Option<u64>| limit.filter(|l| *l != 0);
        judge_rates([self.swap_in_limit, self.swap_out_limit].map(bound))
    }
}

fn judge_slabs(slabs: usize) -> Result<(), MessageError> {
    if (1..=SLABS_MAX).contains(&slabs) {
        return Ok(());
    }
    Err(MessageError::Slabs(slabs))
}

fn judge_copies(copies: Option<Wanted>) -> Result<(), MessageError> {
    match copies {
        Some(c) if c.code.is_some() && Wanted::from(Policy::from(c)) == c => Ok(()),
        Some(c) if c.code.is_some() => Err(MessageError::Copies),
        Some(c) if c.donors > 3 || c.donors == 0 && !c.disk => Err(MessageError::Copies),
        _ => Ok(()),
    }
}

fn judge_weight(weight: Option<u32>) -> Result<(), MessageError> {
    match weight {
        Some(w) if !(1..=WEIGHT_MAX).contains(&w) => Err(MessageError::Weight(w)),
        _ => Ok(()),
    }
}

fn judge_rates(limits: [Option<u64>; 2]) -> Result<(), MessageError> {
    match limits.into_iter().flatten().find(|l| *l < RATE_MIN) {
        Some(limit) => Err(MessageError::Rate(limit)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        Hello {
            version: VERSION,
            name: "web-1".to_owned(),
            slabs: 7,
            copies: Some(Wanted {
                donors: 1,
                disk: true,
                late: false,
                code: None,
            }),
            asked: Asked {
                weight: Some(300),
                swap_in_limit: None,
                swap_out_limit: Some(1 << 20),
            },
        }
    }

    fn take() -> Take {
        Take {
            version: VERSION,
            slabs: 7,
            copies: None,
            pool_bytes: 1 << 20,
            asked: Asked::default(),
        }
    }

    fn settled() -> Settled {
        Settled {
            version: VERSION,
            copies: Wanted {
                donors: 2,
                disk: false,
                late: false,
                code: None,
            },
            slabs: 9,
            terms: Terms {
                far_bytes: Some(1 << 30),
                local: Some("25%".to_owned()),
                ..Terms::default()
            },
        }
    }

    #[test]
    fn messages_are_what_was_said() {
        let version = VERSION;
        for ask in [
            Ask::Tenant(hello()),
            Ask::Begin {
                version,
                name: "web-1".to_owned(),
                join: true,
            },
            Ask::Change(Change {
                version,
                swap_in_limit: Some(0),
                ..Change::default()
            }),
            Ask::Offers { version },
            Ask::Take(take()),
            Ask::Over { version },
            Ask::Leave { version },
            Ask::Taken { version },
        ] {
            assert_eq!(Ask::decode(&ask.encode()), Ok(ask));
        }
        for answer in [
            Answer::Serves(settled()),
            Answer::Joins(settled()),
            Answer::Vacant {
                version,
                terms: Terms::default(),
            },
            Answer::Offers(Offers {
                version,
                copies: settled().copies,
                has_donors: true,
                has_disk: false,
                slabs: SLABS_MAX,
                prepared: vec![settled().copies; 16],
            }),
            Answer::Prepared {
                version,
                name: "prepared-1".to_owned(),
                settled: settled(),
            },
            Answer::NonePrepared { version },
            Answer::Goes { version },
            Answer::Changed { version, id: 7 },
            Answer::Unchanged {
                version,
                why: "x".to_owned(),
                id: 7,
            },
            Answer::Refused {
                version,
                why: "x".to_owned(),
                taken: true,
            },
            Answer::Leaves {
                version,
                tenants: 3,
            },
            Answer::Tenant(Given {
                version,
                hello: hello(),
                uid: 7,
                links: 3,
            }),
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_reason() {
        for (text, want) in [
            ("", "it is not a message of canvas"),
            ("[1]", "it is not a message of canvas"),
            (r#"{"ask":"over"}"#, "it is not a message of canvas"),
            (
                r#"{"ask":"over","version":1}"#,
                "it is of version 1, and this canvas speaks 2; use the same release of canvas on both sides",
            ),
            (r#"{"ask":"zebra","version":2}"#, "it cannot be understood"),
            (
                r#"{"ask":"tenant","version":2,"name":"a/b","slabs":1,"copies":null}"#,
                "it is not a tenant's name",
            ),
            (
                r#"{"ask":"tenant","version":2,"name":"a","slabs":0,"copies":null}"#,
                "0 slabs are out of range",
            ),
            (
                r#"{"ask":"tenant","version":2,"name":"a","slabs":1,"copies":null,"key":"x"}"#,
                "it cannot be understood",
            ),
            (
                r#"{"ask":"tenant","version":2,"name":"a","slabs":1,"copies":{"donors":9,"disk":false}}"#,
                "there is no such kind of copies",
            ),
            (
                r#"{"ask":"tenant","version":2,"name":"a","slabs":1,"copies":null,"asked":{"weight":0}}"#,
                "weight 0 is out of range; write 1 to 1000",
            ),
            (
                r#"{"ask":"change","version":2,"swap_in_limit":7}"#,
                "7 bytes a second are too few",
            ),
            (
                r#"{"ask":"change","version":2,"slabs":0}"#,
                "0 slabs are out of range",
            ),
            (
                r#"{"ask":"take","version":2,"slabs":1,"copies":null,"pool_bytes":7}"#,
                "a pool of 7 bytes is too small",
            ),
            (
                r#"{"ask":"take","version":2,"slabs":1,"copies":{"donors":0,"disk":false},"pool_bytes":1048576}"#,
                "there is no such kind of copies",
            ),
            (
                r#"{"ask":"begin","version":2,"name":"../a","join":true}"#,
                "it is not a tenant's name",
            ),
        ] {
            let why = Ask::decode(text.as_bytes()).unwrap_err().to_string();
            assert!(why.starts_with(want), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..BYTES_MAX)) {
            let _ = Ask::decode(&bytes);
            let _ = Answer::decode(&bytes);
        }

        /// Almost valid messages: any text in the fields, and a piece cut out anywhere.
        #[test]
        fn nearly_right_ones_too(name in ".{0,80}", slabs in any::<usize>(), donors in any::<usize>(),
                                 from in 0usize..200, len in 0usize..20) {
            let hello = Hello { version: VERSION, name, slabs, copies: Some(Wanted { donors, disk: false, late: false, code: None }), asked: Asked::default() };
            let mut bytes = Ask::Tenant(hello.clone()).encode();
            if let Ok(ask) = Ask::decode(&bytes) {
                prop_assert!(judge_name(&hello.name).is_ok() && (1..=SLABS_MAX).contains(&slabs));
                prop_assert_eq!(ask, Ask::Tenant(hello));
            }
            let from = from.min(bytes.len());
            bytes.drain(from..(from + len).min(bytes.len()));
            let _ = Ask::decode(&bytes);
        }
    }
}
