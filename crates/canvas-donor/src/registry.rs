//! The table of clients and their slabs.
//!
//! Times are milliseconds since the donor's start and are passed by the caller, so that leases and
//! deadlines can be tested without waiting.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use canvas_place::early::{self, Worth};
use canvas_place::headroom::{Decision, Headroom, Sample};
use canvas_place::lease;
use canvas_place::victims::{self, Activity};
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Lent, Pong, SlabKey, Valued};
use canvas_wire::{ClientId, LIST_MAX};

use crate::LINKS_OF_A_CLIENT_MAX;
use crate::outbox::{Outbox, OwnedCall};
use crate::slab::Slab;

/// A client heard of within its lease.
#[derive(Debug)]
pub struct Client {
    /// Its id.
    pub id: ClientId,
    /// Time of its last sign of life.
    last_ms: AtomicU64,
    lease_ms: AtomicU64,
    links: Mutex<Links>,
}

/// The links of a client.
#[derive(Debug, Default)]
struct Links {
    /// By number.
    up: BTreeMap<u32, Arc<Outbox>>,
    /// Replaced by newer links, and possibly not fenced yet.
    replaced: Vec<Arc<Outbox>>,
}

impl Client {
    /// Records a sign of life.
    pub fn heard(&self, now_ms: u64) {
        self.last_ms.fetch_max(now_ms, Relaxed);
    }

    /// Moves the last sign of life later by a time in which nothing could be received; never past
    /// now.
    fn postpone(&self, gap_ms: u64, now_ms: u64) {
        let later = |last_ms: u64| Some(lease::postponed(last_ms, gap_ms, now_ms));
        let _ = self.last_ms.fetch_update(Relaxed, Relaxed, later);
    }

    /// Time of its last sign of life.
    pub fn last_ms(&self) -> u64 {
        self.last_ms.load(Relaxed)
    }

    /// How long its slabs are kept without a sign of life.
    pub fn lease_ms(&self) -> u64 {
        self.lease_ms.load(Relaxed)
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links
            .lock()
            .expect("no thread panics while it holds a client")
    }

    /// Number of its links.
    pub fn link_count(&self) -> usize {
        self.links().up.len()
    }

    /// Queues a call on the lowest of its links; does nothing without links.
    fn call(&self, call: OwnedCall) {
        if let Some(outbox) = self.links().up.values().next() {
            outbox.send(call);
        }
    }
}

struct Entry {
    slab: Arc<Slab>,
    client: Arc<Client>,
    /// Time at which it is freed, if it is being evicted.
    deadline_ms: Option<u64>,
    /// Number of operations at the last sample.
    ops_before: u64,
    /// Use since then as reported by its client; `None` without a report.
    activity: Option<u64>,
    /// Whether it is in the sample of the current query.
    queried: bool,
    /// Use before the last sample.
    used_before: u64,
    /// Its value as reported by its client.
    worth: Worth,
}

impl Entry {
    fn lent(&self, slab: u64) -> early::Lent<u64> {
        early::Lent {
            slab,
            bytes: self.slab.touched_bytes(),
            worth: self.worth,
            is_leaving: self.deadline_ms.is_some(),
            ops: self.used_before.max(self.slab.ops() - self.ops_before),
        }
    }
}

/// The slabs by handle. There may be very many, and the table is locked while they are traversed:
/// tests count traversals.
#[derive(Default)]
struct Slabs {
    by_handle: BTreeMap<u64, Entry>,
    #[cfg(test)]
    passes: std::cell::Cell<usize>,
}

impl Slabs {
    fn iter(&self) -> impl Iterator<Item = (&u64, &Entry)> {
        #[cfg(test)]
        self.passes.set(self.passes.get() + 1);
        self.by_handle.iter()
    }
    fn values(&self) -> impl Iterator<Item = &Entry> {
        self.iter().map(|(_, e)| e)
    }
}

impl Deref for Slabs {
    type Target = BTreeMap<u64, Entry>;
    fn deref(&self) -> &BTreeMap<u64, Entry> {
        &self.by_handle
    }
}

impl DerefMut for Slabs {
    fn deref_mut(&mut self) -> &mut BTreeMap<u64, Entry> {
        &mut self.by_handle
    }
}

struct Inner {
    clients: HashMap<ClientId, Arc<Client>>,
    slabs: Slabs,
    by_key: HashMap<(ClientId, SlabKey), u64>,
    headroom: Headroom,
    lent_bytes: u64,
    next_handle: u64,
    ending: bool,
}

/// The table of clients and slabs.
pub struct Registry(Mutex<Inner>);

/// A client whose lease has expired.
pub struct Expired {
    /// The client.
    pub client: Arc<Client>,
    /// Number of slabs freed.
    pub slabs: usize,
}

/// Figures for the state file and the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Clients.
    pub clients: usize,
    /// Slabs lent.
    pub slabs: usize,
    /// Their full size.
    pub lent_bytes: u64,
    /// Memory that they occupy.
    pub touched_bytes: u64,
    /// Memory that slabs being evicted occupy.
    pub leaving_bytes: u64,
    /// Number of slabs being evicted.
    pub leaving: usize,
    /// Slabs whose clients reported another copy.
    pub spare: usize,
}

/// A client's figures in the state file.
pub struct ClientFigures {
    /// The client.
    pub client: Arc<Client>,
    /// Number of its slabs.
    pub slabs: usize,
    /// Memory that they occupy.
    pub touched_bytes: u64,
}

impl Inner {
    /// Removes a slab from the tables. Its memory is still there.
    fn remove(&mut self, handle: u64) -> Option<Arc<Slab>> {
        let entry = self.slabs.remove(&handle)?;
        self.by_key.remove(&(entry.client.id, entry.slab.key));
        self.lent_bytes -= entry.slab.bytes();
        Some(entry.slab)
    }

    fn owned(&self, client: &ClientId, handle: u64) -> Option<&Entry> {
        self.slabs.get(&handle).filter(|e| e.client.id == *client)
    }

    fn totals(&self) -> Totals {
        let mut t = Totals {
            clients: self.clients.len(),
            slabs: self.slabs.len(),
            lent_bytes: self.lent_bytes,
            ..Totals::default()
        };
        for e in self.slabs.values() {
            let touched = e.slab.touched_bytes();
            t.touched_bytes += touched;
            t.spare += usize::from(e.worth == Worth::Spare);
            if e.deadline_ms.is_some() {
                t.leaving_bytes += touched;
                t.leaving += 1;
            }
        }
        t
    }
}

/// Frees the memory of slabs, without the table's lock.
fn release(slabs: &[Arc<Slab>]) {
    for slab in slabs {
        slab.release();
    }
}

impl Registry {
    /// An empty table. Handles count up from `first_handle`, which differs between runs, so that a
    /// handle of an earlier run is invalid.
    pub fn new(headroom: Headroom, first_handle: u64) -> Registry {
        Registry(Mutex::new(Inner {
            clients: HashMap::new(),
            slabs: Slabs::default(),
            by_key: HashMap::new(),
            headroom,
            lent_bytes: 0,
            next_handle: first_handle,
            ending: false,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0
            .lock()
            .expect("no thread panics while it holds the table")
    }

    /// Whether this client has links or slabs, or had them within its lease.
    pub fn knows(&self, id: &ClientId) -> bool {
        self.lock().clients.contains_key(id)
    }

    /// Adds a link of this client. An older link with the same number is closed: the client has
    /// given it up. Link 0, a client's first, closes all older ones: the client has started again,
    /// perhaps as another process. Calls for all its slabs being evicted are repeated. A donor that
    /// is shutting down accepts only clients with slabs.
    ///
    /// When this returns, nothing more is done for links that were replaced, now or earlier.
    pub fn join(
        &self,
        id: ClientId,
        link: u32,
        outbox: &Arc<Outbox>,
        lease_ms: u64,
        now_ms: u64,
    ) -> Result<Arc<Client>, ErrorCode> {
        let mut inner = self.lock();
        let leaving = inner.leaving_of(&id);
        // Clients with slabs may come back until the end; all their slabs are being evicted.
        if inner.ending && leaving.is_empty() {
            return Err(ErrorCode::Ending);
        }
        let client = inner.clients.entry(id).or_insert_with(|| {
            Arc::new(Client {
                id,
                last_ms: now_ms.into(),
                lease_ms: lease_ms.into(),
                links: Mutex::default(),
            })
        });
        let client = Arc::clone(client);
        let mut links = client.links();
        let older: Vec<_> = match link {
            0 => std::mem::take(&mut links.up).into_values().collect(),
            _ => links.up.remove(&link).into_iter().collect(),
        };
        if links.up.len() >= LINKS_OF_A_CLIENT_MAX {
            return Err(ErrorCode::TooManyLinks);
        }
        links.up.insert(link, Arc::clone(outbox));
        for outbox in &older {
            outbox.close();
        }
        links.replaced.extend(older);
        // Including those that another thread is fencing, which may not have finished.
        let replaced = links.replaced.clone();
        drop(links);
        client.heard(now_ms);
        client.lease_ms.store(lease_ms, Relaxed);
        for (deadline_ms, handles) in &leaving {
            for call in stops(*deadline_ms, handles) {
                outbox.send(call);
            }
        }
        drop(inner);
        for outbox in &replaced {
            outbox.fence();
        }
        let is_fenced = |o: &Arc<Outbox>| replaced.iter().any(|r| Arc::ptr_eq(o, r));
        client.links().replaced.retain(|o| !is_fenced(o));
        Ok(client)
    }

    /// Removes a link. The client's slabs stay for its lease.
    pub fn leave(&self, client: &Client, link: u32, outbox: &Arc<Outbox>) {
        let mut links = client.links();
        if links.up.get(&link).is_some_and(|o| Arc::ptr_eq(o, outbox)) {
            links.up.remove(&link);
        }
    }

    /// Lends a slab, or returns the one lent under this key.
    pub fn alloc(&self, client: &Arc<Client>, key: SlabKey) -> Result<u64, ErrorCode> {
        let mut inner = self.lock();
        // A client whose lease has just expired is no longer in the table.
        if !inner
            .clients
            .get(&client.id)
            .is_some_and(|c| Arc::ptr_eq(c, client))
        {
            return Err(ErrorCode::Ending);
        }
        if let Some(&handle) = inner.by_key.get(&(client.id, key)) {
            // A client that allocates it again has forgotten the value that it reported: assume
            // the highest.
            if let Some(e) = inner.slabs.get_mut(&handle) {
                e.worth = Worth::Sole;
            }
            return Ok(handle);
        }
        if inner.ending {
            return Err(ErrorCode::Ending);
        }
        let lent = inner.lent_bytes;
        if !inner.headroom.admits_bytes(lent, key.bytes() as u64) {
            return Err(ErrorCode::NoRoom);
        }
        let handle = inner.next_handle;
        let slab = Slab::new(handle, key).map_err(|_| ErrorCode::NoRoom)?;
        inner.next_handle = handle.wrapping_add(1);
        inner.lent_bytes += slab.bytes();
        inner.by_key.insert((client.id, key), handle);
        inner.slabs.insert(
            handle,
            Entry {
                slab: Arc::new(slab),
                client: Arc::clone(client),
                deadline_ms: None,
                ops_before: 0,
                activity: None,
                queried: false,
                used_before: 0,
                worth: Worth::Sole,
            },
        );
        Ok(handle)
    }

    /// The slab with this handle, if it belongs to this client.
    pub fn find(&self, client: &ClientId, handle: u64) -> Option<Arc<Slab>> {
        self.lock()
            .owned(client, handle)
            .map(|e| Arc::clone(&e.slab))
    }

    /// Frees a slab of this client.
    pub fn free(&self, client: &ClientId, handle: u64) -> Result<(), ErrorCode> {
        let slab = {
            let mut inner = self.lock();
            inner
                .owned(client, handle)
                .ok_or(ErrorCode::UnknownHandle)?;
            inner.remove(handle)
        };
        release(slab.as_slice());
        Ok(())
    }

    /// This client's slabs with handles above `after`, and whether there are more.
    pub fn list(&self, client: &ClientId, after: u64) -> (Vec<Lent>, bool) {
        let inner = self.lock();
        let above = (Bound::Excluded(after), Bound::Unbounded);
        let mut all = inner
            .slabs
            .range(above)
            .filter(|(_, e)| e.client.id == *client)
            .map(|(&handle, e)| Lent {
                key: e.slab.key,
                handle,
            });
        let page: Vec<Lent> = all.by_ref().take(LIST_MAX).collect();
        (page, all.next().is_some())
    }

    /// The donor's free and lent memory.
    pub fn pong(&self) -> Pong {
        let inner = self.lock();
        let lent_bytes = inner.lent_bytes;
        let free_bytes = if inner.ending {
            0
        } else {
            inner.headroom.free_bytes(lent_bytes)
        };
        Pong {
            free_bytes,
            lent_bytes,
            pressure: inner.headroom.pressure() || inner.ending,
        }
    }

    /// Processes a sample of the host's memory.
    pub fn observe(&self, available_bytes: u64) -> Decision {
        let mut inner = self.lock();
        let t = inner.totals();
        inner.headroom.observe(Sample {
            available_bytes,
            lent_bytes: t.lent_bytes,
            touched_bytes: t.touched_bytes,
            leaving_bytes: t.leaving_bytes,
        })
    }

    /// Frees everything of clients with expired leases, and closes their links.
    pub fn expire(&self, now_ms: u64) -> Vec<Expired> {
        let mut inner = self.lock();
        let is_over = |c: &Client| lease::is_over(c.last_ms(), c.lease_ms(), now_ms);
        let mut gone: HashMap<ClientId, Expired> = HashMap::new();
        inner.clients.retain(|id, client| {
            let over = is_over(client);
            if over {
                let client = Arc::clone(client);
                gone.insert(*id, Expired { client, slabs: 0 });
            }
            !over
        });
        if gone.is_empty() {
            return Vec::new();
        }
        // In one pass, whatever their number.
        let mut handles = Vec::new();
        for (&handle, e) in inner.slabs.iter() {
            if let Some(of) = gone.get_mut(&e.client.id) {
                of.slabs += 1;
                handles.push(handle);
            }
        }
        let slabs: Vec<_> = handles.iter().filter_map(|&h| inner.remove(h)).collect();
        for of in gone.values() {
            for outbox in of.client.links().up.values() {
                outbox.close();
            }
        }
        drop(inner);
        release(&slabs);
        gone.into_values().collect()
    }

    /// This process was stopped, or the host slept, for `gap_ms`: clients could not be heard, and
    /// could not move slabs. Delays leases and deadlines by that time.
    pub fn postpone(&self, gap_ms: u64, now_ms: u64) {
        let mut inner = self.lock();
        for client in inner.clients.values() {
            client.postpone(gap_ms, now_ms);
        }
        for deadline_ms in inner
            .slabs
            .values_mut()
            .filter_map(|e| e.deadline_ms.as_mut())
        {
            *deadline_ms = deadline_ms.saturating_add(gap_ms);
        }
    }

    /// Starts an eviction of `count` slabs: samples some, and asks their clients about their use.
    /// Returns the number of sampled slabs; [`Registry::stop_least_active`] continues.
    pub fn query(&self, rng: &mut fastrand::Rng, count: usize) -> usize {
        let mut inner = self.lock();
        let staying: Vec<u64> = inner
            .slabs
            .iter()
            .filter(|(_, e)| e.deadline_ms.is_none())
            .map(|(&h, _)| h)
            .collect();
        let sampled = victims::sample(rng, &staying, count + victims::EXTRA);
        for handle in &sampled {
            if let Some(e) = inner.slabs.get_mut(handle) {
                e.queried = true;
                e.activity = None;
            }
        }
        for (client, handles) in inner.by_client(&sampled) {
            client.call(OwnedCall::Query(handles));
        }
        sampled.len()
    }

    /// Records a client's report on a slab's use. Only slabs that were asked for count.
    pub fn note_activity(&self, client: &ClientId, handle: u64, ops: u64) {
        let mut inner = self.lock();
        if let Some(e) = inner.slabs.get_mut(&handle)
            && e.client.id == *client
            && e.queried
        {
            e.activity = Some(ops);
        }
    }

    /// Records a client's values of its slabs.
    pub fn value(&self, client: &ClientId, slabs: impl Iterator<Item = Valued>) {
        let mut inner = self.lock();
        for valued in slabs {
            if let Some(e) = inner.slabs.get_mut(&valued.handle)
                && e.client.id == *client
            {
                e.worth = Worth::of_number(valued.worth);
            }
        }
    }

    /// The host is running out of memory: frees the slabs that are due now, and informs their
    /// clients. Returns the freed slabs.
    pub fn free_early(&self, sample: &early::HostSample) -> Vec<early::Lent<u64>> {
        let (due, slabs) = {
            let mut inner = self.lock();
            let lent: Vec<_> = inner.slabs.iter().map(|(&h, e)| e.lent(h)).collect();
            let due = sample.due(&lent);
            let handles: Vec<u64> = due.iter().map(|s| s.slab).collect();
            let clients = inner.by_client(&handles);
            let freed = handles.iter().filter_map(|&h| inner.remove(h));
            let slabs: Vec<Arc<Slab>> = freed.collect();
            for (client, handles) in clients {
                for part in handles.chunks(canvas_wire::EVICT_MAX) {
                    client.call(OwnedCall::Gone(part.to_vec()));
                }
            }
            (due, slabs)
        };
        release(&slabs);
        due
    }

    /// Whether all clients have answered the query.
    pub fn all_answered(&self) -> bool {
        self.lock()
            .slabs
            .values()
            .all(|e| !e.queried || e.activity.is_some())
    }

    /// Ends the query: the `count` least active sampled slabs become read-only, and their clients
    /// are called to move them. For clients that have not answered, the donor's own count of
    /// operations is used. Returns the number of these slabs.
    pub fn stop_least_active(&self, count: usize, deadline_ms: u64) -> usize {
        let mut inner = self.lock();
        let mut sampled = Vec::new();
        for (&slab, e) in inner.slabs.iter_mut() {
            if std::mem::take(&mut e.queried) {
                let ops = e.slab.ops();
                let own = ops - e.ops_before;
                e.ops_before = ops;
                let ops = e.activity.take().unwrap_or(own);
                e.used_before = ops;
                sampled.push(Activity { slab, ops });
            }
        }
        let chosen = victims::least_active(&sampled, count);
        inner.stop(&chosen, deadline_ms);
        chosen.len()
    }

    /// Shuts down: nothing more is lent, and all slabs are being evicted.
    pub fn stop_all(&self, deadline_ms: u64) -> usize {
        let mut inner = self.lock();
        inner.ending = true;
        let all: Vec<u64> = inner.slabs.keys().copied().collect();
        inner.stop(&all, deadline_ms);
        all.len()
    }

    /// A client has moved a slab that was being evicted: frees it. Other slabs are left alone.
    pub fn evict_done(&self, client: &ClientId, handle: u64) {
        let slab = {
            let mut inner = self.lock();
            match inner.owned(client, handle) {
                Some(e) if e.deadline_ms.is_some() => inner.remove(handle),
                _ => None,
            }
        };
        release(slab.as_slice());
    }

    /// Frees the slabs whose deadline has passed, and returns their number.
    pub fn free_due(&self, now_ms: u64) -> usize {
        let slabs: Vec<Arc<Slab>> = {
            let mut inner = self.lock();
            let due: Vec<u64> = inner
                .slabs
                .iter()
                .filter(|(_, e)| e.deadline_ms.is_some_and(|d| d <= now_ms))
                .map(|(&h, _)| h)
                .collect();
            due.iter().filter_map(|&h| inner.remove(h)).collect()
        };
        release(&slabs);
        slabs.len()
    }

    /// The figures.
    pub fn totals(&self) -> Totals {
        self.lock().totals()
    }

    /// The average of available memory, and the limit on lending.
    pub fn headroom(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.headroom.average_bytes(), inner.headroom.limit_bytes())
    }

    /// All clients' figures.
    pub fn clients(&self) -> Vec<ClientFigures> {
        let inner = self.lock();
        let held = held_by_client(inner.slabs.values());
        let mut all: Vec<ClientFigures> = inner
            .clients
            .values()
            .map(|client| {
                let (slabs, touched_bytes) = held.get(&client.id).copied().unwrap_or_default();
                ClientFigures {
                    client: Arc::clone(client),
                    slabs,
                    touched_bytes,
                }
            })
            .collect();
        all.sort_by_key(|f| f.client.id);
        all
    }
}

impl Inner {
    fn by_client(&self, handles: &[u64]) -> Vec<(Arc<Client>, Vec<u64>)> {
        let mut groups: BTreeMap<ClientId, (Arc<Client>, Vec<u64>)> = BTreeMap::new();
        for handle in handles {
            if let Some(e) = self.slabs.get(handle) {
                let group = groups
                    .entry(e.client.id)
                    .or_insert_with(|| (Arc::clone(&e.client), Vec::new()));
                group.1.push(*handle);
            }
        }
        groups.into_values().collect()
    }

    fn stop(&mut self, handles: &[u64], deadline_ms: u64) {
        let new: Vec<u64> = handles
            .iter()
            .copied()
            .filter(|h| self.slabs.get(h).is_some_and(|e| e.deadline_ms.is_none()))
            .collect();
        for handle in &new {
            if let Some(e) = self.slabs.get_mut(handle) {
                e.deadline_ms = Some(deadline_ms);
                e.slab.make_read_only();
            }
        }
        for (client, handles) in self.by_client(&new) {
            for call in stops(deadline_ms, &handles) {
                client.call(call);
            }
        }
    }

    /// A client's slabs that are being evicted, by deadline.
    fn leaving_of(&self, client: &ClientId) -> BTreeMap<u64, Vec<u64>> {
        let mut leaving: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (&handle, e) in self.slabs.iter().filter(|(_, e)| e.client.id == *client) {
            if let Some(deadline_ms) = e.deadline_ms {
                leaving.entry(deadline_ms).or_default().push(handle);
            }
        }
        leaving
    }
}

/// Calls about slabs being evicted, split by the size of frames.
fn stops(deadline_ms: u64, handles: &[u64]) -> impl Iterator<Item = OwnedCall> {
    let parts = handles.chunks(canvas_wire::EVICT_MAX);
    parts.map(move |part| OwnedCall::Stop {
        deadline_ms,
        handles: part.to_vec(),
    })
}

/// Number and memory of the slabs of each client, in one pass.
fn held_by_client<'e>(entries: impl Iterator<Item = &'e Entry>) -> HashMap<ClientId, (usize, u64)> {
    let mut held: HashMap<ClientId, (usize, u64)> = HashMap::new();
    for e in entries {
        let (slabs, touched_bytes) = held.entry(e.client.id).or_default();
        *slabs += 1;
        *touched_bytes += e.slab.touched_bytes();
    }
    held
}

#[cfg(test)]
mod tests;
