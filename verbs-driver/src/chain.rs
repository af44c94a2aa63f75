//! Work requests of one queue pair in a row: one call, and one doorbell, for all of them.
//!
//! A request's entries name memory by address and key. What the device does with it is safe because
//! of who names it: slots and buffers only, which stay mapped and out of everybody's reach until
//! the completion.

use std::mem::MaybeUninit;
use std::ptr;

use crate::sys;

/// What is done with the memory of a send request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// A message.
    Send,
    /// From the peer's memory.
    Read {
        /// Where it lies there.
        remote: u64,
        /// The key for it.
        rkey: u32,
    },
    /// Into the peer's memory.
    Write {
        /// Where it goes there.
        remote: u64,
        /// The key for it.
        rkey: u32,
    },
}

/// Which request of a chain was the first that could not be posted, and why.
pub(crate) type Unposted = (u64, i32);

/// Requests for a send queue.
pub(crate) struct SendChain {
    requests: Box<[Request]>,
    segments: Box<[sys::ibv_sge]>,
    used: usize,
    segments_used: usize,
}

/// A request, without the pointers between them.
#[derive(Copy, Clone, Debug)]
struct Request {
    wr: u64,
    verb: Verb,
    flags: u32,
    first: usize,
    count: usize,
}

/// Requests in one chain, at most.
const CHAIN: usize = 16;

impl SendChain {
    /// A chain for requests of up to so many segments.
    pub(crate) fn new(segments: usize) -> Self {
        let request = Request {
            wr: 0,
            verb: Verb::Send,
            flags: 0,
            first: 0,
            count: 0,
        };
        let segment = sys::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        Self {
            requests: vec![request; CHAIN].into_boxed_slice(),
            segments: vec![segment; CHAIN * segments].into_boxed_slice(),
            used: 0,
            segments_used: 0,
        }
    }

    /// Nothing to post.
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// It must be posted before another request can be added.
    pub(crate) fn is_full(&self) -> bool {
        self.used == CHAIN
    }

    /// Adds a segment to the request that is added next.
    pub(crate) fn segment(&mut self, segment: sys::ibv_sge) {
        self.segments[self.segments_used] = segment;
        self.segments_used += 1;
    }

    /// Adds a request for the segments since the last one; returns whether their data travels in
    /// the request itself.
    pub(crate) fn request(&mut self, wr: u64, verb: Verb, flags: u32, inline_max: u32) -> bool {
        let first = self.requests[..self.used]
            .last()
            .map_or(0, |last| last.first + last.count);
        let count = self.segments_used - first;
        let len: u32 = self.segments[first..self.segments_used]
            .iter()
            .map(|s| s.length)
            .sum();
        let inline = verb == Verb::Send && len <= inline_max;
        self.requests[self.used] = Request {
            wr,
            verb,
            flags: flags | if inline { sys::flag::INLINE } else { 0 },
            first,
            count,
        };
        self.used += 1;
        inline
    }

    /// Posts all.
    ///
    /// # Safety
    /// The queue pair is valid and has room. The memory of all segments stays mapped, and nobody
    /// makes a reference to it, until the requests complete or the queue pair is destroyed.
    pub(crate) unsafe fn post(&mut self, qp: *mut sys::ibv_qp) -> Result<(), Unposted> {
        let used = core::mem::take(&mut self.used);
        self.segments_used = 0;
        if used == 0 {
            return Ok(());
        }
        let mut chain = [const { MaybeUninit::<sys::ibv_send_wr>::uninit() }; CHAIN];
        let place = chain.as_mut_ptr().cast::<sys::ibv_send_wr>();
        for (at, request) in self.requests[..used].iter().enumerate() {
            // SAFETY: inside of the array; plain numbers and pointers, for which 0 is a value.
            unsafe { place.add(at).write_bytes(0, 1) };
            // SAFETY: just written; elements point to each other only while the array lives.
            let wr = unsafe { &mut *place.add(at) };
            wr.wr_id = request.wr;
            wr.sg_list = self.segments[request.first..].as_mut_ptr();
            wr.num_sge = request.count as i32;
            wr.send_flags = request.flags;
            let remote = match request.verb {
                Verb::Send => {
                    wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
                    None
                }
                Verb::Read { remote, rkey } => {
                    wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
                    Some((remote, rkey))
                }
                Verb::Write { remote, rkey } => {
                    wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                    Some((remote, rkey))
                }
            };
            if let Some((remote, rkey)) = remote {
                wr.wr.rdma.remote_addr = remote;
                wr.wr.rdma.rkey = rkey;
            }
            if at + 1 < used {
                // SAFETY: inside of the array.
                wr.next = unsafe { place.add(at + 1) };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: of the caller; the chain lives as long as the call, which copies it.
        let code = unsafe { sys::ibv_post_send(qp, place, &raw mut bad) };
        if code == 0 {
            return Ok(());
        }
        // SAFETY: null, or the element of the chain that was refused.
        Err((
            unsafe { bad.as_ref() }.map_or(self.requests[0].wr, |wr| wr.wr_id),
            code.abs(),
        ))
    }
}

/// Receives for a receive queue, one segment each.
pub(crate) struct ReceiveChain {
    receives: Vec<(u64, sys::ibv_sge)>,
}

/// Receives in one chain, at most.
const RECEIVES: usize = 32;

impl ReceiveChain {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self {
            receives: Vec::with_capacity(RECEIVES),
        }
    }

    /// Nothing to post.
    pub(crate) fn is_empty(&self) -> bool {
        self.receives.is_empty()
    }

    /// It must be posted before another receive can be added.
    pub(crate) fn is_full(&self) -> bool {
        self.receives.len() == RECEIVES
    }

    /// Adds a receive.
    pub(crate) fn receive(&mut self, wr: u64, segment: sys::ibv_sge) {
        self.receives.push((wr, segment));
    }

    /// Posts all on a queue pair's own queue.
    ///
    /// # Safety
    /// As for [`SendChain::post`].
    pub(crate) unsafe fn post(&mut self, qp: *mut sys::ibv_qp) -> Result<(), Unposted> {
        // SAFETY: of the caller; the chain lives as long as the call, which copies it.
        let posted = self.call(|wr, bad| unsafe { sys::ibv_post_recv(qp, wr, bad) });
        self.receives.clear();
        posted
    }

    /// Posts all on a shared queue. Those that could not be posted stay, for
    /// [`unposted`](Self::unposted).
    ///
    /// # Safety
    /// As for [`SendChain::post`], with a shared receive queue.
    pub(crate) unsafe fn post_shared(&mut self, queue: *mut sys::ibv_srq) -> Result<(), i32> {
        // SAFETY: as in `post`.
        let posted = self.call(|wr, bad| unsafe { sys::ibv_post_srq_recv(queue, wr, bad) });
        let Err((first, code)) = posted else {
            self.receives.clear();
            return Ok(());
        };
        let at = self.receives.iter().position(|&(wr, _)| wr == first);
        self.receives.drain(..at.unwrap_or(0));
        Err(code)
    }

    /// Takes one that could not be posted.
    pub(crate) fn unposted(&mut self) -> Option<u64> {
        self.receives.pop().map(|(wr, _)| wr)
    }

    fn call(
        &mut self,
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
    ) -> Result<(), Unposted> {
        let mut chain = [const { MaybeUninit::<sys::ibv_recv_wr>::uninit() }; RECEIVES];
        let place = chain.as_mut_ptr().cast::<sys::ibv_recv_wr>();
        let count = self.receives.len();
        if count == 0 {
            return Ok(());
        }
        for (at, (wr_id, segment)) in self.receives.iter_mut().enumerate() {
            // SAFETY: inside of the array; plain numbers and pointers, for which 0 is a value.
            unsafe { place.add(at).write_bytes(0, 1) };
            // SAFETY: just written; elements point to each other only while the array lives.
            let wr = unsafe { &mut *place.add(at) };
            wr.wr_id = *wr_id;
            wr.sg_list = &raw mut *segment;
            wr.num_sge = 1;
            if at + 1 < count {
                // SAFETY: inside of the array.
                wr.next = unsafe { place.add(at + 1) };
            }
        }
        let mut bad = ptr::null_mut();
        let code = post(place, &raw mut bad);
        let first = self.receives.first().map_or(0, |&(wr, _)| wr);
        if code == 0 {
            return Ok(());
        }
        // SAFETY: null, or the element of the chain that was refused.
        Err((
            unsafe { bad.as_ref() }.map_or(first, |wr| wr.wr_id),
            code.abs(),
        ))
    }
}

#[cfg(test)]
mod tests;
