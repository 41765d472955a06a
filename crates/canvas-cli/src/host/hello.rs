//! What is said at the host agent's socket: one JSON object a message, descriptors beside it.
//!
//! | from | message | descriptors |
//! |---|---|---|
//! | runner | [`Ask::Tenant`] | segment; when another agent had it: journal, backing file |
//! | agent | [`Answer::Serves`] | journal, backing file, both read-only: for the next agent |
//! | agent | [`Answer::Refused`] | – ; it hangs up |
//! | runner | [`Ask::Over`] | – ; the agent hangs up when all is given back |
//! | new agent | [`Ask::Leave`] | – |
//! | old agent | [`Answer::Leaves`], then as many [`Answer::Tenant`] | listening socket and its lock; segment, journal, backing file, and the runner's connection if it has one |
//! | new agent | [`Ask::Taken`] | – |
//! | old agent | [`Answer::Goes`] | – ; it ends, and the new one serves |
//!
//! Whatever comes is judged here; nothing in it is believed before.

use serde::{Deserialize, Serialize};

use canvas_agent::copies::Policy;
use canvas_shm::far::SLABS_MAX;

/// Version of these messages.
pub const VERSION: u32 = 1;
/// Bytes of a message at most.
pub const BYTES_MAX: usize = 4096;
/// Characters of a tenant's name at most.
pub const NAME_MAX: usize = 64;

/// What is asked of an agent.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// To serve a tenant.
    Tenant(Hello),
    /// To end serving this connection's tenant: it has no process left.
    Over {
        /// [`VERSION`].
        version: u32,
    },
    /// To leave: the sender takes its tenants over.
    Leave {
        /// [`VERSION`].
        version: u32,
    },
    /// All that was sent has come.
    Taken {
        /// [`VERSION`].
        version: u32,
    },
}

/// A tenant, as its runner describes it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// What it is called.
    pub name: String,
    /// Slabs that it may fill.
    pub slabs: usize,
    /// Its copies; without, as the agent does it for everybody.
    pub copies: Option<Wanted>,
}

/// A tenant's copies.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// Servers that have one each.
    pub donors: usize,
    /// There is one on disk.
    pub disk: bool,
}

impl From<Policy> for Wanted {
    fn from(p: Policy) -> Wanted {
        Wanted {
            donors: p.donors,
            disk: p.disk,
        }
    }
}

impl From<Wanted> for Policy {
    fn from(w: Wanted) -> Policy {
        Policy {
            donors: w.donors,
            disk: w.disk,
        }
    }
}

/// What an agent answers.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(tag = "answer", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// It serves the tenant.
    Serves {
        /// [`VERSION`].
        version: u32,
        /// The copies that it keeps.
        copies: Wanted,
    },
    /// It does not, and why.
    Refused {
        /// [`VERSION`].
        version: u32,
        /// One sentence.
        why: String,
    },
    /// It leaves; so many tenants follow.
    Leaves {
        /// [`VERSION`].
        version: u32,
        /// How many.
        tenants: usize,
    },
    /// One of these.
    Tenant(Given),
    /// It serves no more from here on.
    Goes {
        /// [`VERSION`].
        version: u32,
    },
}

/// A tenant, as one agent gives it to the next.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// [`VERSION`].
    pub version: u32,
    /// As its runner described it, with the copies that were settled.
    pub hello: Hello,
    /// Whose it is.
    pub uid: u32,
    /// Its runner is there: the last descriptor is its connection.
    pub linked: bool,
}

/// Only what every version has.
#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    // (A list would do for the decoder.)
    let is_object = bytes.trim_ascii_start().starts_with(b"{");
    let version = serde_json::from_slice::<AnyVersion>(bytes)
        .ok()
        .filter(|_| is_object)
        .ok_or("it is no message of canvas")?
        .version;
    if version != VERSION {
        return Err(format!(
            "it is of version {version}, and this canvas speaks {VERSION}; use the same release on both sides"
        ));
    }
    serde_json::from_slice(bytes).map_err(|e| format!("it cannot be understood: {e}"))
}

impl Ask {
    /// From a message's bytes; why not, otherwise.
    pub fn decode(bytes: &[u8]) -> Result<Ask, String> {
        let ask = decode(bytes)?;
        if let Ask::Tenant(hello) = &ask {
            hello.judge()?;
        }
        Ok(ask)
    }

    /// A message's bytes.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl Answer {
    /// From a message's bytes; why not, otherwise.
    pub fn decode(bytes: &[u8]) -> Result<Answer, String> {
        let answer = decode(bytes)?;
        if let Answer::Tenant(given) = &answer {
            given.hello.judge()?;
        }
        Ok(answer)
    }

    /// A message's bytes.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl Hello {
    fn judge(&self) -> Result<(), String> {
        judge_name(&self.name)?;
        if !(1..=SLABS_MAX).contains(&self.slabs) {
            return Err(format!(
                "{} slabs are out of range; 1 to {SLABS_MAX} can be had",
                self.slabs
            ));
        }
        match self.copies {
            Some(c) if c.donors > 3 || c.donors == 0 && !c.disk => {
                Err("there are no copies of that kind".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// May a tenant be called so?
pub fn judge_name(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    Err(format!(
        "it is no name of a tenant; write 1 to {NAME_MAX} letters, digits, '.', '_' and '-'"
    ))
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
            }),
        }
    }

    #[test]
    fn messages_are_what_was_said() {
        let version = VERSION;
        for ask in [
            Ask::Tenant(hello()),
            Ask::Over { version },
            Ask::Leave { version },
            Ask::Taken { version },
        ] {
            assert_eq!(Ask::decode(&ask.encode()), Ok(ask));
        }
        for answer in [
            Answer::Serves {
                version,
                copies: Wanted {
                    donors: 2,
                    disk: false,
                },
            },
            Answer::Goes { version },
            Answer::Refused {
                version,
                why: "x".to_owned(),
            },
            Answer::Leaves {
                version,
                tenants: 3,
            },
            Answer::Tenant(Given {
                version,
                hello: hello(),
                uid: 7,
                linked: true,
            }),
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_reason() {
        for (text, want) in [
            ("", "it is no message of canvas"),
            ("[1]", "it is no message of canvas"),
            (r#"{"ask":"over"}"#, "it is no message of canvas"),
            (
                r#"{"ask":"over","version":2}"#,
                "it is of version 2, and this canvas speaks 1; use the same release on both sides",
            ),
            (r#"{"ask":"zebra","version":1}"#, "it cannot be understood"),
            (
                r#"{"ask":"tenant","version":1,"name":"a/b","slabs":1,"copies":null}"#,
                "it is no name of a tenant",
            ),
            (
                r#"{"ask":"tenant","version":1,"name":"a","slabs":0,"copies":null}"#,
                "0 slabs are out of range",
            ),
            (
                r#"{"ask":"tenant","version":1,"name":"a","slabs":1,"copies":null,"key":"x"}"#,
                "it cannot be understood",
            ),
            (
                r#"{"ask":"tenant","version":1,"name":"a","slabs":1,"copies":{"donors":9,"disk":false}}"#,
                "there are no copies of that kind",
            ),
        ] {
            let why = Ask::decode(text.as_bytes()).unwrap_err();
            assert!(why.starts_with(want), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..BYTES_MAX)) {
            let _ = Ask::decode(&bytes);
            let _ = Answer::decode(&bytes);
        }

        /// Nearly right messages: any text in the fields, and a piece cut out anywhere.
        #[test]
        fn nearly_right_ones_too(name in ".{0,80}", slabs in any::<usize>(), donors in any::<usize>(),
                                 from in 0usize..200, len in 0usize..20) {
            let hello = Hello { version: VERSION, name, slabs, copies: Some(Wanted { donors, disk: false }) };
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
