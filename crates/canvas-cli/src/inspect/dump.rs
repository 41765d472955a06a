//! `canvas dump`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use canvas_core::pager::word::Word;
use canvas_types::procfs::Stat;
use canvas_types::{ExtentRef, PAGE_SIZE, PageBuf, exit, layout};

use super::core::{self, About, Piece, Plan};
use super::far::{Extents, Why};
use super::maps::Map;
use super::pages::{self, Found, word_addr};
use super::read::Reader;
use super::shared::Partition;
use super::stop::Stopped;
use super::target::{PRESENT, Target, proc_path};
use crate::args::DumpArgs;
use crate::error::{Failure, say};

/// How long to retry stopping a process that was caught with pages in transit, or in a mapping
/// call.
const AT_REST_WITHIN: Duration = Duration::from_secs(3);
/// Pages examined together.
const BATCH: usize = 512;

/// Writes a core dump of a running process.
pub fn run(args: &DumpArgs) -> Result<i32, Failure> {
    let target = Target::open(args.pid)?;
    let path = match &args.output {
        Some(path) => path.clone(),
        None => format!("core.{}", args.pid).into(),
    };
    let file = create(&path)?;
    let missing = dump(&target, &file, &path).inspect_err(|_| {
        let _ = fs::remove_file(&path);
    })?;
    match missing.pages {
        0 => Ok(exit::OK),
        n => {
            say(format_args!(
                "{} lacks {n} pages, which are zeros there: {}",
                path.display(),
                missing.why
            ));
            Ok(exit::NEGATIVE)
        }
    }
}

/// A core is as secret as the program's memory.
fn create(path: &Path) -> Result<File, Failure> {
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    made.map_err(|e| {
        let advice = match e.kind() {
            io::ErrorKind::AlreadyExists => "; write another name after -o",
            _ => "",
        };
        Failure::usage(format!(
            "{} cannot be made: {}{advice}",
            path.display(),
            crate::reason(&e)
        ))
    })
}

/// Pages missing from a dump.
struct Missing {
    pages: u64,
    /// The reason for the last one.
    why: Why,
}

fn dump(target: &Target, file: &File, path: &Path) -> Result<Missing, Failure> {
    let stopped = stop_at_rest(target)?;
    let maps = target.maps()?;
    let plan = core::plan(&about(target.pid), &stopped.threads, &maps).ok_or_else(|| {
        Failure::usage(format!(
            "process {} has more mappings than a core dump can have",
            target.pid
        ))
    })?;
    let mut writer = Writer {
        target,
        file,
        path,
        reader: Reader::new(target),
        deep: BTreeMap::new(),
        missing: Missing { pages: 0, why: "" },
    };
    writer.all(&plan)?;
    drop(stopped);
    Ok(writer.missing)
}

/// Stops the process when none of its pages is in transit and its list of regions is consistent; if
/// there is no such moment, anywhere.
fn stop_at_rest(target: &Target) -> Result<Stopped, Failure> {
    let partition = Partition::of(target);
    let begun = Instant::now();
    loop {
        let stopped = Stopped::new(target.pid)?;
        if !stopped.is_ours() || begun.elapsed() >= AT_REST_WITHIN {
            return Ok(stopped);
        }
        let shared_are_busy = partition.as_ref().is_some_and(Partition::has_busy_pages);
        if !shared_are_busy && !has_busy_pages(target)? {
            return Ok(stopped);
        }
        drop(stopped);
        std::thread::sleep(Duration::from_millis(3));
    }
}

fn has_busy_pages(target: &Target) -> Result<bool, Failure> {
    if target.left_out().is_none() {
        return Ok(true);
    }
    let mut words = vec![0; BATCH];
    let maps = target.maps_only()?;
    for m in maps.iter().filter(|m| is_window(m)) {
        for at in (m.start..m.end).step_by(BATCH * PAGE_SIZE) {
            let n = ((m.end - at) / PAGE_SIZE).min(BATCH);
            if target.words(word_addr(at), &mut words[..n]).is_err() {
                return Ok(false);
            }
            if words[..n].iter().any(|w| Word(*w).state().is_busy()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether it is a mapping of the program in the managed range, not a reserved part.
fn is_window(m: &Map) -> bool {
    layout::in_window(m.start) && m.prot != [false; 3]
}

fn about(pid: u32) -> About {
    let read = |name| fs::read(proc_path(pid, name)).unwrap_or_default();
    let stat = Stat::parse(&read("stat"));
    let owner = fs::metadata(proc_path(pid, "")).map_or((0, 0), |m| (m.uid(), m.gid()));
    let blank = |b: u8| if b == 0 { b' ' } else { b };
    About {
        pid,
        parent: stat.map_or(0, |s| s.parent),
        group: stat.map_or(0, |s| s.group),
        owner,
        name: read("comm").trim_ascii_end().to_vec(),
        arguments: read("cmdline").into_iter().map(blank).collect(),
        auxv: read("auxv"),
    }
}

/// Pages whose records are in one extent: each record's place and its page's offset in the file.
type Records = Vec<(ExtentRef, u64)>;

struct Writer<'t> {
    target: &'t Target,
    file: &'t File,
    path: &'t Path,
    reader: Reader<'t>,
    /// By extent, so that each extent is read only once.
    deep: BTreeMap<u32, Records>,
    missing: Missing,
}

impl Writer<'_> {
    fn all(&mut self, plan: &Plan) -> Result<(), Failure> {
        self.put(0, &plan.head)?;
        let sized = self.file.set_len(plan.file_bytes);
        sized.map_err(|e| self.failed(&e))?;
        for piece in &plan.pieces {
            if layout::in_window(piece.start) {
                self.window(piece)?;
            } else {
                self.plain(piece)?;
            }
        }
        self.beyond_the_pool()
    }

    fn failed(&self, e: &io::Error) -> Failure {
        Failure::usage(format!(
            "{} cannot be written: {}",
            self.path.display(),
            crate::reason(e)
        ))
    }

    /// Writes bytes; zeros stay a hole.
    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let mut from = 0;
        while from < bytes.len() {
            let is_hole = |at: usize| {
                bytes[at..bytes.len().min(at + PAGE_SIZE)]
                    .iter()
                    .all(|b| *b == 0)
            };
            if is_hole(from) {
                from += PAGE_SIZE;
                continue;
            }
            let mut to = from + PAGE_SIZE;
            while to < bytes.len() && !is_hole(to) {
                to += PAGE_SIZE;
            }
            let run = &bytes[from..to.min(bytes.len())];
            let written = self.file.write_all_at(run, at + from as u64);
            written.map_err(|e| self.failed(&e))?;
            from = to;
        }
        Ok(())
    }

    fn lacks(&mut self, why: Why) {
        self.missing.pages += 1;
        self.missing.why = why;
    }

    /// Memory outside the managed range.
    fn plain(&mut self, piece: &Piece) -> Result<(), Failure> {
        let shared = layout::in_partition(piece.start);
        let mut buffer = vec![0; BATCH * PAGE_SIZE];
        for from in (0..piece.bytes).step_by(BATCH * PAGE_SIZE) {
            let n = (piece.bytes - from).min(buffer.len());
            if !shared
                && self
                    .target
                    .copy(piece.start + from, &mut buffer[..n])
                    .is_ok()
            {
                self.put(piece.at + from as u64, &buffer[..n])?;
                continue;
            }
            let mut page: PageBuf = [0; PAGE_SIZE];
            for at in (from..from + n).step_by(PAGE_SIZE) {
                match self.reader.page(piece.start + at, &mut page) {
                    Ok(()) => self.put(piece.at + at as u64, &page)?,
                    Err(why) if shared => self.lacks(why),
                    // There is nothing beyond the end of a file.
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Memory in the managed range: resident pages are copied in runs, far pages one by one.
    fn window(&mut self, piece: &Piece) -> Result<(), Failure> {
        let (mut words, mut present) = (vec![0; BATCH], vec![0; BATCH]);
        for from in (0..piece.bytes).step_by(BATCH * PAGE_SIZE) {
            let addr = piece.start + from;
            let n = ((piece.bytes - from) / PAGE_SIZE).min(BATCH);
            let read = self.target.words(word_addr(addr), &mut words[..n]);
            let seen = read.and_then(|()| self.target.pagemap(addr / PAGE_SIZE, &mut present[..n]));
            seen.map_err(|e| self.failed(&e))?;
            let mut i = 0;
            while i < n {
                let is_present = |i: &usize| present[*i] & PRESENT != 0;
                let run = (i..n).take_while(is_present).count();
                let at = piece.at + (from + i * PAGE_SIZE) as u64;
                let mut bytes = vec![0; run * PAGE_SIZE];
                if run > 0 && self.target.copy(addr + i * PAGE_SIZE, &mut bytes).is_ok() {
                    self.put(at, &bytes)?;
                    i += run;
                    continue;
                }
                if words[i] != 0 || run > 0 {
                    self.far_page(addr + i * PAGE_SIZE, at)?;
                }
                i += 1;
            }
        }
        Ok(())
    }

    fn far_page(&mut self, addr: usize, at: u64) -> Result<(), Failure> {
        let mut page: PageBuf = [0; PAGE_SIZE];
        match pages::look(self.target, addr, &mut page) {
            Ok(Found::Bytes) => self.put(at, &page)?,
            Ok(Found::Zeros) => {}
            Ok(Found::InFarTier(place)) => {
                self.deep.entry(place.extent).or_default().push((place, at))
            }
            Err(problem) => self.lacks(super::read::reason(problem)),
        }
        Ok(())
    }

    fn beyond_the_pool(&mut self) -> Result<(), Failure> {
        let deep = std::mem::take(&mut self.deep);
        let mut extents = Extents::of(self.target);
        for records in deep.values() {
            for (place, at) in records {
                let mut page: PageBuf = [0; PAGE_SIZE];
                let record = match &mut extents {
                    Some(extents) => extents.record(*place),
                    None => Err("their far copies cannot be found"),
                };
                match record {
                    Ok(record) if pages::verify(self.target, record, &mut page) => {
                        self.put(*at, &page)?
                    }
                    Ok(_) => self.lacks("their far copies do not verify"),
                    Err(why) => self.lacks(why),
                }
            }
        }
        Ok(())
    }
}
