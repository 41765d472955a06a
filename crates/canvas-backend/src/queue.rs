//! [`Backend`] over a [`LocalPool`]: requests are carried out as they are submitted.

use crate::backend::{Backend, Completion, Done, Failure, Op, PageBuffers, Request};
use crate::pool::{LocalPool, Scratch, SlotMem};
use canvas_swap::{Lz, PoolBudget};

/// One thread's queue to a [`LocalPool`], with room for `N` completions.
pub struct LocalQueue<'p, 'a, L, M, B, const N: usize> {
    pool: &'p LocalPool<'a, L, M, B>,
    scratch: &'p mut Scratch,
    /// Ring of completions: `head` is the oldest, `len` of them.
    ring: [Option<Completion>; N],
    head: usize,
    len: usize,
}

impl<'p, 'a, L: Lz, M: SlotMem, B: PoolBudget, const N: usize> LocalQueue<'p, 'a, L, M, B, N> {
    /// A queue to `pool`.
    pub fn new(pool: &'p LocalPool<'a, L, M, B>, scratch: &'p mut Scratch) -> Self {
        LocalQueue {
            pool,
            scratch,
            ring: [None; N],
            head: 0,
            len: 0,
        }
    }

    fn carry_out(&mut self, r: &Request, buffers: &dyn PageBuffers) -> Result<Done, Failure> {
        match r.op {
            Op::Load { buf } => {
                let mut result = Err(Failure::NoBuffer);
                buffers.write(buf, &mut |page| {
                    result = self
                        .pool
                        .load(r.entry, page, self.scratch)
                        .map(|()| Done::Loaded)
                        .map_err(Failure::Load);
                });
                result
            }
            Op::Store { buf, has_far_copy } => {
                let mut result = Err(Failure::NoBuffer);
                buffers.read(buf, &mut |page| {
                    result = self
                        .pool
                        .store(r.entry, has_far_copy, page, self.scratch)
                        .map(Done::Stored)
                        .map_err(Failure::Store);
                });
                result
            }
            Op::DropCopy => {
                self.pool.drop_copy(r.entry);
                Ok(Done::Dropped)
            }
            Op::Release => {
                self.pool.release(r.entry);
                Ok(Done::Dropped)
            }
        }
    }
}

impl<L: Lz, M: SlotMem, B: PoolBudget, const N: usize> Backend for LocalQueue<'_, '_, L, M, B, N> {
    fn submit(&mut self, batch: &[Request], buffers: &dyn PageBuffers) -> usize {
        let taken = batch.len().min(N - self.len);
        for request in &batch[..taken] {
            let result = self.carry_out(request, buffers);
            self.ring[(self.head + self.len) % N] = Some(Completion {
                tag: request.tag,
                result,
            });
            self.len += 1;
        }
        taken
    }
    fn poll(&mut self, done: &mut [Completion], _buffers: &dyn PageBuffers) -> usize {
        let mut n = 0;
        while n < done.len() && self.len > 0 {
            if let Some(completion) = self.ring[self.head].take() {
                done[n] = completion;
                n += 1;
            }
            self.head = (self.head + 1) % N;
            self.len -= 1;
        }
        n
    }
    fn in_flight(&self) -> usize {
        self.len
    }
    fn depth(&self) -> usize {
        N
    }
}
