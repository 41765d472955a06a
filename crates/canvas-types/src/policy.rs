//! What a user can choose, as it is kept in the tenant segment: a number, so that every process of
//! a tenant reads the same.

/// How far pages are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Codec {
    /// Compressed with lz4 where that saves enough.
    Lz4 = 0,
    /// As they are. Pages of one repeated value store nothing all the same.
    None = 1,
}

impl Codec {
    /// The codec with this number; [`Codec::Lz4`] for a number that is none.
    pub fn from_number(n: u32) -> Codec {
        match n {
            1 => Codec::None,
            _ => Codec::Lz4,
        }
    }
    /// As flags and reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Lz4 => "lz4",
            Codec::None => "none",
        }
    }
}

/// Who decides which pages are brought in besides the one that faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Prefetch {
    /// Canvas's own: streams of each thread, gated by measured accuracy.
    Streams = 0,
    /// Leap (ATC '20): the majority of the last fault deltas of the process.
    Leap = 1,
    /// Linux's swap_vma_readahead: a window around the fault, by the hits of the last one.
    Readahead = 2,
    /// Nobody: only the page that faulted.
    None = 3,
    /// The streams, and where a fault belongs to none, the pages beside it in regions where these
    /// are measured to be used.
    Auto = 4,
}

impl Prefetch {
    /// All of them, in the order of their numbers.
    pub const ALL: [Prefetch; 5] = [
        Prefetch::Streams,
        Prefetch::Leap,
        Prefetch::Readahead,
        Prefetch::None,
        Prefetch::Auto,
    ];
    /// The one with this number; [`Prefetch::Streams`] for a number that is none.
    pub fn from_number(n: u32) -> Prefetch {
        Prefetch::ALL
            .get(n as usize)
            .copied()
            .unwrap_or(Prefetch::Streams)
    }
    /// As flags and reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Prefetch::Streams => "streams",
            Prefetch::Leap => "leap",
            Prefetch::Readahead => "readahead",
            Prefetch::None => "none",
            Prefetch::Auto => "auto",
        }
    }
}

/// What is tried for faults that the prefetcher of [`Prefetch`] has nothing for (Canvas §5.2, the application tier).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum AppTier {
    /// As [`AppTier::Refs`], as long as the program is measured to be faster with it.
    #[default]
    Auto = 0,
    /// Nothing.
    Off = 1,
    /// Deltas by thread and array.
    Threads = 2,
    /// The same and, for what lies beyond the pool, links and references that have proven themselves.
    Refs = 3,
}

impl AppTier {
    /// All of them, in the order of their numbers.
    pub const ALL: [AppTier; 4] = [AppTier::Auto, AppTier::Off, AppTier::Threads, AppTier::Refs];
    /// The one with this number; [`AppTier::Off`] for a number that is none.
    pub fn from_number(n: u32) -> AppTier {
        let of = |t: &AppTier| *t as u32 == n;
        AppTier::ALL.into_iter().find(of).unwrap_or(AppTier::Off)
    }
    /// As flags and reports call it.
    pub fn name(self) -> &'static str {
        match self {
            AppTier::Auto => "auto",
            AppTier::Off => "off",
            AppTier::Threads => "threads",
            AppTier::Refs => "refs",
        }
    }
    /// Are links followed?
    pub fn has_links(self) -> bool {
        matches!(self, AppTier::Auto | AppTier::Refs)
    }
    /// Are references followed?
    pub fn has_refs(self) -> bool {
        matches!(self, AppTier::Auto | AppTier::Refs)
    }
}
