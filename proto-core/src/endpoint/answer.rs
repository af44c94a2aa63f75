//! Responses and receipts as bytes.

use super::Endpoint;
use super::frame::{Layout, numbered};
use crate::entries::{TaskFlags, WorkEntry, WorkKind};
use crate::memory::{ListKind, SegmentSpan, SlotId, Slots};
use crate::output::Work;
use crate::state::task::Input;
use crate::storage::Storage;
use crate::tid;
use crate::trace::Trace;
use crate::wire::{
    Framing, Kind, Op, ResponseFields, ResponseList, SessionFields, SessionFlags, encode_response,
};

impl<S: Storage, T: Trace> Endpoint<S, T> {
    #[inline]
    fn number_response(&mut self, c: u32, session: &mut SessionFields) {
        let row = self.connection(c);
        session.sn = row.rsp_sn;
        row.rsp_sn = row.rsp_sn.wrapping_add(1);
        session.ack_sn = row.rsp_expected.wrapping_sub(1);
        session.credits_msgs = core::mem::take(&mut row.owed_messages);
        session.credits_bytes = core::mem::take(&mut row.owed_bytes);
    }

    /// A receipt without a response.
    pub(crate) fn receipt_frame(
        &mut self,
        n: u32,
        c: u32,
        t: u32,
        slot: u32,
        slots: &mut impl Slots,
    ) -> Work {
        let row = self.task(t);
        row.flags.insert(TaskFlags::RECEIPT_DONE);
        let code = row.receipt_code;
        self.response_class(n, c, t, slot, SessionFlags::RECEIPT_FIRST, code, slots)
    }

    /// MSG_RSP.
    pub(crate) fn response_frame(
        &mut self,
        n: u32,
        c: u32,
        t: u32,
        slots: &mut impl Slots,
    ) -> Work {
        let row = self.task(t);
        let mut flags = SessionFlags::RECEIPT_LAST;
        let receipt = TaskFlags::RECEIPT | TaskFlags::RECEIPT_NOW;
        if row.flags.intersects(receipt) && !row.flags.contains(TaskFlags::RECEIPT_DONE) {
            row.flags.insert(TaskFlags::RECEIPT_DONE);
            flags |= SessionFlags::RECEIPT_FIRST;
            self.trace.mark("receipt joined to response");
        }
        let row = self.task(t);
        flags.set(
            SessionFlags::IMM_SEND_COMP,
            row.flags.contains(TaskFlags::PROMPT),
        );
        let joined = flags.contains(SessionFlags::RECEIPT_FIRST);
        let (slot, code) = (row.slot, if joined { row.receipt_code } else { 0 });
        self.response_class(n, c, t, slot, flags, code, slots)
    }

    /// The first bytes of what a task sends from user memory.
    fn out_span(&self, t: u32, len: u64) -> SegmentSpan {
        SegmentSpan {
            task: t,
            list: ListKind::Out,
            skip: 0,
            len,
        }
    }

    /// Session header of a response or receipt: the next number of its class, the request's
    /// serial number.
    fn answer_session_header(&mut self, c: u32, t: u32, flags: SessionFlags) -> SessionFields {
        let mut session = SessionFields {
            flags,
            dest_session: self.connection(c).peer_session,
            serial: self.task(t).serial,
            ..SessionFields::default()
        };
        self.number_response(c, &mut session);
        session
    }

    #[allow(clippy::too_many_arguments, reason = "one frame's parts")]
    fn response_class(
        &mut self,
        n: u32,
        c: u32,
        t: u32,
        slot: u32,
        flags: SessionFlags,
        receipt_result: u32,
        slots: &mut impl Slots,
    ) -> Work {
        let real = flags.contains(SessionFlags::RECEIPT_LAST);
        if real {
            self.take_app_credits(c, t);
            self.owe_for_request(c, t);
        }
        let mut session = self.answer_session_header(c, t, flags);
        session.receipt_result = receipt_result;
        let numbers = self.nexus(n).number();
        let at = self.g.config.headroom();
        let framing = self.nexus(n).framing;
        let task = self.task(t);
        let kind = if task.kind == Kind::MsgReq {
            Kind::MsgRsp
        } else {
            Kind::OneWayRsp
        };
        // A receipt before the answer finds nothing to send in its task yet.
        let (header_len, slot_data, n_out) = (task.header_len, task.slot_data, task.out.count);
        let (gathered, status) = (task.out.total, task.status);
        debug_assert!(real || (header_len == 0 && slot_data == 0 && n_out == 0 && status == 0));
        let data = u64::from(slot_data) + gathered;
        let mut head = ResponseFields {
            rtid: task.peer_tid,
            ltid: tid::of_task(t, task.generation),
            status,
            header_len,
            ..numbered(numbers)
        };
        let op = self.response_op(t, header_len, n_out, data);
        head.op = op;
        head.data_len = if op == Op::Read { 0 } else { data };
        let task = self.task(t);
        let counts_data = slot_data > 0 || n_out == 0;
        let start = if op == Op::Send {
            let bytes = slots.slot_mut(SlotId(slot));
            let list = ResponseList::none();
            encode_response(bytes, at, framing, kind, &session, &head, list, counts_data)
        } else {
            task.read_response = op == Op::Read;
            self.large_response(n, t, slot, at, kind, &session, &head, slots)
        };
        let in_slot = at + usize::from(header_len);
        let end = in_slot + slot_data as usize;
        let layout = Layout::new(framing, slot, start, in_slot, end);
        let follows = op == Op::Send || framing != Framing::Rdma;
        let data = self.out_span(t, if follows { gathered } else { 0 });
        let entry = if real {
            self.task_input(t, Input::Post);
            self.task(t).work += 1;
            let kind = WorkKind::Frame(kind);
            WorkEntry {
                kind,
                task: t,
                ..WorkEntry::VACANT
            }
        } else {
            let kind = WorkKind::Receipt;
            WorkEntry {
                kind,
                slot,
                ..WorkEntry::VACANT
            }
        };
        self.g.counters.responses_sent += 1;
        let prompt = flags.contains(SessionFlags::IMM_SEND_COMP);
        self.send_work(n, &layout, entry, data, prompt, false)
    }
}
