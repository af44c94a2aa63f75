//! Frames that the core wants written.

use xio_proto::{
    Completion, NexusId, Segment, SegmentSpan, SocketId, Span, Work, WorkStatus, WrId,
};

use crate::driver::{Hands, SimDriver, User};
use crate::env::{Env, Forbidden};
use crate::errno;
use crate::link::{Links, OutletId, Written};
use crate::swarm::Site;
use crate::trace::Object;

impl SimDriver {
    pub(in crate::driver) fn tcp_work<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(tcp) = &self.tcp else {
            return false;
        };
        let (env, links) = (&mut *hands.env, &mut *hands.links);
        let slots = &mut env.memory[self.number as usize];
        let Some(work) = self.core.poll_work(tcp.transport, slots) else {
            return false;
        };
        let Work::Send {
            nexus,
            wr,
            head,
            tail,
            data,
            ..
        } = work
        else {
            env.violate(self.number, Object::World, Forbidden::Unsupported, 2);
            return true;
        };
        if let Err(error) = self.write_frame(env, links, nexus, wr, [head, tail], data) {
            let now = self.now(env);
            self.core.handle_post_failed(now, wr, error);
        }
        true
    }

    fn write_frame(
        &mut self,
        env: &mut Env,
        links: &mut Links,
        nexus: NexusId,
        wr: WrId,
        [head, tail]: [Span; 2],
        data: SegmentSpan,
    ) -> Result<(), i32> {
        if env.fires(Site::PostFailed) {
            return Err(errno::EPIPE);
        }
        let outlet = self.outlet(links, nexus).ok_or(errno::EPIPE)?;
        let memory = &env.memory[self.number as usize];
        let mut rest = [Segment::default(); Self::SEGMENTS];
        let first = memory.slot_segment(head.slot, head.offset, head.len);
        let mut count = 0;
        if tail.len > 0 {
            rest[0] = memory.slot_segment(tail.slot, tail.offset, tail.len);
            count = 1;
        }
        count += self.resolve(data, &mut rest[count..]);
        links.send_frame(env, outlet, wr.to_bits(), first, &rest[..count])
    }

    /// Where the frames of a transport connection go.
    fn outlet(&mut self, links: &mut Links, nexus: NexusId) -> Option<OutletId> {
        let tcp = self.tcp.as_mut()?;
        if let Some(outlet) = tcp.streams(nexus).outlet {
            return Some(outlet);
        }
        self.bind(nexus);
        let tcp = self.tcp.as_mut()?;
        let [control, data] = self.core.sockets(nexus);
        let control = tcp.end(control?)?.sock?;
        let data = match data {
            Some(data) => Some(tcp.end(data)?.sock?),
            None => None,
        };
        let outlet = links.open_outlet(control, data, nexus.to_bits());
        tcp.streams(nexus).outlet = Some(outlet);
        Some(outlet)
    }

    /// Takes the next word about what was written. False when there is none.
    pub(in crate::driver) fn written<U: User>(&mut self, hands: &mut Hands<'_, U>) -> bool {
        let Some(tcp) = &self.tcp else {
            return false;
        };
        let Some(written) = hands.links.poll_written(tcp.host) else {
            return false;
        };
        let now = self.now(hands.env);
        match written {
            Written::Part { cookie } => {
                let socket = SocketId::from_bits(cookie);
                self.core.handle_stream_progress(now, socket);
            }
            Written::Whole { wr, .. } => {
                self.frame_ended(hands.env, WrId::from_bits(wr), WorkStatus::Success);
            }
        }
        self.settle(hands);
        true
    }

    fn frame_ended(&mut self, env: &mut Env, wr: WrId, status: WorkStatus) {
        let now = self.now(env);
        let slots = &mut env.memory[self.number as usize];
        let completion = Completion { wr, status, len: 0 };
        self.core.handle_completion(now, completion, slots);
    }

    /// Gives up what is not written whole.
    pub(super) fn flush_frames(&mut self, env: &mut Env, links: &mut Links, nexus: NexusId) {
        let Some(tcp) = &mut self.tcp else { return };
        let Some(outlet) = tcp.streams(nexus).outlet else {
            return;
        };
        let mut flushed = core::mem::take(&mut tcp.flushed);
        links.drop_frames(env, outlet, |wr| flushed.push(wr));
        if env.fires(Site::NoFlush) {
            flushed.clear();
        }
        let told = if env.fires(Site::PartialFlush) {
            env.rng.below(flushed.len() as u64 + 1) as usize
        } else {
            flushed.len()
        };
        for wr in flushed.drain(..).take(told) {
            self.frame_ended(env, WrId::from_bits(wr), WorkStatus::Flushed);
        }
        if let Some(tcp) = &mut self.tcp {
            tcp.flushed = flushed;
        }
    }
}
