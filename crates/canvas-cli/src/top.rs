//! `canvas top`: runs, disks and donors on a terminal, live.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use canvas_types::exit;
use nix::sys::signalfd::SignalFd;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use ratatui::{DefaultTerminal, Frame};

use crate::args::TopArgs;
use crate::control::client::Stats;
use crate::control::rates::{Rates, unix_s};
use crate::error::Failure;
use crate::signals;
use crate::status::{duration, local_bound};
use crate::table::{Bytes, Count, MibPerS, Micros, feature_cells, plain};
use canvas_control::names::Name;
use canvas_control::wire::{Problem, Stat, Status};

/// Interval of checking for signals.
const TICK: Duration = Duration::from_millis(100);

/// Shows runs until the user or a signal ends it.
pub fn run(args: &TopArgs) -> Result<i32, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "this is not a terminal; use `canvas stat` there",
        ));
    }
    let fail = |what: &str, why: &str| Failure::usage(format!("{what}: {why}"));
    // Read between updates, so that the terminal is restored when a signal ends this.
    let signals = signals::ends().map_err(|e| fail("signals cannot be waited for", e.desc()))?;
    // Restores the terminal after a panic, too.
    let mut terminal = ratatui::try_init()
        .map_err(|e| fail("this terminal cannot be used", &crate::reason(&e)))?;
    let ended = watch(&mut terminal, args.interval, &signals);
    ratatui::restore();
    ended.map_err(|e| fail("the terminal is gone", &crate::reason(&e)))
}

fn watch(
    terminal: &mut DefaultTerminal,
    interval: Duration,
    signals: &SignalFd,
) -> std::io::Result<i32> {
    let mut view = View::default();
    view.look();
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        let mut changed = false;
        while !changed && Instant::now() < next {
            if let Ok(Some(info)) = signals.read_signal() {
                return Ok(exit::SIGNAL_BASE + info.ssi_signo as i32);
            }
            if !event::poll(TICK.min(next.saturating_duration_since(Instant::now())))? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let interrupts =
                        key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
                    if interrupts || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(exit::OK);
                    }
                }
                Event::Resize(..) => changed = true,
                _ => {}
            }
        }
        if Instant::now() >= next {
            view.look();
            next = Instant::now() + interval;
        }
    }
}

/// The displayed state.
#[derive(Default)]
struct View {
    runs: BTreeMap<Name, (Stat, Option<Rates>)>,
    disks: BTreeMap<Name, (Stat, Option<Rates>)>,
    silent: Vec<(Name, Problem)>,
}

impl View {
    fn look(&mut self) {
        let mut before = std::mem::take(&mut self.runs);
        before.append(&mut self.disks);
        let now = Stats::look(None);
        self.silent = now.silent;
        for (name, stat) in now.told {
            let old = before.remove(&name);
            let rates = old.and_then(|(old, _)| Rates::between(&old, &stat, unix_s()));
            let them = match stat.status.disk {
                Some(_) => &mut self.disks,
                None => &mut self.runs,
            };
            them.insert(name, (stat, rates));
        }
    }

    fn draw(&self, frame: &mut Frame) {
        let donors: usize = self.all().map(|(_, s)| s.donors.len()).sum();
        let problems = self.problems();
        let fit = |rows: usize| Constraint::Length(u16::try_from(rows).unwrap_or(u16::MAX));
        let [title, runs, disks, features, ahead, trouble, lenders] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(3),
            fit(if self.disks.is_empty() {
                0
            } else {
                self.disks.len().min(10) + 2
            }),
            fit(self.runs.len().clamp(1, 10) + 2),
            fit(self.runs.len().clamp(1, 10) + 2),
            fit(problems.len().min(8)),
            fit(if donors > 0 { donors.min(20) + 2 } else { 0 }),
        ])
        .areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let n = self.runs.len() + self.silent.len();
        let disks_there = match self.disks.len() {
            0 => String::new(),
            n => format!(", {n} disks"),
        };
        let head = format!(
            "canvas top: {n} runs{disks_there}, {donors} donors, {} problems    q quits",
            problems.len()
        );
        frame.render_widget(Line::styled(head, bold), title);
        frame.render_widget(self.table_of_runs(), runs);
        frame.render_widget(self.table_of_disks(), disks);
        frame.render_widget(self.table_of_features(), features);
        frame.render_widget(self.table_of_ahead(), ahead);
        let red = Style::new().fg(Color::Red);
        frame.render_widget(Paragraph::new(problems.join("\n")).style(red), trouble);
        frame.render_widget(self.table_of_donors(), lenders);
    }

    fn problems(&self) -> Vec<String> {
        let line =
            |name: &Name, p: &Problem| format!("{name} {} {}: {}", p.code, p.name, plain(&p.text));
        let told = self
            .all()
            .flat_map(|(name, s)| s.health.iter().map(move |p| line(name, p)));
        let silent = self.silent.iter().map(|(name, p)| line(name, p));
        told.chain(silent).collect()
    }

    /// Runs, then disks.
    fn all(&self) -> impl Iterator<Item = (&Name, &Status)> {
        let all = self.runs.iter().chain(&self.disks);
        all.map(|(name, (stat, _))| (name, &stat.status))
    }

    fn table_of_runs(&self) -> Table<'_> {
        let head = [
            "TENANT", "PID", "UP", "LOCAL", "LIMIT", "SHARED", "POOL", "GRANT", "FAR", "WGT",
            "FAULT/s", "FAR/s", "DEEP/s", "IN/s", "OUT/s", "p50us", "p99us", "RD MiB/s",
            "WR MiB/s",
        ];
        let rows = self.runs.iter().map(|(name, (stat, rates))| {
            let (s, used) = (&stat.status, &stat.status.used);
            let rate = |of: fn(&Rates) -> f64| {
                rates
                    .as_ref()
                    .map_or("-".to_owned(), |r| Count(of(r)).to_string())
            };
            let us = |of: fn(&Rates) -> Option<u64>| {
                let ns = rates.as_ref().and_then(of);
                ns.map_or("-".to_owned(), |ns| Micros(ns).to_string())
            };
            let mib = |of: fn(&Rates) -> f64| {
                let bytes = rates.as_ref().map(of);
                bytes.map_or("-".to_owned(), |b| MibPerS(b).to_string())
            };
            // Usage, then the limit.
            let most = |limit: Option<u64>| {
                limit.map_or(String::new(), |b| format!("/{}", b.div_ceil(1 << 20)))
            };
            let limit = local_bound(&s.limits);
            let row = Row::new([
                plain(&name.tenant),
                name.pid.to_string(),
                duration(s.uptime_s),
                Bytes(used.local_bytes).to_string(),
                limit.map_or("-".to_owned(), |b| Bytes(b).to_string()),
                s.limits.shared_now_bytes().map_or("-".to_owned(), |most| {
                    format!("{}/{}", Bytes(used.shared_bytes), Bytes(most))
                }),
                Bytes(used.pool_bytes).to_string(),
                Bytes(s.limits.pool_now_bytes()).to_string(),
                Bytes(used.far_bytes).to_string(),
                s.limits.weight.map_or("-".to_owned(), |w| w.to_string()),
                rate(|r| r.faults_first_touch_per_s + r.faults_cache_per_s + r.faults_far_per_s),
                rate(|r| r.faults_far_per_s),
                rate(|r| r.faults_beyond_pool_per_s),
                rate(|r| r.pages_in_per_s),
                rate(|r| r.pages_out_per_s),
                us(|r| r.fault_p50_ns),
                us(|r| r.fault_p99_ns),
                mib(|r| r.remote_read_bytes_per_s) + &most(s.limits.swap_in_limit_bytes_per_s),
                mib(|r| r.remote_written_bytes_per_s) + &most(s.limits.swap_out_limit_bytes_per_s),
            ]);
            if s.healthy {
                row
            } else {
                row.style(Style::new().fg(Color::Red))
            }
        });
        let widths =
            [18, 8, 8, 6, 6, 11, 6, 6, 6, 4, 7, 6, 6, 6, 6, 6, 6, 9, 9].map(Constraint::Length);
        Table::new(rows, widths).header(header(&head))
    }

    fn table_of_disks(&self) -> Table<'_> {
        let head = [
            "DISK", "PID", "UP", "SIZE", "PAGES", "POOL", "LIMIT", "RATIO", "FAR", "WGT",
            "CLIENTS", "READ/s", "WRITE/s", "DEEP/s", "RD MiB/s", "WR MiB/s",
        ];
        let rows = self.disks.iter().map(|(name, (stat, rates))| {
            let s = &stat.status;
            let d = s.disk.unwrap_or_default();
            let rate = |of: fn(&Rates) -> f64| rates.as_ref().map(of);
            let count = |of| rate(of).map_or("-".to_owned(), |n| Count(n).to_string());
            let mib = |of| {
                let bytes = rate(of);
                bytes.map_or("-".to_owned(), |b| MibPerS(b).to_string())
            };
            let row = Row::new([
                plain(&name.tenant),
                name.pid.to_string(),
                duration(s.uptime_s),
                Bytes(d.size_bytes).to_string(),
                Count(d.stored_pages as f64).to_string(),
                Bytes(s.used.pool_bytes).to_string(),
                Bytes(s.limits.pool_now_bytes()).to_string(),
                d.ratio
                    .map_or("-".to_owned(), |ratio| format!("{ratio:.1}")),
                Bytes(s.used.far_bytes).to_string(),
                s.limits.weight.map_or("-".to_owned(), |w| w.to_string()),
                d.clients.to_string(),
                count(|r| r.pages_in_per_s),
                count(|r| r.pages_out_per_s),
                count(|r| r.faults_beyond_pool_per_s),
                mib(|r| r.remote_read_bytes_per_s),
                mib(|r| r.remote_written_bytes_per_s),
            ]);
            if s.healthy {
                row
            } else {
                row.style(Style::new().fg(Color::Red))
            }
        });
        let widths = [18, 8, 8, 6, 6, 6, 6, 6, 6, 4, 7, 7, 7, 7, 9, 9].map(Constraint::Length);
        Table::new(rows, widths).header(header(&head))
    }

    fn table_of_features(&self) -> Table<'_> {
        let head = [
            "TENANT", "PID", "FRAG", "STORE", "SEQ", "HOT", "COMP", "FILE", "SLOW", "STALL",
        ];
        let rows = self.runs.iter().map(|(name, (_, rates))| {
            let features = rates.as_ref().map(|r| r.features.clone());
            let cells = feature_cells(&features.unwrap_or_default());
            Row::new(
                [plain(&name.tenant), name.pid.to_string()]
                    .into_iter()
                    .chain(cells),
            )
        });
        let widths = [18, 8, 6, 6, 6, 6, 6, 6, 6, 6].map(Constraint::Length);
        Table::new(rows, widths).header(header(&head))
    }

    /// Pages brought back ahead of need per second, by their source.
    fn table_of_ahead(&self) -> Table<'_> {
        let head = [
            "TENANT", "PID", "STRM/s", "NEAR/s", "FWD/s", "KEPT/s", "ARR/s", "LINK/s", "USED/s",
            "REF/s", "USED/s", "HINT/s", "LEARN/s", "FREE/s",
        ];
        let rows = self.runs.iter().map(|(name, (_, rates))| {
            let cells = rates.as_ref().map(|r| r.ahead.cells());
            let cells = cells.unwrap_or_default().map(|n| Count(n).to_string());
            Row::new(
                [plain(&name.tenant), name.pid.to_string()]
                    .into_iter()
                    .chain(cells),
            )
        });
        let widths = [18, 8, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 7, 6].map(Constraint::Length);
        Table::new(rows, widths).header(header(&head))
    }

    fn table_of_donors(&self) -> Table<'_> {
        let head = [
            "DONOR", "TENANT", "STATE", "SLABS", "FREE", "RTT us", "P50 us", "P99 us", "WAIT",
        ];
        let donors = self
            .all()
            .flat_map(|(name, s)| s.donors.iter().map(move |d| (name, d)));
        let us = |us: Option<u32>| us.map_or("-".to_owned(), |us| us.to_string());
        let rows = donors.map(move |(name, d)| {
            let row = Row::new([
                plain(&d.address),
                name.to_string(),
                plain(&d.state),
                d.slabs.to_string(),
                Bytes(d.free_bytes).to_string(),
                us(d.round_trip_us),
                us(d.read_p50_us),
                us(d.read_p99_us),
                d.outstanding.to_string(),
            ]);
            match d.state.as_str() {
                "up" if !d.slow => row,
                _ => row.style(Style::new().fg(Color::Red)),
            }
        });
        let widths = [24, 24, 9, 6, 6, 8, 8, 8, 5].map(Constraint::Length);
        Table::new(rows, widths).header(header(&head))
    }
}

fn header<'a>(names: &[&'a str]) -> Row<'a> {
    let cells = names.iter().map(|n| Cell::from(*n));
    Row::new(cells.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::REVERSED))
}
