//! Frames of a peer that says anything at any time, over any transport.

use xio_proto::wire::{
    Cancel, CreditNop, Framing, Kind, NexusSetupRequest, Op, ReadAck, RequestFields,
    ResponseFields, ResponseList, RkeyTable, SessionFields, SessionFlags, SessionSetupRequest,
    SetupParams, Sge, TransportFlags, encode_request, encode_response,
};

use super::Choices;

/// Where headers end while a frame is made.
const AT: usize = 300;

/// What a hostile peer knows of one transport connection, and says next.
#[derive(Debug)]
pub struct Voice {
    framing: Framing,
    sn: u16,
    session_sn: u16,
    serial: u64,
    set_up: bool,
    /// The session ends with the next frame.
    over: bool,
    outside: u64,
    answer_sn: u16,
    /// The other side's number of the session; 0 before it is known.
    pub session: u32,
    /// Task ids that the other side used.
    pub tids: Vec<u32>,
    /// Its requests that are not answered: task id and serial number.
    pub asked: Vec<(u32, u64)>,
}

impl Default for Voice {
    fn default() -> Self {
        Self::new(Framing::Rdma)
    }
}

impl Voice {
    /// A peer that said nothing yet.
    pub const fn new(framing: Framing) -> Self {
        Self {
            framing,
            sn: 0,
            session_sn: 0,
            serial: 0,
            set_up: false,
            over: false,
            outside: 0,
            answer_sn: 0,
            session: 0,
            tids: Vec::new(),
            asked: Vec::new(),
        }
    }

    fn is_stream(&self) -> bool {
        self.framing != Framing::Rdma
    }

    /// True once in `n` times; on streams, where each way to connect anew is long, in eight times
    /// as many.
    fn slips(&self, choices: &mut Choices<'_>, n: usize) -> bool {
        choices.below(if self.is_stream() {
            (8 * n).min(255)
        } else {
            n
        }) == 0
    }

    /// Writes a request of this kind in which nothing is wrong, with so many bytes of data, to the
    /// start of `frame`, and returns its length.
    pub fn say(&mut self, kind: Kind, data: u64, frame: &mut [u8]) -> usize {
        if kind == Kind::NexusSetupReq {
            let params = SetupParams {
                buffer_size: 9216,
                max_in_sges: 4,
                max_out_sges: 4,
                max_header: 256,
                ..SetupParams::default()
            };
            return self.setup(0, params, frame);
        }
        let mut none = Choices::new(&[]);
        let (sn, mut session) = self.numbers(&mut none, kind);
        session.flags = SessionFlags::empty();
        session.dest_session = self.session;
        let header_len = forge_payload(&mut none, &mut frame[AT..], kind, sn);
        let head = RequestFields {
            flags: TransportFlags::empty(),
            sn,
            ack_sn: 0,
            credits: 0,
            ltid: self.serial as u32,
            in_op: Op::Send,
            out_op: Op::Send,
            in_sges: 0,
            out_sges: 0,
            header_len,
            pad_len: 0,
            data_len: data,
        };
        let (ins, outs) = ([].into_iter(), [].into_iter());
        let framing = self.framing;
        let start = encode_request(frame, AT, framing, kind, &session, &head, ins, outs, true);
        to_front(frame, start, header_len, data)
    }

    /// Writes a frame of a kind that may or may not be possible now to the start of `frame`, and
    /// returns its length. On a stream, so many bytes as [`outside`](Self::outside) says belong
    /// behind it.
    pub fn forge(&mut self, choices: &mut Choices<'_>, frame: &mut [u8]) -> usize {
        self.outside = 0;
        let kind = self.kind(choices);
        self.set_up |= kind == Kind::NexusSetupReq;
        match kind {
            Kind::NexusSetupReq | Kind::NexusSetupRsp => self.forge_setup(choices, frame),
            Kind::CreditNop => {
                let credits = choices.byte().into();
                CreditNop {
                    sn: self.sn,
                    ack_sn: 0,
                    credits,
                }
                .encode(frame)
            }
            Kind::ReadAck => {
                let rtid = choices.pick(&self.tids).unwrap_or(0);
                ReadAck { rtid }.encode(frame)
            }
            _ if kind.is_request() => self.forge_request(choices, frame, kind),
            _ => self.forge_response(choices, frame, kind),
        }
    }

    /// Bytes outside the frame that was forged last.
    pub const fn outside(&self) -> u64 {
        self.outside
    }

    /// Most frames of a hostile peer should get past the first checks.
    fn kind(&mut self, choices: &mut Choices<'_>) -> Kind {
        let any = Kind::ALL[choices.below(Kind::ALL.len())];
        let stream = self.is_stream();
        let kind = match choices.below(24) {
            0 if !stream || choices.below(16) == 0 => any,
            _ if !self.set_up => Kind::NexusSetupReq,
            _ if self.session == 0 => Kind::SessionSetupReq,
            1..=6 if !self.asked.is_empty() => Kind::MsgRsp,
            7 if !stream => Kind::CreditNop,
            8 => Kind::KeepaliveReq,
            9 if !stream || choices.below(8) == 0 => Kind::FinReq,
            10 => Kind::AckReq,
            11..=14 => Kind::OneWayReq,
            _ => Kind::MsgReq,
        };
        if stream && kind == Kind::FinReq {
            // Another session may follow on the same transport connection.
            self.over = true;
        }
        kind
    }

    fn forge_setup(&mut self, choices: &mut Choices<'_>, frame: &mut [u8]) -> usize {
        let params = SetupParams {
            credits: choices.byte().into(),
            sq_depth: 5,
            rq_depth: choices.byte().into(),
            buffer_size: 512 + u64::from(choices.byte()) * 8,
            max_in_sges: choices.below(5) as u32,
            max_out_sges: choices.below(5) as u32,
            max_header: choices.byte().into(),
            pad: 0,
        };
        let flags = u16::from(choices.below(8) == 0);
        self.setup(flags, params, frame)
    }

    fn setup(&self, flags: u16, params: SetupParams, frame: &mut [u8]) -> usize {
        let setup = NexusSetupRequest {
            flags,
            cid: 0,
            params,
            rkeys: RkeyTable::default(),
        };
        setup.encode(frame, self.framing.dialect())
    }

    fn numbers(&mut self, choices: &mut Choices<'_>, kind: Kind) -> (u16, SessionFields) {
        let sn = self.sn;
        self.sn = sn.wrapping_add(1);
        let mut session = SessionFields {
            dest_session: self.session,
            flags: SessionFlags::from_bits_retain(match choices.below(4) {
                0 => choices.word() & 0x1c03,
                1 => 0x1800,
                _ => 0x1000,
            }),
            serial: self.serial,
            ..SessionFields::default()
        };
        if kind.is_application() || kind == Kind::AckReq {
            session.sn = self.session_sn;
            if kind.is_request() {
                self.session_sn = self.session_sn.wrapping_add(1);
                self.serial += 1;
            } else {
                session.sn = self.answer_sn;
                self.answer_sn = self.answer_sn.wrapping_add(1);
            }
        }
        if kind.is_request() {
            session.flags &= SessionFlags::from_bits_retain(0x403);
        }
        if self.slips(choices, 32) {
            session.dest_session = choices.word();
        }
        if std::mem::take(&mut self.over) {
            self.session = 0;
        }
        (sn, session)
    }

    fn forge_request(&mut self, choices: &mut Choices<'_>, frame: &mut [u8], kind: Kind) -> usize {
        let (sn, session) = self.numbers(choices, kind);
        let header_len = forge_payload(choices, &mut frame[AT..], kind, sn);
        let read =
            kind.is_application() && choices.below(if self.is_stream() { 32 } else { 4 }) == 0;
        let (n_in, n_out) = match kind {
            Kind::MsgReq => (
                choices.below(4),
                if read { 1 + choices.below(3) } else { 0 },
            ),
            Kind::OneWayReq => (0, if read { 1 + choices.below(3) } else { 0 }),
            _ => (0, 0),
        };
        let data_len = if read || !kind.is_application() {
            0
        } else {
            choices.below(200) as u64
        };
        let head = RequestFields {
            flags: TransportFlags::from_bits_retain(choices.byte() & 0x13),
            sn,
            ack_sn: 0,
            credits: choices.below(20) as u16,
            ltid: choices.word(),
            in_op: if n_in > 0 && choices.below(2) == 0 {
                Op::Write
            } else {
                Op::Send
            },
            out_op: if read { Op::Read } else { Op::Send },
            in_sges: 0,
            out_sges: 0,
            header_len,
            pad_len: 0,
            data_len,
        };
        let (ins, outs) = (some_sges(choices, n_in), some_sges(choices, n_out));
        self.outside = outs.iter().map(|sge| u64::from(sge.len)).sum();
        let (ins, outs) = (ins.into_iter(), outs.into_iter());
        let framing = self.framing;
        let start = encode_request(frame, AT, framing, kind, &session, &head, ins, outs, true);
        to_front(frame, start, header_len, data_len)
    }

    fn forge_response(&mut self, choices: &mut Choices<'_>, frame: &mut [u8], kind: Kind) -> usize {
        let (sn, mut session) = self.numbers(choices, kind);
        let application = kind == Kind::MsgRsp;
        let op = match choices.below(4) {
            0 if application && !(self.is_stream() && choices.below(8) > 0) => Op::Write,
            1 if application && !self.is_stream() => Op::Read,
            _ => Op::Send,
        };
        let last = choices.pick(&self.tids).unwrap_or(0);
        let mut rtid = if choices.below(8) == 0 {
            choices.word()
        } else {
            last
        };
        if self.is_stream()
            && choices.below(16) > 0
            && let Some((tid, serial)) = self.asked.pop()
        {
            (rtid, session.serial) = (tid, serial);
        }
        let header_len = if application {
            choices.below(20) as u16
        } else {
            0
        };
        let data_len = match op {
            Op::Send if application => choices.below(100) as u64,
            Op::Write => u64::from(choices.word() >> choices.below(32)),
            _ => 0,
        };
        let head = ResponseFields {
            sn,
            ack_sn: 0,
            credits: choices.below(20) as u16,
            rtid,
            ltid: choices.word(),
            op,
            sges: 0,
            status: if choices.below(4) == 0 {
                choices.word()
            } else {
                0
            },
            header_len,
            pad_len: 0,
            data_len,
        };
        let framing = self.framing;
        let start = match op {
            Op::Send => {
                let list = ResponseList::none();
                encode_response(frame, AT, framing, kind, &session, &head, list, true)
            }
            Op::Write => {
                let list = ResponseList::lengths([data_len as u32].into_iter());
                encode_response(frame, AT, framing, kind, &session, &head, list, true)
            }
            Op::Read => {
                let len = choices.word() >> choices.below(32);
                let sge = Sge {
                    addr: 77,
                    len,
                    rkey: 1,
                };
                let list = ResponseList::sges([sge].into_iter());
                encode_response(frame, AT, framing, kind, &session, &head, list, true)
            }
        };
        let inline = if op == Op::Send { data_len } else { 0 };
        to_front(frame, start, header_len, inline)
    }
}

/// Moves what was encoded around [`AT`] to the start of `frame`; its length.
fn to_front(frame: &mut [u8], start: usize, header_len: u16, inline: u64) -> usize {
    let end = AT + usize::from(header_len) + inline as usize;
    frame.copy_within(start..end, 0);
    end - start
}

fn some_sges(choices: &mut Choices<'_>, n: usize) -> Vec<Sge> {
    let mut sge = || Sge {
        addr: choices.word().into(),
        len: 1 + (choices.word() >> choices.below(32)) % 8000,
        rkey: 1,
    };
    (0..n).map(|_| sge()).collect()
}

/// Payload of a control request, written behind the headers; its length.
fn forge_payload(choices: &mut Choices<'_>, frame: &mut [u8], kind: Kind, sn: u16) -> u16 {
    if kind == Kind::SessionSetupReq {
        let uri_len = choices.below(30);
        let setup = SessionSetupRequest {
            session_id: choices.byte().into(),
            snd_bytes: 1 << 20,
            rcv_bytes: 1 << 20,
            snd_msgs: 10,
            rcv_msgs: 10,
            uri: &[b'u'; 30][..uri_len],
            private: b"pd",
        };
        setup.encode(frame).expect("fits") as u16
    } else if kind == Kind::CancelReq {
        let cancel = Cancel {
            sn,
            result: 0,
            requester: 1,
            responder: 2,
            serial: 3,
        };
        cancel.encode(frame) as u16
    } else if kind.is_application() {
        choices.below(40) as u16
    } else {
        0
    }
}
