//! Terms: what the operator of a host's agent sets for a tenant, in sections [tenant.NAME] of the
//! agent's file.
//!
//! For a run that gives no value they are defaults; for one that does they are limits: it may have
//! less, not more. The tenant's own processes count local memory and pool, so its runner enforces
//! these limits; the agent enforces the others, whatever the tenant claims. The command reads terms
//! from the file and applies them to a run's flags; here is the part that is in messages.

use canvas_shm::far::SLAB_BYTES;
use canvas_types::units::{Amount, RateLimit, Size, UnitError};
use serde::{Deserialize, Serialize};

use crate::hello::{Asked, Change, Wanted};
use crate::share::{Share, WEIGHT};

/// Terms of a tenant; its runs decide where there is no value.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// Limit on local memory, as it was written.
    pub local: Option<String>,
    /// Limit on the pool.
    pub pool_bytes: Option<u64>,
    /// Limit on far memory.
    pub far_bytes: Option<u64>,
    /// Its copies, which runs cannot change.
    pub copies: Option<Wanted>,
    /// Most weight.
    pub weight: Option<u32>,
    /// Limit on reads from far memory, in bytes per second.
    pub swap_in_limit: Option<u64>,
    /// Limit on writes to far memory, in bytes per second.
    pub swap_out_limit: Option<u64>,
    /// Part of the host's pool that the tenant always keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_floor_bytes: Option<u64>,
    /// Part of the host's limit on shared memory that the tenant always keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_floor_bytes: Option<u64>,
}

/// A tenant's request exceeds its terms, or the terms are not valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TermsError {
    /// The limit on local memory cannot be parsed.
    #[error("the agent's limit on local memory, {text}, is not valid: {source}")]
    Local {
        /// The limit as written.
        text: String,
        /// The parser's error.
        source: UnitError,
    },
    /// Copies that differ from the terms.
    #[error("its copies are set by the agent's operator; leave out --copies")]
    Copies,
    /// More than the terms allow.
    #[error("{what} is more than the agent's operator allows this tenant; write {most} or less")]
    TooMuch {
        /// The request.
        what: String,
        /// The most that can be had.
        most: String,
    },
    /// More weight than a tenant can have without terms.
    #[error(
        "weight {0} is more than {w}, which only the agent's operator can give; write {w} or less",
        w = WEIGHT
    )]
    Weight(u32),
    /// A size compared with a share: which is less depends on the program's footprint.
    #[error(
        "{asked} cannot be compared with what the agent's operator allows this tenant; write {most} or less"
    )]
    Incomparable {
        /// The request.
        asked: Amount,
        /// The limit.
        most: Amount,
    },
}

impl Terms {
    /// The limit on local memory.
    pub fn local(&self) -> Result<Option<Amount>, TermsError> {
        let read = |text: &String| {
            text.parse().map_err(|source| TermsError::Local {
                text: text.clone(),
                source,
            })
        };
        self.local.as_ref().map(read).transpose()
    }
    /// Most slabs of far memory.
    fn slabs_max(&self) -> Option<usize> {
        let slabs = |bytes: u64| bytes.div_ceil(SLAB_BYTES as u64);
        self.far_bytes.map(|b| slabs(b) as usize)
    }

    /// Checks the requested copies.
    pub fn allow_copies(&self, copies: Option<Wanted>) -> Result<(), TermsError> {
        match (copies, self.copies) {
            (Some(asked), Some(there)) if asked != there => Err(TermsError::Copies),
            _ => Ok(()),
        }
    }

    /// Checks the requested pool size.
    pub fn allow_pool(&self, bytes: u64) -> Result<(), TermsError> {
        let most = self.pool_bytes.unwrap_or(u64::MAX);
        if bytes <= most {
            return Ok(());
        }
        let [asked, most] = [bytes, most].map(Size::from_bytes);
        Err(too_much(&format!("a pool of {asked}"), &most.to_string()))
    }

    /// Checks the requested number of slabs.
    pub fn allow_slabs(&self, slabs: usize) -> Result<(), TermsError> {
        let size = |slabs: usize| Size::from_bytes((slabs * SLAB_BYTES) as u64);
        match self.slabs_max() {
            Some(most) if slabs > most => Err(too_much(
                &format!("{} of far memory", size(slabs)),
                &size(most).to_string(),
            )),
            _ => Ok(()),
        }
    }

    /// Checks a requested share. `trusted` users could also change the operator's file.
    pub fn allow(&self, asked: &Asked, trusted: bool) -> Result<(), TermsError> {
        match (asked.weight, self.weight) {
            (Some(weight), Some(most)) if weight > most => {
                return Err(too_much(&format!("weight {weight}"), &most.to_string()));
            }
            (Some(weight), None) if weight > WEIGHT && !trusted => {
                return Err(TermsError::Weight(weight));
            }
            _ => {}
        }
        for (what, asked, most) in [
            ("a swap-in limit", asked.swap_in_limit, self.swap_in_limit),
            (
                "a swap-out limit",
                asked.swap_out_limit,
                self.swap_out_limit,
            ),
        ] {
            if let (Some(rate), Some(most)) = (asked, most)
                && rate > most
            {
                let [rate, most] = [rate, most].map(RateLimit::bytes_per_s);
                return Err(too_much_in_s(&format!("{what} of {rate}"), most));
            }
        }
        Ok(())
    }

    /// Checks a change; returns the requested share after it.
    pub fn change(
        &self,
        asked: Asked,
        change: &Change,
        trusted: bool,
    ) -> Result<Asked, TermsError> {
        let rate =
            |what, before: Option<u64>, new: Option<u64>, most: Option<u64>| match (new, most) {
                (None, _) => Ok(before),
                (Some(0), Some(most)) => Err(too_much_in_s(what, RateLimit::bytes_per_s(most))),
                (Some(0), None) => Ok(None),
                (new, _) => Ok(new),
            };
        let (swap_in, swap_out) = (self.swap_in_limit, self.swap_out_limit);
        let asked = Asked {
            weight: change.weight.or(asked.weight),
            swap_in_limit: rate(
                "no swap-in limit",
                asked.swap_in_limit,
                change.swap_in_limit,
                swap_in,
            )?,
            swap_out_limit: rate(
                "no swap-out limit",
                asked.swap_out_limit,
                change.swap_out_limit,
                swap_out,
            )?,
        };
        self.allow(&asked, trusted)?;
        Ok(asked)
    }

    /// The share for a request: never more than the terms.
    pub fn share(&self, asked: &Asked) -> Share {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        let weight = asked.weight.or(self.weight).unwrap_or(WEIGHT);
        let share = Share {
            weight: weight.min(self.weight.unwrap_or(weight)),
            swap_in_limit: least(asked.swap_in_limit, self.swap_in_limit),
            swap_out_limit: least(asked.swap_out_limit, self.swap_out_limit),
        };
        share.clamped()
    }
}

fn too_much(what: &str, most: &str) -> TermsError {
    TermsError::TooMuch {
        what: what.to_owned(),
        most: most.to_owned(),
    }
}

/// The error for a rate above the operator's.
pub fn too_much_in_s(what: &str, most: RateLimit) -> TermsError {
    too_much(what, &most.to_string())
}

/// Checks a size against the operator's.
pub fn check_size(asked: Size, most: Size) -> Result<(), TermsError> {
    if asked <= most {
        return Ok(());
    }
    Err(too_much(&asked.to_string(), &most.to_string()))
}

/// Checks the limit on local memory against the operator's.
pub fn check_local(asked: Amount, most: Amount) -> Result<(), TermsError> {
    let is_within = match (asked, most) {
        (Amount::Size(asked), Amount::Size(most)) => asked <= most,
        (Amount::Share(asked), Amount::Share(most)) => asked <= most,
        _ => return Err(TermsError::Incomparable { asked, most }),
    };
    if is_within {
        return Ok(());
    }
    Err(too_much(&asked.to_string(), &most.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn terms() -> Terms {
        Terms {
            local: Some("64M".to_owned()),
            pool_bytes: Some(128 << 20),
            far_bytes: Some(1 << 30),
            copies: Some(Wanted {
                donors: 0,
                disk: true,
                late: false,
                code: None,
            }),
            weight: Some(50),
            swap_in_limit: Some(10 << 20),
            ..Terms::default()
        }
    }

    #[test]
    fn weight_beyond_the_usual_is_the_operators_to_give() {
        let asked = Asked {
            weight: Some(101),
            ..Asked::default()
        };
        let why = Terms::default().allow(&asked, false).unwrap_err();
        let why = why.to_string();
        assert!(
            why.contains("which only the agent's operator can give"),
            "{why}"
        );
        assert!(Terms::default().allow(&asked, true).is_ok());
        let given = Terms {
            weight: Some(200),
            ..Terms::default()
        };
        assert!(given.allow(&asked, false).is_ok());
    }

    #[test]
    fn changes_are_bounded_too() {
        let change = |change: Change| terms().change(Asked::default(), &change, true);
        let weight = |weight| Change {
            weight: Some(weight),
            ..Change::default()
        };
        assert_eq!(change(weight(50)).unwrap().weight, Some(50));
        assert!(change(weight(51)).is_err());
        let none = Change {
            swap_in_limit: Some(0),
            ..Change::default()
        };
        assert!(
            change(none)
                .unwrap_err()
                .to_string()
                .starts_with("no swap-in limit is more")
        );
        let before = Asked {
            swap_in_limit: Some(1 << 20),
            ..Asked::default()
        };
        let after = Terms::default().change(before, &none, true).unwrap();
        assert_eq!(after, Asked::default());
        let kept = Terms::default().change(before, &weight(3), true).unwrap();
        assert_eq!(kept.swap_in_limit, Some(1 << 20));
    }

    proptest! {
        /// After any requests and changes, the share is what was requested within the terms.
        #[test]
        fn a_share_is_what_was_asked_for_within_the_terms(
            weight in proptest::option::of(1u32..=1000),
            rates in proptest::array::uniform2(proptest::option::of(1u64 << 16..1 << 20)),
            changes in proptest::collection::vec(
                (proptest::option::of(1u32..=1000), proptest::option::of(prop_oneof![Just(0u64), 1u64 << 16..1 << 20])),
                0..8,
            ),
        ) {
            let terms = Terms { weight, swap_in_limit: rates[0], swap_out_limit: rates[1], ..Terms::default() };
            let mut asked = Asked::default();
            for (weight, swap_in_limit) in changes {
                let change = Change { weight, swap_in_limit, ..Change::default() };
                let Ok(new) = terms.change(asked, &change, true) else { continue };
                asked = new;
                let share = terms.share(&asked);
                if let Some(w) = weight {
                    prop_assert_eq!(share.weight, w);
                }
                match swap_in_limit {
                    Some(0) => prop_assert_eq!(share.swap_in_limit, None),
                    Some(rate) => prop_assert_eq!(share.swap_in_limit, Some(rate)),
                    None => {}
                }
                prop_assert!(share.weight <= terms.weight.unwrap_or(1000));
                for (limit, most) in [
                    (share.swap_in_limit, terms.swap_in_limit),
                    (share.swap_out_limit, terms.swap_out_limit),
                ] {
                    prop_assert!(most.is_none_or(|m| limit.is_some_and(|l| l <= m)));
                }
            }
        }
    }
}
