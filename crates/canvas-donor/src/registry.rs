//! Who has which slab.
//!
//! Times are milliseconds since the server's start and come from the caller, so that leases and
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

/// A client that the server has heard of within its lease.
#[derive(Debug)]
pub struct Client {
    /// Who it is.
    pub id: ClientId,
    /// When it was last heard of.
    last_ms: AtomicU64,
    lease_ms: AtomicU64,
    links: Mutex<Links>,
}

/// The links of a client.
#[derive(Debug, Default)]
struct Links {
    /// By number.
    up: BTreeMap<u32, Arc<Outbox>>,
    /// Replaced by newer ones, and perhaps not fenced yet.
    replaced: Vec<Arc<Outbox>>,
}

impl Client {
    /// It gave a sign of life.
    pub fn heard(&self, now_ms: u64) {
        self.last_ms.fetch_max(now_ms, Relaxed);
    }

    /// Time in which it could not be heard does not count; never past now.
    fn postpone(&self, gap_ms: u64, now_ms: u64) {
        let later = |last_ms: u64| Some(lease::postponed(last_ms, gap_ms, now_ms));
        let _ = self.last_ms.fetch_update(Relaxed, Relaxed, later);
    }

    /// When it was last heard of.
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

    /// How many links it has.
    pub fn link_count(&self) -> usize {
        self.links().up.len()
    }

    /// Calls it over the lowest of its links; a client without links is not called.
    fn call(&self, call: OwnedCall) {
        if let Some(outbox) = self.links().up.values().next() {
            outbox.send(call);
        }
    }
}

struct Entry {
    slab: Arc<Slab>,
    client: Arc<Client>,
    /// When it is freed, once it is on its way out.
    deadline_ms: Option<u64>,
    /// Operations when it was last sampled.
    ops_before: u64,
    /// What its client said it was used since; `None` until it says so.
    activity: Option<u64>,
    /// Whether it is in the sample of the present query.
    queried: bool,
    /// How much it was used before it was last sampled.
    used_before: u64,
    /// What it is worth to its client, as that has said.
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

/// The slabs by handle. There may be very many, and the table is locked while they are walked
/// through: tests count how often that is done.
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

/// A client that was not heard of for its lease.
pub struct Expired {
    /// The client.
    pub client: Arc<Client>,
    /// How many slabs were freed.
    pub slabs: usize,
}

/// Figures for the state file and the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Clients.
    pub clients: usize,
    /// Slabs that are lent.
    pub slabs: usize,
    /// In full size.
    pub lent_bytes: u64,
    /// What of them takes memory.
    pub touched_bytes: u64,
    /// What takes memory of those on their way out.
    pub leaving_bytes: u64,
    /// How many those are.
    pub leaving: usize,
    /// Slabs of which other copies stay, as their clients have said.
    pub spare: usize,
}

/// A client in the state file.
pub struct ClientFigures {
    /// The client.
    pub client: Arc<Client>,
    /// Its slabs.
    pub slabs: usize,
    /// What they take.
    pub touched_bytes: u64,
}

impl Inner {
    /// Takes a slab out of the tables. Its memory is still there.
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

/// Gives the memory of slabs back, without the table's lock.
fn release(slabs: &[Arc<Slab>]) {
    for slab in slabs {
        slab.release();
    }
}

impl Registry {
    /// An empty table. Handles count up from `first_handle`, which differs from run to run, so that a
    /// handle of an earlier run names nothing.
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

    /// Does this client have links or slabs, or had them within its lease?
    pub fn knows(&self, id: &ClientId) -> bool {
        self.lock().clients.contains_key(id)
    }

    /// A link of this client begins. An older link of the same number is closed: the client has
    /// given it up. With link 0, which is a client's first, all older ones are: the client has begun anew,
    /// perhaps as another process. Slabs that are on their way out are told again, all of them.
    /// A server that ends takes only clients that have slabs here.
    ///
    /// When this returns nothing more is done that comes over a link that was replaced, now or earlier.
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
        // Who has slabs here comes back for them until the end: they are all on their way out.
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
        // Also those that another thread is fencing: it may not be there yet.
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

    /// A link ends. What the client has stays for its lease.
    pub fn leave(&self, client: &Client, link: u32, outbox: &Arc<Outbox>) {
        let mut links = client.links();
        if links.up.get(&link).is_some_and(|o| Arc::ptr_eq(o, outbox)) {
            links.up.remove(&link);
        }
    }

    /// Lends a slab, or finds the one that was lent under this key.
    pub fn alloc(&self, client: &Arc<Client>, key: SlabKey) -> Result<u64, ErrorCode> {
        let mut inner = self.lock();
        // A client whose lease ended a moment ago has no place in the table any more.
        if !inner
            .clients
            .get(&client.id)
            .is_some_and(|c| Arc::ptr_eq(c, client))
        {
            return Err(ErrorCode::Ending);
        }
        if let Some(&handle) = inner.by_key.get(&(client.id, key)) {
            // Who asks for it as for a new one knows of nothing that was said of it.
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

    /// The slab of this handle, if it is this client's.
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

    /// How full the server is.
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

    /// Takes a look at the host's memory in.
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

    /// Frees everything of clients that were not heard of for their lease, and closes their links.
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
        // One pass, however many they are.
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

    /// This process was stopped, or slept, for `gap_ms`: nobody could be heard then, and nobody could
    /// move a slab. Leases and deadlines are as much later.
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

    /// Begins an eviction of `count` slabs: samples some, and asks their clients how much they use
    /// them. Returns how many were sampled; [`Registry::stop_least_active`] goes on.
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

    /// A client says how much it uses a slab. Only what was asked for counts.
    pub fn note_activity(&self, client: &ClientId, handle: u64, ops: u64) {
        let mut inner = self.lock();
        if let Some(e) = inner.slabs.get_mut(&handle)
            && e.client.id == *client
            && e.queried
        {
            e.activity = Some(ops);
        }
    }

    /// A client says what slabs of its are worth to it.
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

    /// The host's memory ends: frees what is due at this look, and tells the clients that it is gone.
    /// Returns what was freed.
    pub fn free_early(&self, look: &early::Look) -> Vec<early::Lent<u64>> {
        let (due, slabs) = {
            let mut inner = self.lock();
            let lent: Vec<_> = inner.slabs.iter().map(|(&h, e)| e.lent(h)).collect();
            let due = look.due(&lent);
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

    /// Ends the query: the `count` least active of the sampled slabs become read-only, and their
    /// clients are told to move them. Of a slab whose client has not answered, the server's own count
    /// of operations is taken. Returns how many.
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

    /// The server ends: nothing is lent any more, and all slabs are on their way out.
    pub fn stop_all(&self, deadline_ms: u64) -> usize {
        let mut inner = self.lock();
        inner.ending = true;
        let all: Vec<u64> = inner.slabs.keys().copied().collect();
        inner.stop(&all, deadline_ms);
        all.len()
    }

    /// A client has moved a slab that was on its way out. Of others nothing happens.
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

    /// Frees the slabs whose deadline is over, and returns how many.
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

    /// Figures.
    pub fn totals(&self) -> Totals {
        self.lock().totals()
    }

    /// The average of available memory, and the bound on lending.
    pub fn headroom(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.headroom.average_bytes(), inner.headroom.limit_bytes())
    }

    /// All clients.
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

    /// A client's slabs that are on their way out, by deadline.
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

/// The calls that tell of slabs on their way out, as many as frames carry.
fn stops(deadline_ms: u64, handles: &[u64]) -> impl Iterator<Item = OwnedCall> {
    let parts = handles.chunks(canvas_wire::EVICT_MAX);
    parts.map(move |part| OwnedCall::Stop {
        deadline_ms,
        handles: part.to_vec(),
    })
}

/// How many slabs each client has, and what they take, in one pass.
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
