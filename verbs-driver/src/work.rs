//! Work requests of the endpoint, as those of verbs.

use xio_proto::{NexusId, SegmentSpan, Span, Trace, Work, WrId};

use crate::chain::Verb;
use crate::io::{Core, Io};
use crate::sys;

impl Io {
    /// Adds a work request to the chain, which is posted when it is full, or somebody else's, or
    /// when the endpoint has no more.
    pub(crate) fn work<T: Trace>(&mut self, core: &mut Core<T>, work: Work) {
        match work {
            Work::Recv { nexus, wr, slot } => {
                let begun = match self.shares_receives() {
                    true => self.begin_shared(core),
                    false => self.begin(core, nexus, wr),
                };
                if begun {
                    self.stats.receives += 1;
                    self.receives.receive(wr.to_bits(), core.slots.whole(slot));
                }
            }
            Work::Send {
                nexus,
                wr,
                head,
                tail,
                data,
                signaled,
                fence,
            } => {
                if self.begin(core, nexus, wr) {
                    self.stats.sends += 1;
                    self.gather(core, [head, tail]);
                    self.resolve_segments(core, data);
                    let flags = flags(signaled, fence);
                    self.request(wr, Verb::Send, flags);
                }
            }
            Work::Read {
                nexus,
                wr,
                local,
                remote,
                rkey,
                fence,
                signaled,
            } => {
                if self.begin(core, nexus, wr) {
                    self.stats.reads += 1;
                    self.resolve_segments(core, local);
                    self.request(wr, Verb::Read { remote, rkey }, flags(signaled, fence));
                }
            }
            Work::Write {
                nexus,
                wr,
                local,
                remote,
                rkey,
                signaled,
            } => {
                if self.begin(core, nexus, wr) {
                    self.stats.writes += 1;
                    self.resolve_segments(core, local);
                    self.request(wr, Verb::Write { remote, rkey }, flags(signaled, false));
                }
            }
        }
    }

    /// Makes room in the chains for a request of this queue pair. False when it has none.
    fn begin<T: Trace>(&mut self, core: &mut Core<T>, nexus: NexusId, wr: WrId) -> bool {
        let is_other = self.chained.is_some_and(|chained| chained != nexus);
        if is_other || self.sends.is_full() || self.receives.is_full() {
            self.flush(core);
        }
        let has_queue = self
            .link(nexus)
            .is_some_and(|link| !link.id.queue_pair().is_null());
        if !has_queue {
            self.stats.post_failures += 1;
            core.endpoint.handle_post_failed(core.now, wr, libc::EINVAL);
            return false;
        }
        self.chained = Some(nexus);
        true
    }

    /// Makes room in the chain for a receive that is nobody's in particular.
    fn begin_shared<T: Trace>(&mut self, core: &mut Core<T>) -> bool {
        if self.receives.is_full() {
            self.flush(core);
        }
        true
    }

    fn request(&mut self, wr: WrId, verb: Verb, flags: u32) {
        self.stats.signaled += u64::from(flags & sys::flag::SIGNALED != 0);
        let inline = self
            .sends
            .request(wr.to_bits(), verb, flags, self.sizes.inline);
        self.stats.inline += u64::from(inline);
    }

    /// Headers and small data in a slot.
    fn gather<T: Trace>(&mut self, core: &Core<T>, [head, tail]: [Span; 2]) {
        let mut first = core.slots.segment(head.slot, head.offset, head.len);
        // What lies side by side needs one segment only.
        let joined = tail.slot == head.slot && head.offset + head.len == tail.offset;
        if joined {
            first.length += tail.len;
        }
        self.sends.segment(first);
        if !joined && tail.len > 0 {
            self.sends
                .segment(core.slots.segment(tail.slot, tail.offset, tail.len));
        }
    }

    /// Segments of buffers.
    fn resolve_segments<T: Trace>(&mut self, core: &Core<T>, span: SegmentSpan) {
        if span.is_empty() {
            return;
        }
        for segment in core.endpoint.segments(span) {
            self.sends.segment(sys::ibv_sge {
                addr: segment.addr,
                length: segment.len,
                lkey: segment.lkey,
            });
        }
    }
}

fn flags(signaled: bool, fence: bool) -> u32 {
    let signaled = if signaled { sys::flag::SIGNALED } else { 0 };
    let fence = if fence { sys::flag::FENCE } else { 0 };
    signaled | fence
}
