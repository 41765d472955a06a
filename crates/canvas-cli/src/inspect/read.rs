//! `canvas read`: prints memory of a process.

use std::fs::File;
use std::io::{self, Write};

use canvas_types::{PAGE_SIZE, PageBuf, exit, layout};

use super::far::Extents;
use super::maps::Map;
use super::pages::{self, Found, Problem};
use super::shared::Partition;
use super::target::Target;
use crate::args::ReadArgs;
use crate::error::Failure;

/// Reads any memory of a process, a page at a time.
pub struct Reader<'t> {
    target: &'t Target,
    extents: Option<Extents<'t>>,
    partition: Option<Partition>,
}

/// Tries to read a record that moves meanwhile.
const MOVES: usize = 8;

impl<'t> Reader<'t> {
    /// For this process.
    pub fn new(target: &'t Target) -> Reader<'t> {
        Reader {
            target,
            extents: Extents::of(target),
            partition: Partition::of(target),
        }
    }

    /// Reads the page at `addr`, or returns why it cannot, as the end of a sentence.
    pub fn page(&mut self, addr: usize, out: &mut PageBuf) -> Result<(), &'static str> {
        if layout::in_partition(addr) {
            let partition = self.partition.as_ref().ok_or("nothing is mapped there")?;
            return partition.look(addr, self.extents.as_mut(), out);
        }
        if !layout::in_window(addr) {
            let copied = self.target.copy(addr, out);
            return copied.or(Err("nothing is there that can be read"));
        }
        for _ in 0..MOVES {
            let place = match pages::look(self.target, addr, out).map_err(reason)? {
                Found::Bytes | Found::Zeros => return Ok(()),
                Found::InFarTier(place) => place,
            };
            let extents = self
                .extents
                .as_mut()
                .ok_or("its far copy cannot be found")?;
            match extents.record(place) {
                Ok(record) if pages::verify(self.target, record, out) => return Ok(()),
                // The page came back or was rewritten meanwhile.
                _ if !pages::is_at(self.target, addr, place) => extents.forget(),
                Ok(_) => return Err("its far copy does not verify"),
                Err(why) => return Err(why),
            }
        }
        Err("it keeps moving")
    }
}

/// The problem as the end of a sentence.
pub fn reason(problem: Problem) -> &'static str {
    match problem {
        Problem::Busy => "it stays in transit to or from far memory",
        Problem::Damaged => "its far copy does not verify",
        Problem::Gone => "nothing is mapped there, or the process has ended",
    }
}

/// Prints or writes bytes of a process.
pub fn run(args: &ReadArgs) -> Result<i32, Failure> {
    let target = Target::open(args.pid)?;
    let (begin, len) = (args.addr.0, args.len.bytes as usize);
    let end = begin.checked_add(len).filter(|_| len > 0).ok_or_else(|| {
        Failure::usage("the range is empty or leaves the address space; write another ADDR or LEN")
    })?;
    let maps = target.maps_only()?;
    let mut reader = Reader::new(&target);
    let mut page: PageBuf = [0; PAGE_SIZE];
    let mut out = Output::open(args)?;
    let mut at = begin;
    while at < end {
        let base = at & !(PAGE_SIZE - 1);
        is_mapped(&maps, base).then_some(()).ok_or_else(|| {
            Failure::usage(format!(
                "nothing is mapped at {at:#x} in process {}; see /proc/{}/maps",
                args.pid, args.pid
            ))
        })?;
        reader.page(base, &mut page).map_err(|why| Failure {
            code: exit::NEGATIVE,
            sentence: format!(
                "the page at {base:#x} of process {} cannot be read: {why}",
                args.pid
            ),
        })?;
        let to = (base + PAGE_SIZE).min(end);
        out.write(at, &page[at - base..to - base])?;
        at = to;
    }
    out.end()?;
    Ok(exit::OK)
}

/// Memory that is reserved but not mapped does not count.
fn is_mapped(maps: &[Map], addr: usize) -> bool {
    let map = maps.iter().find(|m| (m.start..m.end).contains(&addr));
    map.is_some_and(|m| m.prot != [false; 3])
}

/// Destination of the bytes.
enum Output {
    Lines(Vec<u8>),
    Raw(Box<dyn Write>),
}

/// Bytes per line.
const LINE: usize = 16;

impl Output {
    fn open(args: &ReadArgs) -> Result<Output, Failure> {
        Ok(match &args.output {
            Some(path) => Output::Raw(Box::new(File::create(path).map_err(|e| {
                Failure::usage(format!(
                    "{} cannot be written: {}",
                    path.display(),
                    crate::reason(&e)
                ))
            })?)),
            None if args.raw => Output::Raw(Box::new(io::stdout().lock())),
            None => Output::Lines(Vec::new()),
        })
    }
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Output::Raw(to) => written(to.write_all(bytes)),
            Output::Lines(text) => {
                for (i, line) in bytes.chunks(LINE).enumerate() {
                    text.extend_from_slice(dump_line(at + i * LINE, line).as_bytes());
                }
                // Page by page, so that a long range needs no memory and shows progress.
                let out = written(io::stdout().lock().write_all(text));
                text.clear();
                out
            }
        }
    }
    fn end(self) -> Result<(), Failure> {
        match self {
            Output::Raw(mut to) => written(to.flush()),
            Output::Lines(_) => Ok(()),
        }
    }
}

fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        // The reader has closed the pipe.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(exit::OK),
        Err(e) => Err(Failure::usage(format!(
            "the bytes cannot be written: {}",
            crate::reason(&e)
        ))),
        Ok(()) => Ok(()),
    }
}

/// `0x600000001000  68 65 6c 6c 6f ...  |hello...|`
fn dump_line(at: usize, bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut line = format!("{at:#x} ");
    for i in 0..LINE {
        let gap = if i == LINE / 2 { " " } else { "" };
        let _ = match bytes.get(i) {
            Some(b) => write!(line, "{gap} {b:02x}"),
            None => write!(line, "{gap}   "),
        };
    }
    let shown = |b: &u8| {
        if b.is_ascii_graphic() || *b == b' ' {
            char::from(*b)
        } else {
            '.'
        }
    };
    let text: String = bytes.iter().map(shown).collect();
    line + "  |" + &text + "|\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_bytes_and_letters() {
        let line = dump_line(0x1000, b"hello, far\x00\xffab");
        let want = "0x1000  68 65 6c 6c 6f 2c 20 66  61 72 00 ff 61 62        |hello, far..ab|\n";
        assert_eq!(line, want);
    }
}
