//! Choices of the user, stored in the tenant segment as numbers, so that every process of a tenant reads the same ones.

/// How far pages are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Codec {
    /// Compressed with lz4 if that saves enough.
    Lz4 = 0,
    /// Uncompressed. Pages of one repeated value are still stored without data.
    None = 1,
}

impl Codec {
    /// The codec with this number; [`Codec::Lz4`] for an unknown number.
    pub fn from_number(n: u32) -> Codec {
        match n {
            1 => Codec::None,
            _ => Codec::Lz4,
        }
    }
    /// Name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Lz4 => "lz4",
            Codec::None => "none",
        }
    }
}

/// Which prefetcher decides what is brought in besides the faulting page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Prefetch {
    /// Canvas's own: streams per thread, limited by measured accuracy.
    Streams = 0,
    /// Leap (ATC '20): the majority of the process's last fault deltas.
    Leap = 1,
    /// Linux's swap_vma_readahead: a window around the fault, sized by the hits on the last one.
    Readahead = 2,
    /// None: only the faulting page comes in.
    None = 3,
    /// Streams; for faults outside any stream, the pages beside them in regions where such pages are measured to be
    /// used.
    Auto = 4,
}

impl Prefetch {
    /// All values, in the order of their numbers.
    pub const ALL: [Prefetch; 5] = [
        Prefetch::Streams,
        Prefetch::Leap,
        Prefetch::Readahead,
        Prefetch::None,
        Prefetch::Auto,
    ];
    /// The prefetcher with this number; [`Prefetch::Streams`] for an unknown number.
    pub fn from_number(n: u32) -> Prefetch {
        Prefetch::ALL
            .get(n as usize)
            .copied()
            .unwrap_or(Prefetch::Streams)
    }
    /// Name in flags and reports.
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

/// What is tried for faults for which the chosen [`Prefetch`] has no plan (Canvas §5.2, the application tier).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum AppTier {
    /// Like [`AppTier::Refs`], as long as the program is measured to be faster with it.
    #[default]
    Auto = 0,
    /// Nothing.
    Off = 1,
    /// Deltas by thread and array.
    Threads = 2,
    /// Also, for pages beyond the pool, links and references that have proven themselves.
    Refs = 3,
}

impl AppTier {
    /// All values, in the order of their numbers.
    pub const ALL: [AppTier; 4] = [AppTier::Auto, AppTier::Off, AppTier::Threads, AppTier::Refs];
    /// The value with this number; [`AppTier::Off`] for an unknown number.
    pub fn from_number(n: u32) -> AppTier {
        let of = |t: &AppTier| *t as u32 == n;
        AppTier::ALL.into_iter().find(of).unwrap_or(AppTier::Off)
    }
    /// Name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            AppTier::Auto => "auto",
            AppTier::Off => "off",
            AppTier::Threads => "threads",
            AppTier::Refs => "refs",
        }
    }
    /// Whether links are followed.
    pub fn has_links(self) -> bool {
        matches!(self, AppTier::Auto | AppTier::Refs)
    }
    /// Whether references are followed.
    pub fn has_refs(self) -> bool {
        matches!(self, AppTier::Auto | AppTier::Refs)
    }
}
