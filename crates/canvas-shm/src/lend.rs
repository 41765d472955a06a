//! One process of a tenant asks another to keep a range of its memory present for a moment, while the kernel copies from
//! it or into it.

/// Pages of a range at most.
pub const PAGES_MAX: u32 = 256;

/// What a place for requests ([`crate::ProcSlot::lend`]) holds; 0 where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request(u64);

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Nobody has looked at it.
    Posted,
    /// The owner makes the pages present.
    Taken,
    /// They are, until the asker takes the request away, or the owner loses patience.
    Ready,
    /// None of them could be made present.
    Nothing,
}

const STAGES: [Stage; 4] = [Stage::Posted, Stage::Taken, Stage::Ready, Stage::Nothing];
const COUNT_SHIFT: u32 = 32;
const STAGE_SHIFT: u32 = 62;

impl Request {
    /// Of `count` pages from `first` on, [`PAGES_MAX`] at most.
    pub fn of(first: u32, count: u32) -> Request {
        let count = count.clamp(1, PAGES_MAX);
        Request(u64::from(first) | u64::from(count) << COUNT_SHIFT)
    }
    /// What the place holds: any process of the tenant can have written it.
    pub fn of_word(word: u64) -> Option<Request> {
        let request = Request(word);
        (1..=PAGES_MAX)
            .contains(&request.count())
            .then_some(request)
    }
    /// What the place is to hold.
    pub fn word(self) -> u64 {
        self.0
    }
    /// The first page.
    pub fn first(self) -> u32 {
        self.0 as u32
    }
    /// How many.
    pub fn count(self) -> u32 {
        (self.0 >> COUNT_SHIFT) as u32 & ((1 << (STAGE_SHIFT - COUNT_SHIFT)) - 1)
    }
    /// How far it has come.
    pub fn stage(self) -> Stage {
        STAGES[(self.0 >> STAGE_SHIFT) as usize]
    }
    /// The request at another stage.
    pub fn at(self, stage: Stage) -> Request {
        let number = STAGES.iter().position(|s| *s == stage).unwrap_or(0) as u64;
        Request(self.0 & ((1 << STAGE_SHIFT) - 1) | number << STAGE_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_and_how_far() {
        let r = Request::of(0x7fff_fffe, 1000);
        assert_eq!(
            (r.first(), r.count(), r.stage()),
            (0x7fff_fffe, PAGES_MAX, Stage::Posted)
        );
        for stage in STAGES {
            let at = r.at(stage);
            assert_eq!(
                (at.first(), at.count(), at.stage()),
                (r.first(), r.count(), stage)
            );
            assert_eq!(at.at(Stage::Posted), r);
            assert_eq!(Request::of_word(at.word()), Some(at));
        }
        for wrong in [0, 5, u64::MAX, u64::from(PAGES_MAX + 1) << COUNT_SHIFT] {
            assert_eq!(Request::of_word(wrong), None, "{wrong:#x}");
        }
    }
}
